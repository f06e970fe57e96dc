/* A router saves what it knows; another one loads it, and knows it once the worker is added. */
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static const uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static dgo_router new_router(void) {
  dgo_router router = 0;
  STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &router, NULL));
  return router;
}

static void add(dgo_router router, uint64_t id) {
  dgo_worker worker = {.struct_size = sizeof worker};
  worker.worker_id = id;
  STATUS(DGO_OK, dgo_router_add_worker(router, &worker, NULL));
}

/* known: the blocks of the prompt that the router says a worker holds. */
static uint32_t known(dgo_router router, uint64_t id) {
  dgo_request request = {.struct_size = sizeof request};
  request.flags = DGO_REQUEST_WORKER_ID;
  request.worker_id = id;
  dgo_choice choice = {.struct_size = sizeof choice};
  STATUS(DGO_OK, dgo_router_best_worker(router, tokens, 8, &request, &choice, NULL));
  CHECK(choice.worker_id == id);
  return choice.overlap_blocks;
}

int main(void) {
  char path[] = "/tmp/dynamo-go-XXXXXX";
  int fd = mkstemp(path);
  CHECK(fd >= 0);
  close(fd);

  const uint64_t id = UINT64_MAX - 5;
  uint64_t hashes[2];
  size_t count;
  STATUS(DGO_OK, dgo_compute_block_hashes(tokens, 8, 4, NULL, 0, hashes, 2, &count, NULL));
  char event[256];
  int size = snprintf(event, sizeof event,
                      "{\"event_id\":0,\"data\":{\"stored\":{\"parent_hash\":null,\"blocks\":["
                      "{\"block_hash\":1,\"tokens_hash\":%llu},{\"block_hash\":2,\"tokens_hash\":%llu}]}}}",
                      (unsigned long long)hashes[0], (unsigned long long)hashes[1]);
  dgo_router router = new_router();
  add(router, id);
  STATUS(DGO_OK, dgo_router_apply_event(router, id, event, (size_t)size, 0, NULL));
  CHECK(known(router, id) == 2);
  STATUS(DGO_OK, dgo_router_save(router, path, strlen(path), NULL));
  STATUS(DGO_OK, dgo_router_close(router, NULL));

  size_t ranks = 7;
  dgo_error error = {.struct_size = sizeof error};
  router = new_router();
  STATUS(DGO_OK, dgo_router_load(router, path, strlen(path), &ranks, &error));
  CHECK(ranks == 1);
  add(router, id);
  CHECK(known(router, id) == 2);
  STATUS(DGO_OK, dgo_router_load(router, path, strlen(path), NULL, NULL)); /* the worker is registered, and holds something */
  CHECK(known(router, id) == 2);

  /* Cut short it is refused, and says so. */
  CHECK(truncate(path, 40) == 0);
  dgo_router other = new_router();
  STATUS(DGO_SNAPSHOT_REFUSED, dgo_router_load(other, path, strlen(path), &ranks, &error));
  CHECK(ranks == 1 && strstr(error.message, path) != NULL && strstr(error.message, "ends early") != NULL);
  unlink(path);
  STATUS(DGO_FILE_ERROR, dgo_router_load(other, path, strlen(path), NULL, &error));
  STATUS(DGO_OK, dgo_router_close(router, NULL));
  STATUS(DGO_OK, dgo_router_close(other, NULL));

  /* Without events the choice itself is remembered, if asked for. */
  const char *config = "{\"use_kv_events\":false,\"max_bytes\":33554432}";
  STATUS(DGO_OK, dgo_router_new(4, config, strlen(config), NULL, &router, NULL));
  add(router, 1);
  dgo_request request = {.struct_size = sizeof request};
  dgo_choice choice = {.struct_size = sizeof choice};
  STATUS(DGO_OK, dgo_router_best_worker(router, tokens, 8, &request, &choice, NULL));
  CHECK(known(router, 1) == 0);
  request.flags = DGO_REQUEST_UPDATE_INDEXER;
  STATUS(DGO_OK, dgo_router_best_worker(router, tokens, 8, &request, &choice, NULL));
  CHECK(known(router, 1) == 2);

  dgo_buffer page = {.struct_size = sizeof page};
  STATUS(DGO_OK, dgo_router_metrics(router, &page, NULL));
  CHECK(strstr(page.data, "dynamo_go_decisions_total{outcome=\"chosen\"} 4") != NULL);
  dgo_buffer_free(&page);
  STATUS(DGO_OK, dgo_router_close(router, NULL));
  return 0;
}
