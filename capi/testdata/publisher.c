/* A worker publishes what it holds; a router of the same process follows it over ZeroMQ. And wrong use of every call. */
#include <unistd.h>

#include "check.h"

#define WORKER 18446744073709551611u

static uint32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
static uint64_t hashes[2] = {1111, (uint64_t)-2222};

static dgo_publisher new_publisher(const char *more) {
  char config[512];
  int size = snprintf(config, sizeof config,
                      "{\"worker_id\":18446744073709551611,\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\","
                      "\"replay\":\"tcp://127.0.0.1:0\",\"query\":\"tcp://127.0.0.1:0\"%s}", more);
  dgo_publisher publisher = 0;
  dgo_error error = {.struct_size = sizeof error};
  dgo_status status = dgo_publisher_new(config, (size_t)size, &publisher, &error);
  if (status != DGO_OK) fprintf(stderr, "%s\n", error.message);
  CHECK(status == DGO_OK);
  return publisher;
}

static dgo_kv_event stored(size_t blocks) {
  dgo_kv_event event = {0};
  event.kind = DGO_EVENT_STORED;
  event.block_hashes = hashes;
  event.n_blocks = blocks;
  event.tokens = tokens;
  event.n_tokens = 4 * blocks;
  event.block_size = 4;
  return event;
}

#define PUBLISH(want, publisher, event) \
  STATUS(want, dgo_publisher_publish(publisher, 0, &(event), sizeof(dgo_kv_event), 1, NULL))

static void construction(void) {
  dgo_publisher publisher = 7;
  const char *bad[] = {
      "", "[]", "{", "{} {}", "{\"worker_id\":-1}", "{\"worker_id\":1}", "{\"unknown\":1}",
      "{\"block_size\":4,\"kv_events\":\"nonsense\"}",
      "{\"block_size\":4}",
      "{\"block_size\":0,\"kv_events\":\"tcp://127.0.0.1:0\"}",
      "{\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"buffer_steps\":0}",
      "{\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"dp_size\":0}",
      "{\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"dp_size\":4294967295}",
      "{\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"dp_start\":4294967295,\"dp_size\":2}",
      "{\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"engine\":{}}",
      "{\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"engine\":{\"kv_events\":5}}",
      "{\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"engine\":{\"kv_events\":\"tcp://*:5557\"}}",
      "{\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"engine\":{\"kv_events\":{\"1\":\"tcp://h:5557\"}}}",
      "{\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"engine\":{\"kv_events\":{\"x\":\"tcp://h:5557\"}}}",
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_new(bad[i], strlen(bad[i]), &publisher, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_new(NULL, 0, &publisher, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_new("{}", 2, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_new("{}", 2, (dgo_publisher *)1, NULL));
  const char *nowhere = "{\"block_size\":4,\"kv_events\":\"ipc:///nowhere/x\"}";
  STATUS(DGO_CANNOT_CONNECT, dgo_publisher_new(nowhere, strlen(nowhere), &publisher, NULL));
  CHECK(publisher == 7);
}

static void with(dgo_publisher publisher, dgo_status want) {
  dgo_kv_event event = stored(1);
  dgo_buffer buffer = {.struct_size = sizeof buffer};
  PUBLISH(want, publisher, event);
  STATUS(want, dgo_publisher_info(publisher, &buffer, NULL));
}

static void handles(void) {
  dgo_publisher publisher = new_publisher("");
  with(publisher + 1, DGO_BAD_HANDLE);
  with(0, DGO_BAD_HANDLE);
  with(UINT64_MAX, DGO_BAD_HANDLE);
  STATUS(DGO_BAD_HANDLE, dgo_router_close(publisher, NULL));
  STATUS(DGO_BAD_HANDLE, dgo_publisher_close(publisher + 1, NULL));
  STATUS(DGO_OK, dgo_publisher_close(publisher, NULL));
  STATUS(DGO_OK, dgo_publisher_close(publisher, NULL));
  STATUS(DGO_OK, dgo_publisher_close(0, NULL));
  with(publisher, DGO_CLOSED);
}

static void wrong_use(void) {
  dgo_publisher publisher = new_publisher(",\"dp_start\":3,\"dp_size\":2");
  dgo_kv_event good = stored(2), e;
  size_t size = sizeof e;
  STATUS(DGO_WORKER_NOT_FOUND, dgo_publisher_publish(publisher, 2, &good, size, 1, NULL));
  STATUS(DGO_WORKER_NOT_FOUND, dgo_publisher_publish(publisher, UINT32_MAX, &good, size, 1, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_publish(publisher, 3, &good, size - 1, 1, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_publish(publisher, 3, &good, size, 0, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_publish(publisher, 3, NULL, size, 1, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_publish(publisher, 3, (dgo_kv_event *)8, size, 1, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_publish(publisher, 3, &good, size, SIZE_MAX, NULL));
#define WRONG(change)                                                                          \
  e = good;                                                                                    \
  e.change;                                                                                    \
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_publish(publisher, 3, &e, size, 1, NULL))
  WRONG(kind = 0);
  WRONG(kind = 4);
  WRONG(flags = 4);
  WRONG(n_blocks = 0);
  WRONG(n_blocks = 1);
  WRONG(n_blocks = SIZE_MAX);
  WRONG(block_hashes = NULL);
  WRONG(block_hashes = (const uint64_t *)8);
  WRONG(n_tokens = 7);
  WRONG(n_tokens = 9);
  WRONG(n_tokens = SIZE_MAX);
  WRONG(tokens = NULL);
  WRONG(tokens = (const uint32_t *)((const char *)tokens + 1));
  WRONG(block_size = 0);
  WRONG(block_size = 8);
  WRONG(flags = DGO_EVENT_EAGLE);
  WRONG(lora_name.size = 5);
  WRONG(lora_name = dgo_text("\xff"));
  WRONG(cache_salt.size = SIZE_MAX);
  WRONG(medium = dgo_text("TAPE"));
  WRONG(block_mm_infos = dgo_text("{}"));
  WRONG(block_mm_infos = dgo_text("[null]"));
  e = good;
  e.flags = DGO_EVENT_PARENT;
  e.parent_hash = 5;
  STATUS(DGO_EVENT_REFUSED, dgo_publisher_publish(publisher, 3, &e, size, 1, NULL));
  uint64_t twice[2] = {9, 9};
  e = good;
  e.block_hashes = twice;
  STATUS(DGO_EVENT_REFUSED, dgo_publisher_publish(publisher, 3, &e, size, 1, NULL));
  dgo_buffer buffer = {.struct_size = sizeof buffer};
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_info(publisher, NULL, NULL));
  STATUS(DGO_OK, dgo_publisher_info(publisher, &buffer, NULL));
  CHECK(strstr(buffer.data, "\"dp_rank\":4") != NULL && strstr(buffer.data, "\"stored\":0") != NULL);
  CHECK(strstr(buffer.data, "\"refused\":4") != NULL);
  dgo_buffer_free(&buffer);
  STATUS(DGO_OK, dgo_publisher_close(publisher, NULL));

  publisher = new_publisher(",\"engine\":{\"kv_events\":\"tcp://127.0.0.1:1\"}");
  STATUS(DGO_INVALID_ARGUMENT, dgo_publisher_publish(publisher, 0, &good, size, 1, NULL));
  STATUS(DGO_OK, dgo_publisher_info(publisher, &buffer, NULL));
  CHECK(strstr(buffer.data, "\"engine\":{\"state\":") != NULL);
  dgo_buffer_free(&buffer);
  STATUS(DGO_OK, dgo_publisher_close(publisher, NULL));
}

/* member: the text of a JSON member, where the value is a string without escapes. */
static void member(const char *json, const char *name, char *room, size_t size) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\":\"", name);
  const char *at = strstr(json, key);
  CHECK(at != NULL);
  at += strlen(key);
  size_t n = strcspn(at, "\"");
  CHECK(n < size);
  memcpy(room, at, n);
  room[n] = 0;
}

/* overlap: wait until the router knows that the worker holds so many blocks of the prompt. */
static void overlap(dgo_router router, uint32_t want) {
  for (int i = 0; i < 2000; i++) {
    dgo_choice choice = {.struct_size = sizeof choice};
    STATUS(DGO_OK, dgo_router_best_worker(router, tokens, 8, NULL, &choice, NULL));
    CHECK(choice.worker_id == WORKER);
    if (choice.overlap_blocks == want) return;
    usleep(5000);
  }
  fprintf(stderr, "never %u blocks\n", want);
  exit(1);
}

static void followed(void) {
  dgo_publisher publisher = new_publisher("");
  dgo_kv_event e = stored(2);
  PUBLISH(DGO_OK, publisher, e); /* before anybody listens */
  dgo_buffer buffer = {.struct_size = sizeof buffer};
  STATUS(DGO_OK, dgo_publisher_info(publisher, &buffer, NULL));
  char events[64], query[64];
  member(buffer.data, "kv_events", events, sizeof events);
  member(buffer.data, "query", query, sizeof query);
  dgo_buffer_free(&buffer);

  dgo_router router;
  STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &router, NULL));
  dgo_worker worker = {.struct_size = sizeof worker};
  worker.worker_id = WORKER;
  worker.kv_events = dgo_text(events);
  worker.query = dgo_text(query);
  STATUS(DGO_OK, dgo_router_add_worker(router, &worker, NULL));
  overlap(router, 2);

  dgo_kv_event gone = {0};
  gone.kind = DGO_EVENT_REMOVED;
  gone.block_hashes = hashes + 1;
  gone.n_blocks = 1;
  dgo_kv_event batch[3] = {e, gone, gone}; /* stored twice by now, so removed twice */
  STATUS(DGO_OK, dgo_publisher_publish(publisher, 0, batch, sizeof batch[0], 2, NULL));
  STATUS(DGO_OK, dgo_publisher_publish(publisher, 0, batch + 2, sizeof batch[0], 1, NULL));
  overlap(router, 1);
  dgo_kv_event all = {0};
  all.kind = DGO_EVENT_CLEARED;
  PUBLISH(DGO_OK, publisher, all);
  overlap(router, 0);
  STATUS(DGO_OK, dgo_router_close(router, NULL));
  STATUS(DGO_OK, dgo_publisher_close(publisher, NULL));
}

int main(void) {
  construction();
  handles();
  wrong_use();
  followed();
  return 0;
}
