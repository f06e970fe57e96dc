/* Six requests on two workers that take one each: every release lets exactly one go, in order; the descriptor tells which. */
#include <poll.h>

#include "check.h"

static const uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static int readable(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, 0) == 1;
}

static uint64_t submit(dgo_router router, const char *id, dgo_choice *choice) {
  dgo_request request = {.struct_size = sizeof request};
  request.request_id = dgo_text(id);
  uint64_t ticket = 99;
  STATUS(DGO_OK, dgo_router_submit(router, tokens, 8, &request, choice, &ticket, NULL));
  return ticket;
}

static void hostile(dgo_router router, uint64_t ticket) {
  dgo_choice choice = {.struct_size = sizeof choice};
  uint64_t tickets[2];
  size_t count;
  int32_t done;
  dgo_request request = {.struct_size = sizeof request};
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_submit(router, tokens, 8, NULL, NULL, &ticket, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_submit(router, tokens, 8, NULL, &choice, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_wait(router, ticket, 0, NULL, &done, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_wait(router, ticket, 0, &choice, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_wait(router, ticket, DGO_WAIT_MS_MAX + 1, &choice, &done, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_wait(router, 0, 0, &choice, &done, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_cancel(router, UINT64_MAX, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_ready_fd(router, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_ready(router, tickets, 2, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_ready(router, NULL, 2, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_ready(router, tickets, 0, &count, NULL));
  request.priority_jump = 0.0 / 0.0;
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_submit(router, tokens, 8, &request, &choice, &ticket, NULL));
  request.priority_jump = 0;
  request.n_shared_ranges = 1;
  STATUS(DGO_INVALID_ARGUMENT, dgo_router_submit(router, tokens, 8, &request, &choice, &ticket, NULL));
  request.n_shared_ranges = 0;
  request.flags = DGO_REQUEST_TIMEOUT;
  STATUS(DGO_TIMEOUT, dgo_router_submit(router, tokens, 8, &request, &choice, &ticket, NULL));
  STATUS(DGO_TIMEOUT, dgo_router_best_worker(router, tokens, 8, &request, &choice, NULL));
}

int main(void) {
  static const char config[] = "{\"router_queue_threshold\":0}";
  dgo_router router;
  STATUS(DGO_OK, dgo_router_new(4, config, sizeof config - 1, NULL, &router, NULL));
  for (uint64_t id = 0; id < 2; id++) {
    dgo_string adapter = dgo_text("lora");
    dgo_worker worker = {.struct_size = sizeof worker};
    worker.worker_id = id;
    worker.adapters = &adapter;
    worker.n_adapters = 1;
    STATUS(DGO_OK, dgo_router_add_worker(router, &worker, NULL));
  }
  int fd = -1;
  STATUS(DGO_OK, dgo_router_ready_fd(router, &fd, NULL));
  uint64_t ready[4];
  size_t count;
  STATUS(DGO_OK, dgo_router_ready(router, ready, 4, &count, NULL));
  CHECK(count == 0 && !readable(fd));

  static const char *ids[] = {"0", "1", "2", "3", "4", "5"};
  uint64_t tickets[6];
  dgo_choice choice = {.struct_size = sizeof choice};
  for (int i = 0; i < 6; i++) tickets[i] = submit(router, ids[i], &choice);
  CHECK(tickets[0] == 0 && tickets[1] == 0 && tickets[2] != 0 && tickets[5] != 0);
  hostile(router, tickets[2]);

  STATUS(DGO_OK, dgo_router_cancel(router, tickets[3], NULL)); /* nobody waits behind it */
  for (int i = 0; i < 3; i++) {
    static const int next[] = {2, 4, 5};
    int32_t done = -1;
    STATUS(DGO_OK, dgo_router_wait(router, tickets[next[i]], 5, &choice, &done, NULL));
    CHECK(done == 0);
    if (i == 1)
      STATUS(DGO_OK, dgo_router_mark_prefill_complete(router, ids[1], 1, NULL));
    else
      STATUS(DGO_OK, dgo_router_free(router, ids[i], 1, NULL));
    CHECK(readable(fd));
    STATUS(DGO_OK, dgo_router_ready(router, ready, 1, &count, NULL));
    CHECK(count == 1 && ready[0] == tickets[next[i]] && !readable(fd));
    STATUS(DGO_OK, dgo_router_wait(router, ready[0], 0, &choice, &done, NULL));
    CHECK(done == 1 && choice.worker_id < 2);
    STATUS(DGO_INVALID_ARGUMENT, dgo_router_wait(router, ready[0], 0, &choice, &done, NULL));
  }
  STATUS(DGO_REQUEST_NOT_FOUND, dgo_router_free(router, ids[3], 1, NULL));

  uint64_t last = submit(router, "last", &choice);
  STATUS(DGO_OK, dgo_router_close(router, NULL));
  int32_t done;
  STATUS(DGO_CLOSED, dgo_router_wait(router, last, 0, &choice, &done, NULL));
  return 0;
}
