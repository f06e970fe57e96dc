/* route.c: route a prompt with dynamo-go from C.
 *
 * Three workers join. KV events tell the router that worker 2 holds the first two blocks of our prompt and worker 3 the
 * first one; so the prompt must go to worker 2. The request is booked, followed through its life, and freed.
 *
 * Build and run, from the root of the project:
 *
 *     ./build.sh lib
 *     cc -std=c99 -Wall -Wextra -Werror -Ibuild -o build/route examples/c/route.c -Lbuild -ldynamo_go -Wl,-rpath,$PWD/build
 *     build/route
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "dynamo_go.h"

enum { BLOCK_SIZE = 4, TOKENS = 10 };

/* check: end the program if a call failed. */
static void check(dgo_status status, const dgo_error *error, const char *what) {
  if (status == DGO_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, dgo_status_name(status), error->message);
  exit(1);
}

/* store: say that a worker holds the first n blocks of a prompt. An engine's own events do this; see kv_events and replay
 * of dgo_worker. The engine's names for its blocks are arbitrary: here 100, 101, ... */
static void store(dgo_router router, uint64_t worker_id, const uint64_t *hashes, int n) {
  char event[1024];
  int used = snprintf(event, sizeof event, "{\"event_id\":1,\"data\":{\"stored\":{\"parent_hash\":null,\"blocks\":[");
  for (int i = 0; i < n; i++)
    used += snprintf(event + used, sizeof event - (size_t)used, "%s{\"block_hash\":%d,\"tokens_hash\":%" PRIu64 "}",
                     i == 0 ? "" : ",", 100 + i, hashes[i]);
  used += snprintf(event + used, sizeof event - (size_t)used, "]}}}");
  dgo_error error = {.struct_size = sizeof error};
  check(dgo_router_apply_event(router, worker_id, event, (size_t)used, 0, &error), &error, "apply event");
}

int main(void) {
  dgo_error error = {.struct_size = sizeof error};
  dgo_router router;
  check(dgo_router_new(BLOCK_SIZE, NULL, 0, NULL, &router, &error), &error, "new router");

  for (uint64_t id = 1; id <= 3; id++) {
    dgo_worker worker = {.struct_size = sizeof worker};
    worker.worker_id = id;
    check(dgo_router_add_worker(router, &worker, &error), &error, "add worker");
  }

  const uint32_t prompt[TOKENS] = {11, 12, 13, 14, 21, 22, 23, 24, 31, 32}; /* two full blocks and a part of one */
  uint64_t hashes[TOKENS / BLOCK_SIZE];
  size_t blocks;
  check(dgo_compute_block_hashes(prompt, TOKENS, BLOCK_SIZE, NULL, 0, hashes, TOKENS / BLOCK_SIZE, &blocks, &error), &error,
        "hash");
  store(router, 2, hashes, 2);
  store(router, 3, hashes, 1);

  dgo_request request = {.struct_size = sizeof request};
  request.request_id = dgo_text("request-1");
  dgo_choice choice = {.struct_size = sizeof choice};
  check(dgo_router_best_worker(router, prompt, TOKENS, &request, &choice, &error), &error, "best worker");
  printf("worker %" PRIu64 ", rank %" PRIu32 ", holds %" PRIu32 " of %zu blocks\n", choice.worker_id, choice.dp_rank,
         choice.overlap_blocks, blocks);
  if (choice.worker_id != 2 || choice.overlap_blocks != 2) {
    fprintf(stderr, "the holder of the prefix was not chosen\n");
    return 1;
  }

  dgo_potential_load loads[3];
  size_t ranks;
  check(dgo_router_get_potential_loads(router, NULL, 0, NULL, loads, sizeof loads[0], 3, &ranks, &error), &error, "loads");
  for (size_t i = 0; i < ranks; i++)
    printf("worker %" PRIu64 ": %" PRId64 " tokens to prefill, %" PRId64 " blocks, %" PRIu32 " requests\n", loads[i].worker_id,
           loads[i].potential_prefill_tokens, loads[i].potential_decode_blocks, loads[i].active_requests);

  /* The first token came; the request ended. */
  check(dgo_router_mark_prefill_complete(router, request.request_id.data, request.request_id.size, &error), &error, "mark");
  check(dgo_router_free(router, request.request_id.data, request.request_id.size, &error), &error, "free");
  check(dgo_router_close(router, &error), &error, "close");
  return 0;
}
