/* Every function with NULL, zero, stale and foreign handles, wrong sizes, huge lengths, odd pointers, bad UTF-8 and memory
 * that is not there: a status, the process alive, another router untouched. */
#include <sys/mman.h>

#include "check.h"

#define ODD(type, memory) ((type *)(void *)((char *)(memory) + 1))

static const uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static char *nowhere; /* a page that faults */

static dgo_router new_router(void) {
  dgo_router router = 0;
  STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &router, NULL));
  CHECK(router != 0);
  return router;
}

static void library(void) {
  CHECK(dgo_abi_version() == DGO_ABI_VERSION);
  CHECK(strcmp(dgo_version(), DGO_VERSION) == 0);
  CHECK(strcmp(dgo_status_name(DGO_OK), "OK") == 0);
  CHECK(strcmp(dgo_status_name(DGO_WORKER_ERROR), "WORKER_ERROR") == 0);
  CHECK(dgo_status_name(-1) == NULL && dgo_status_name(24) == NULL && dgo_status_name(INT32_MAX) == NULL);
  dgo_buffer_free(NULL);
  dgo_buffer empty = {.struct_size = sizeof empty};
  dgo_buffer_free(&empty);
}

static void errors(void) {
  dgo_router router;
  dgo_error error = {.struct_size = sizeof error};
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(0, NULL, 0, NULL, &router, &error));
  CHECK(error.status == DGO_INVALID_ARGUMENT && strstr(error.message, "0") != NULL);
  error.struct_size = 8;
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(4, NULL, 0, NULL, &router, &error));
  char memory[sizeof error + 8] = {0};
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(4, NULL, 0, NULL, &router, ODD(dgo_error, memory)));

  /* A message longer than its room is cut between characters: these take three bytes. */
  char id[3000];
  for (size_t i = 0; i + 3 <= sizeof id; i += 3) memcpy(id + i, "\xe2\x82\xac", 3);
  for (size_t shift = 0; shift < 3; shift++) {
    char text[3002] = "xx";
    memcpy(text + shift, id, sizeof id);
    error.struct_size = sizeof error;
    dgo_router live = new_router();
    STATUS(DGO_FILE_ERROR, dgo_router_save(live, text, sizeof id + shift, &error)); /* a name too long for a file */
    size_t n = strlen(error.message);
    CHECK(n > sizeof error.message - 16 && n < sizeof error.message);
    CHECK((error.message[n - 3] & 0xf0) == 0xe0 || (error.message[n - 1] & 0x80) == 0);
    STATUS(DGO_OK, dgo_router_close(live, NULL));
  }

  dgo_error *constant = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(constant != MAP_FAILED);
  constant->struct_size = sizeof *constant;
  CHECK(mprotect(constant, 4096, PROT_READ) == 0);
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_close(12345, constant));
  STATUS(DGO_INVALID_ARGUMENT, dgo_compute_sequence_hashes((void *)nowhere, 1, (void *)nowhere, constant));
  CHECK(munmap(constant, 4096) == 0);
}

static void construction(void) {
  dgo_router router = 7;
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(4, NULL, 0, NULL, NULL, NULL));
  char memory[32] = {0};
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(4, NULL, 0, NULL, ODD(dgo_router, memory), NULL));
  const int64_t sizes[] = {0, -1, INT64_MIN, INT64_MAX, (1 << 20) + 1, (int64_t)1 << 32};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(sizes[i], NULL, 0, NULL, &router, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(4, NULL, 5, NULL, &router, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(4, "", 0, NULL, &router, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(4, "{}", SIZE_MAX, NULL, &router, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(4, "\xff\xfe", 2, NULL, &router, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_new(4, "{}", 2, ODD(uint64_t, memory), &router, NULL));
  STATUS(DGO_NOT_IMPLEMENTED, dgo_router_new(4, "{\"serve_indexer\":true}", 22, NULL, &router, NULL));
  STATUS(DGO_INTERNAL, dgo_router_new(4, nowhere, 8, NULL, &router, NULL)); /* faults, and is caught */
  CHECK(router == 7);
}

/* with: every call on a router handle gives `want`. */
static void with(dgo_router router, dgo_status want) {
  dgo_worker worker = {.struct_size = sizeof worker};
  dgo_request request = {.struct_size = sizeof request};
  dgo_choice choice = {.struct_size = sizeof choice};
  dgo_buffer buffer = {.struct_size = sizeof buffer};
  dgo_potential_load row;
  size_t count;
  STATUS(want, dgo_router_add_worker(router, &worker, NULL));
  STATUS(want, dgo_router_remove_worker(router, 1, NULL));
  STATUS(want, dgo_router_workers(router, &buffer, NULL));
  STATUS(want, dgo_router_apply_event(router, 1, "{}", 2, 0, NULL));
  STATUS(want, dgo_router_best_worker(router, tokens, 8, &request, &choice, NULL));
  uint64_t ticket;
  int32_t done;
  int fd;
  STATUS(want, dgo_router_submit(router, tokens, 8, &request, &choice, &ticket, NULL));
  STATUS(want, dgo_router_wait(router, 1, 0, &choice, &done, NULL));
  STATUS(want, dgo_router_cancel(router, 1, NULL));
  STATUS(want, dgo_router_ready_fd(router, &fd, NULL));
  STATUS(want, dgo_router_ready(router, &ticket, 1, &count, NULL));
  STATUS(want, dgo_router_mark_prefill_complete(router, "a", 1, NULL));
  STATUS(want, dgo_router_free(router, "a", 1, NULL));
  STATUS(want, dgo_router_add_output_block(router, "a", 1, 1, NULL, NULL));
  STATUS(want, dgo_router_get_potential_loads(router, tokens, 8, NULL, &row, sizeof row, 1, &count, NULL));
  STATUS(want, dgo_router_get_overlap_scores(router, tokens, 8, NULL, &buffer, NULL));
  STATUS(want, dgo_router_explain(router, tokens, 8, NULL, &buffer, NULL));
  STATUS(want, dgo_router_dump_events(router, &buffer, NULL));
  STATUS(want, dgo_router_load_events(router, "[]", 2, NULL));
  STATUS(want, dgo_router_save(router, "/dev/null/x", 11, NULL));
  STATUS(want, dgo_router_load(router, "/dev/null", 9, &count, NULL));
  STATUS(want, dgo_router_health(router, &buffer, NULL));
  STATUS(want, dgo_router_stats(router, &buffer, NULL));
  STATUS(want, dgo_router_metrics(router, &buffer, NULL));
  STATUS(want, dgo_router_decisions(router, 0, &buffer, NULL));
  STATUS(want, dgo_router_report_cached_tokens(router, "a", 1, 1, NULL));
  STATUS(want, dgo_router_replicate(router, "{}", 2, &buffer, NULL));
}

static void handles(void) {
  dgo_router closed = new_router();
  STATUS(DGO_OK, dgo_router_close(closed, NULL));
  STATUS(DGO_OK, dgo_router_close(closed, NULL));
  STATUS(DGO_OK, dgo_router_close(0, NULL));
  with(closed, DGO_CLOSED);
  STATUS(DGO_CLOSED, dgo_router_best_worker(closed, NULL, 9, NULL, NULL, NULL)); /* before its arguments are looked at */
  dgo_router live = new_router(); /* in the slot of the closed one */
  with(closed, DGO_CLOSED);
  const dgo_router bad[] = {0, 1, UINT64_MAX, live + 1, live ^ ((uint64_t)3 << 56), live + ((uint64_t)9000 << 32)};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    with(bad[i], DGO_BAD_HANDLE);
    if (bad[i] != 0) STATUS(DGO_BAD_HANDLE, dgo_router_close(bad[i], NULL));
  }
  dgo_buffer buffer = {.struct_size = sizeof buffer};
  size_t count;
  STATUS(DGO_BAD_HANDLE, dgo_stream_next(live, 0, &buffer, NULL, 1, &count, NULL));
  STATUS(DGO_BAD_HANDLE, dgo_stream_close(live, NULL));
  STATUS(DGO_BAD_HANDLE, dgo_mocker_info(live, &buffer, NULL));
  STATUS(DGO_BAD_HANDLE, dgo_mocker_close(live, NULL));
  STATUS(DGO_OK, dgo_stream_close(0, NULL));
  STATUS(DGO_OK, dgo_mocker_close(0, NULL));
  STATUS(DGO_OK, dgo_router_close(live, NULL));
}

static void workers(dgo_router router) {
  dgo_worker worker = {.struct_size = sizeof worker};
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_add_worker(router, NULL, NULL));
  char memory[sizeof worker + 8] = {0};
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_add_worker(router, ODD(dgo_worker, memory), NULL));
#define BAD_WORKER(member, value)                                              \
  do {                                                                         \
    dgo_worker bad = worker;                                                   \
    bad.member = value;                                                        \
    STATUS(DGO_INVALID_ARGUMENT, dgo_router_add_worker(router, &bad, NULL));   \
  } while (0)
  BAD_WORKER(struct_size, 0);
  BAD_WORKER(struct_size, sizeof worker + 8);
  BAD_WORKER(dp_size, UINT32_MAX);
  BAD_WORKER(has_block_size, 1);
  BAD_WORKER(kv_events, dgo_text("nonsense"));
  BAD_WORKER(kv_events, dgo_text(""));
  BAD_WORKER(kv_events, dgo_text("{\"0\":5}"));
  BAD_WORKER(kv_events, dgo_text("{"));
  BAD_WORKER(kv_events, ((dgo_string){NULL, 5}));
  BAD_WORKER(kv_events, ((dgo_string){"tcp://a:1", SIZE_MAX}));
  BAD_WORKER(topic, dgo_text("\xc3"));
  BAD_WORKER(n_taints, 1);
  BAD_WORKER(n_taints, SIZE_MAX);
  BAD_WORKER(n_adapters, 1);
  dgo_string none = {NULL, 0};
  dgo_worker tainted = worker;
  tainted.taints = &none;
  tainted.n_taints = 1;
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_add_worker(router, &tainted, NULL));
  dgo_buffer list = {.struct_size = sizeof list};
  STATUS(DGO_OK, dgo_router_workers(router, &list, NULL));
  CHECK(strcmp(list.data, "[]") == 0 && list.size == 2);
  dgo_buffer_free(&list);
  CHECK(list.data == NULL && list.size == 0);
  dgo_buffer_free(&list);
}

static void results(dgo_router router) {
  dgo_buffer wrong = {.struct_size = 1};
  char memory[64] = {0};
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_workers(router, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_health(router, &wrong, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_stats(router, ODD(dgo_buffer, memory), NULL));
  size_t count = 99;
  dgo_potential_load rows[2];
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_get_potential_loads(router, tokens, 8, NULL, rows, sizeof *rows, 2, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_get_potential_loads(router, tokens, 8, NULL, NULL, sizeof *rows, 2, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_get_potential_loads(router, tokens, 8, NULL, rows, 8, 2, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT,
         dgo_router_get_potential_loads(router, tokens, 8, NULL, rows, sizeof *rows, SIZE_MAX, &count, NULL));
  CHECK(count == 99);
  for (uint64_t id = 0; id < 3; id++) {
    dgo_worker worker = {.struct_size = sizeof worker};
    worker.worker_id = id;
    STATUS(DGO_OK, dgo_router_add_worker(router, &worker, NULL));
  }
  rows[1].worker_id = 77;
  STATUS(DGO_OK, dgo_router_get_potential_loads(router, NULL, 0, NULL, NULL, sizeof *rows, 0, &count, NULL));
  CHECK(count == 3);
  STATUS(DGO_OK, dgo_router_get_potential_loads(router, tokens, 8, NULL, rows, sizeof *rows, 1, &count, NULL));
  CHECK(count == 3 && rows[0].potential_prefill_tokens == 8 && rows[1].worker_id == 77);
}

static void prompts(dgo_router router) {
  dgo_choice choice = {.struct_size = sizeof choice};
  dgo_request request = {.struct_size = sizeof request};
  char memory[sizeof request + 64] = {0};
  STATUS(DGO_OK, dgo_router_best_worker(router, NULL, 0, NULL, &choice, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, tokens, 8, &request, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, NULL, 8, &request, &choice, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, tokens, SIZE_MAX, &request, &choice, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, tokens, DGO_TOKENS_MAX + 1, &request, &choice, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, ODD(uint32_t, memory), 4, &request, &choice, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, tokens, 8, ODD(dgo_request, memory), &choice, NULL));
  STATUS(DGO_INTERNAL, dgo_router_best_worker(router, (const uint32_t *)(void *)nowhere, 64, &request, &choice, NULL));
#define BAD_REQUEST(member, value)                                                               \
  do {                                                                                           \
    dgo_request bad = request;                                                                   \
    bad.member = value;                                                                          \
    STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, tokens, 8, &bad, &choice, NULL)); \
  } while (0)
  BAD_REQUEST(struct_size, 4);
  BAD_REQUEST(flags, 1u << 31);
  BAD_REQUEST(request_id, dgo_text("\x80"));
  BAD_REQUEST(request_id, ((dgo_string){"a", DGO_STRING_MAX + 1}));
  BAD_REQUEST(request_id, ((dgo_string){NULL, 1}));
  BAD_REQUEST(lora_name, dgo_text("\xed\xa0\x80"));
  BAD_REQUEST(cache_namespace, dgo_text("\xff"));
  BAD_REQUEST(block_mm_infos, dgo_text("{}"));
  BAD_REQUEST(n_allowed_worker_ids, 1);
  BAD_REQUEST(allowed_worker_ids, ODD(uint64_t, memory); bad.n_allowed_worker_ids = 1);
  BAD_REQUEST(routing_constraints, dgo_text("[]"));
  BAD_REQUEST(router_config_override, dgo_text("{\"bogus\":1}"));
  BAD_REQUEST(policy_class, dgo_text("\xff"));
  BAD_REQUEST(session_id, dgo_text("\xff"));
  BAD_REQUEST(timeout_seconds, -1; bad.flags = DGO_REQUEST_TIMEOUT);
  choice.struct_size = 0;
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, tokens, 8, &request, &choice, NULL));
}

static void texts(dgo_router router) {
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_free(router, NULL, 0, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_free(router, NULL, 3, NULL));
  STATUS(DGO_REQUEST_NOT_FOUND, dgo_router_free(router, "", 0, NULL));
  STATUS(DGO_REQUEST_NOT_FOUND, dgo_router_free(router, "a\0b", 3, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_free(router, "\xff", 1, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_mark_prefill_complete(router, "a", SIZE_MAX, NULL));
  STATUS(DGO_INTERNAL, dgo_router_free(router, nowhere, 8, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_add_output_block(router, "a", 1, -1, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_add_output_block(router, "a", 1, INT64_MAX, NULL, NULL));
  char memory[32] = {0};
  const double bad[] = {-0.1, 1.1, 0.0 / 0.0};
  dgo_request request = {.struct_size = sizeof request};
  request.request_id = dgo_text("decaying");
  dgo_choice choice = {.struct_size = sizeof choice};
  STATUS(DGO_OK, dgo_router_best_worker(router, tokens, 8, &request, &choice, NULL));
  for (size_t i = 0; i < 3; i++)
    STATUS(DGO_INVALID_ARGUMENT, dgo_router_add_output_block(router, "decaying", 8, 1, &bad[i], NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_apply_event(router, 1, NULL, 0, 0, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_apply_event(router, 1, "{}", 2, 2, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_apply_event(router, 1, "{}", SIZE_MAX, 0, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_load_events(router, NULL, 0, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_load_events(router, "", 0, NULL));
  dgo_buffer result = {.struct_size = sizeof result};
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_replicate(router, NULL, 0, &result, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_replicate(router, "{}", 2, &result, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_replicate(router, "{\"bind\":5}", 10, &result, NULL));
  STATUS(DGO_CANNOT_CONNECT, dgo_router_replicate(router, "{\"bind\":\"tcp://203.0.113.1:5600\"}", 33, &result, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_save(router, NULL, 0, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_save(router, "\xff", 1, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_load(router, NULL, 0, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_load(router, "x", 1, ODD(size_t, memory), NULL));
  STATUS(DGO_FILE_ERROR, dgo_router_save(router, "/dev/null/x", 11, NULL));
  STATUS(DGO_FILE_ERROR, dgo_router_load(router, "", 0, NULL, NULL));
  STATUS(DGO_FILE_ERROR, dgo_router_load(router, "/dev/null", 9, NULL, NULL));
  STATUS(DGO_FILE_ERROR, dgo_router_save(router, "/dev/null", 9, NULL));
  STATUS(DGO_SNAPSHOT_REFUSED, dgo_router_load(router, "/proc/self/exe", 14, NULL, NULL));
  dgo_error error = {.struct_size = sizeof error};
  STATUS(DGO_FILE_ERROR, dgo_router_load(router, "one\0two", 7, NULL, &error));
  CHECK(strstr(error.message, "one\\x00two: invalid argument") != NULL);
  STATUS(DGO_INVALID_ARGUMENT, dgo_config_check(NULL, 0, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_config_check("[", 1, NULL, NULL));
  STATUS(DGO_OK, dgo_config_check("{}", 2, NULL, NULL));
}

/* first_page: what other languages give for an empty array is one; with a length, it is an error. */
static void first_page(void) {
#define LOW(type, address) ((type *)(uintptr_t)(address))
  dgo_router router = new_router();
  dgo_string empty = {LOW(char, 1), 0}, broken = {LOW(char, 1), 4};
  dgo_worker worker = {.struct_size = sizeof worker};
  worker.topic = worker.host = empty;
  worker.taints = LOW(dgo_string, 8);
  STATUS(DGO_OK, dgo_router_add_worker(router, &worker, NULL));
  BAD_WORKER(topic, broken);
  BAD_WORKER(kv_events, broken);
  BAD_WORKER(n_taints, 1);
  worker.taints = &broken;
  BAD_WORKER(n_taints, 1);

  dgo_choice choice = {.struct_size = sizeof choice};
  dgo_request request = {.struct_size = sizeof request};
  request.lora_name = request.cache_namespace = request.policy_class = request.request_id = empty;
  STATUS(DGO_OK, dgo_router_best_worker(router, LOW(uint32_t, 4), 0, &request, &choice, NULL));
  BAD_REQUEST(lora_name, broken);
  BAD_REQUEST(block_mm_infos, broken);
  BAD_REQUEST(allowed_worker_ids, LOW(uint64_t, 8); bad.n_allowed_worker_ids = 1);
  request.allowed_worker_ids = LOW(uint64_t, 8);
  STATUS(DGO_NO_WORKERS, dgo_router_best_worker(router, tokens, 8, &request, &choice, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, LOW(uint32_t, 4), 8, NULL, &choice, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, tokens, 8, LOW(dgo_request, 8), &choice, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, tokens, 8, NULL, LOW(dgo_choice, 4088), NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_best_worker(router, tokens, 8, NULL, &choice, LOW(dgo_error, 4)));
  STATUS(DGO_OK, dgo_router_free(router, LOW(char, 1), 0, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_free(router, LOW(char, 4095), 1, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_stats(router, LOW(dgo_buffer, 8), NULL));
  STATUS(DGO_OK, dgo_compute_sequence_hashes(LOW(uint64_t, 8), 0, LOW(uint64_t, 8), NULL));
  STATUS(DGO_OK, dgo_router_close(router, NULL));
}

static void hashes(void) {
  uint64_t out[2];
  size_t count;
  STATUS(DGO_OK, dgo_compute_block_hashes(tokens, 8, 4, NULL, 0, out, 1, &count, NULL));
  CHECK(count == 2);
  STATUS(DGO_OK, dgo_compute_block_hashes(tokens, 8, 4, NULL, 0, out, 2, &count, NULL));
  CHECK(out[0] == 14643705804678351452u); /* as ai-dynamo-runtime 1.6.1 */
  STATUS(DGO_INVALID_ARGUMENT, dgo_compute_block_hashes(tokens, 8, 0, NULL, 0, out, 2, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_compute_block_hashes(tokens, 8, 4, NULL, 0, NULL, 2, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_compute_block_hashes(tokens, 8, 4, NULL, 0, out, 2, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_compute_block_hashes(tokens, 8, 4, NULL, 0, out, SIZE_MAX, &count, NULL));
  STATUS(DGO_OK, dgo_compute_sequence_hashes(NULL, 0, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_compute_sequence_hashes(out, 2, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_compute_sequence_hashes(NULL, 2, out, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_compute_sequence_hashes(out, SIZE_MAX, out, NULL));
  uint64_t chain[3] = {11, 22, 33};
  STATUS(DGO_OK, dgo_compute_sequence_hashes(chain, 3, chain, NULL));
  CHECK(chain[0] == 11 && chain[1] == 750553365844651409u && chain[2] == 3257565445809651757u);
}

static void engines(void) {
  dgo_buffer buffer = {.struct_size = sizeof buffer};
  dgo_stream events = 0;
  size_t count;
  dgo_mocker mocker = 0;
  STATUS(DGO_INVALID_ARGUMENT, dgo_decode_batch(NULL, 0, NULL, &buffer, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_decode_batch("\xc1", 1, NULL, &buffer, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_decode_batch("\x90", SIZE_MAX, NULL, &buffer, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_decode_batch("\x90", 1, NULL, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_events_open(NULL, 0, NULL, 0, NULL, 0, &events, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_events_open("tcp://h:1", 9, "x", 1, NULL, 0, &events, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_events_open("tcp://h:1", 9, NULL, 0, NULL, 0, NULL, NULL));
  STATUS(DGO_OK, dgo_events_open("tcp://127.0.0.1:1", 17, NULL, 0, NULL, 0, &events, NULL));
  STATUS(DGO_TIMEOUT, dgo_stream_next(events, 0, &buffer, NULL, 1, &count, NULL));
  STATUS(DGO_OK, dgo_stream_close(events, NULL));
  STATUS(DGO_OK, dgo_stream_close(events, NULL));
  STATUS(DGO_CLOSED, dgo_stream_next(events, 0, &buffer, NULL, 1, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_mocker_new("{\"blocks\":0}", 12, &mocker, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_mocker_new(NULL, 0, NULL, NULL));
  STATUS(DGO_OK, dgo_mocker_new(NULL, 0, &mocker, NULL));
  STATUS(DGO_OK, dgo_mocker_info(mocker, &buffer, NULL));
  CHECK(strstr(buffer.data, "\"kv_events\":\"tcp://127.0.0.1:") != NULL && strlen(buffer.data) == buffer.size);
  dgo_buffer_free(&buffer);
  STATUS(DGO_OK, dgo_mocker_close(mocker, NULL));
  STATUS(DGO_OK, dgo_mocker_close(mocker, NULL));
  STATUS(DGO_CLOSED, dgo_mocker_info(mocker, &buffer, NULL));
}

int main(void) {
  nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(nowhere != MAP_FAILED);
  dgo_router bystander = new_router();
  dgo_worker worker = {.struct_size = sizeof worker};
  worker.worker_id = 42;
  STATUS(DGO_OK, dgo_router_add_worker(bystander, &worker, NULL));

  library();
  errors();
  construction();
  handles();
  dgo_router router = new_router();
  workers(router);
  results(router);
  prompts(router);
  texts(router);
  STATUS(DGO_OK, dgo_router_close(router, NULL));
  first_page();
  hashes();
  engines();

  dgo_choice choice = {.struct_size = sizeof choice};
  STATUS(DGO_OK, dgo_router_best_worker(bystander, tokens, 8, NULL, &choice, NULL));
  CHECK(choice.worker_id == 42);
  STATUS(DGO_OK, dgo_router_close(bystander, NULL));
  return 0;
}
