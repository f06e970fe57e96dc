/* Two routers: what one books loads the other, until it is freed. */
#include <unistd.h>

#include "check.h"

static const uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static dgo_router start(const char *own, const char *other) {
  dgo_router router;
  STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &router, NULL));
  dgo_worker worker = {.struct_size = sizeof worker};
  STATUS(DGO_OK, dgo_router_add_worker(router, &worker, NULL));
  char with[512];
  int size = snprintf(with, sizeof with, "{\"bind\":\"%s\",\"connect\":[\"%s\",\"%s\"],\"peer_timeout_secs\":0.5}", own, own, other);
  dgo_buffer joined = {.struct_size = sizeof joined};
  STATUS(DGO_OK, dgo_router_replicate(router, with, (size_t)size, &joined, NULL));
  CHECK(strstr(joined.data, own) != NULL);
  dgo_buffer_free(&joined);
  return router;
}

/* sees: wait until the worker of a router has so many requests and prompt tokens. */
static void sees(dgo_router router, uint32_t requests, int64_t prompt_tokens) {
  for (;;) {
    dgo_potential_load row;
    size_t count;
    STATUS(DGO_OK, dgo_router_get_potential_loads(router, NULL, 0, NULL, &row, sizeof row, 1, &count, NULL));
    if (row.active_requests == requests && row.potential_prefill_tokens == prompt_tokens) return;
    usleep(1000);
  }
}

static void listens(dgo_router router, const char *what) {
  for (int found = 0; !found; usleep(1000)) {
    dgo_buffer stats = {.struct_size = sizeof stats};
    STATUS(DGO_OK, dgo_router_stats(router, &stats, NULL));
    found = strstr(stats.data, what) != NULL;
    dgo_buffer_free(&stats);
  }
}

int main(void) {
  char one[64], two[64];
  snprintf(one, sizeof one, "ipc:///tmp/dgo-%d-one", (int)getpid());
  snprintf(two, sizeof two, "ipc:///tmp/dgo-%d-two", (int)getpid());
  dgo_router a = start(one, two), b = start(two, one);
  listens(a, "\"peers_listening\":2");
  listens(b, "\"peers_listening\":2");
  dgo_request request = {.struct_size = sizeof request};
  request.request_id = dgo_text("r");
  dgo_choice choice = {.struct_size = sizeof choice};
  STATUS(DGO_OK, dgo_router_best_worker(a, tokens, 8, &request, &choice, NULL));
  sees(b, 1, 8);
  STATUS(DGO_DUPLICATE_REQUEST, dgo_router_best_worker(b, tokens, 8, &request, &choice, NULL));
  STATUS(DGO_OK, dgo_router_mark_prefill_complete(a, "r", 1, NULL));
  sees(b, 1, 0);
  STATUS(DGO_OK, dgo_router_free(a, "r", 1, NULL));
  sees(b, 0, 0);
  request.request_id = dgo_text("left behind");
  STATUS(DGO_OK, dgo_router_best_worker(a, tokens, 8, &request, &choice, NULL));
  sees(b, 1, 8);
  STATUS(DGO_OK, dgo_router_close(a, NULL));
  sees(b, 0, 0);
  STATUS(DGO_OK, dgo_router_close(b, NULL));
  return 0;
}
