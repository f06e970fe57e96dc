/* Threads use one router while others open and close routers of their own, and one closes the shared one at last. */
#include <pthread.h>
#include <time.h>

#include "check.h"

enum { MOST_THREADS = 64, ROUNDS = 400 };

static int n_threads = 8;

static dgo_router shared;

static void *work(void *argument) {
  int self = *(int *)argument;
  uint32_t prompt[64];
  for (int i = 0; i < 64; i++) prompt[i] = (uint32_t)(self * 1000 + i);
  for (int round = 0; round < ROUNDS; round++) {
    char id[32];
    snprintf(id, sizeof id, "%d-%d", self, round);
    dgo_request request = {.struct_size = sizeof request};
    request.request_id = dgo_text(id);
    request.lora_name.data = (const char *)(uintptr_t)1; /* empty, as Rust has it: Go must never see that pointer */
    dgo_choice choice = {.struct_size = sizeof choice};
    STATUS(DGO_OK, dgo_router_best_worker(shared, prompt, 64, &request, &choice, NULL));
    STATUS(DGO_DUPLICATE_REQUEST, dgo_router_best_worker(shared, prompt, 64, &request, &choice, NULL));
    STATUS(DGO_OK, dgo_router_mark_prefill_complete(shared, id, strlen(id), NULL));
    STATUS(DGO_OK, dgo_router_free(shared, id, strlen(id), NULL));
    if (round % 20 != 0) continue;
    dgo_router own;
    STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &own, NULL));
    STATUS(DGO_NO_WORKERS, dgo_router_best_worker(own, prompt, 64, NULL, &choice, NULL));
    STATUS(DGO_OK, dgo_router_close(own, NULL));
  }
  return NULL;
}

/* until_closed: call until the shared router is closed under us. */
static void *until_closed(void *unused) {
  (void)unused;
  dgo_choice choice = {.struct_size = sizeof choice};
  const uint32_t prompt[4] = {1, 2, 3, 4};
  dgo_status status;
  do {
    status = dgo_router_best_worker(shared, prompt, 4, NULL, &choice, NULL);
  } while (status == DGO_OK);
  STATUS(DGO_CLOSED, status);
  return NULL;
}

/* burst: one request of many that come at once. */
static void *burst(void *argument) {
  int self = *(int *)argument;
  uint32_t prompt[40];
  for (int i = 0; i < 40; i++) prompt[i] = (uint32_t)(self * 1000 + i);
  char id[16];
  snprintf(id, sizeof id, "%d", self);
  dgo_request request = {.struct_size = sizeof request};
  request.request_id = dgo_text(id);
  dgo_choice choice = {.struct_size = sizeof choice};
  STATUS(DGO_OK, dgo_router_best_worker(shared, prompt, 40, &request, &choice, NULL));
  return NULL;
}

/* spread: 64 requests at once on 8 equal workers, 7 to 9 each. */
static void spread(void) {
  enum { REQUESTS = 64, WORKERS = 8 };
  STATUS(DGO_OK, dgo_router_new(16, NULL, 0, NULL, &shared, NULL));
  for (uint64_t id = 0; id < WORKERS; id++) {
    dgo_worker worker = {.struct_size = sizeof worker};
    worker.worker_id = id;
    STATUS(DGO_OK, dgo_router_add_worker(shared, &worker, NULL));
  }
  pthread_t threads[REQUESTS];
  int numbers[REQUESTS];
  for (int i = 0; i < REQUESTS; i++) {
    numbers[i] = i;
    CHECK(pthread_create(&threads[i], NULL, burst, &numbers[i]) == 0);
  }
  for (int i = 0; i < REQUESTS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  dgo_potential_load loads[WORKERS];
  size_t count;
  STATUS(DGO_OK, dgo_router_get_potential_loads(shared, NULL, 0, NULL, loads, sizeof loads[0], WORKERS, &count, NULL));
  for (int i = 0; i < WORKERS; i++) CHECK(loads[i].active_requests >= 7 && loads[i].active_requests <= 9);
  STATUS(DGO_OK, dgo_router_close(shared, NULL));
}

static void once(void) {
  spread();
  STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &shared, NULL));
  for (uint64_t id = 0; id < 4; id++) {
    dgo_worker worker = {.struct_size = sizeof worker};
    worker.worker_id = id;
    STATUS(DGO_OK, dgo_router_add_worker(shared, &worker, NULL));
  }
  pthread_t threads[MOST_THREADS];
  int numbers[MOST_THREADS];
  for (int i = 0; i < n_threads; i++) {
    numbers[i] = i;
    CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
  }
  for (int i = 0; i < n_threads; i++) CHECK(pthread_join(threads[i], NULL) == 0);

  dgo_potential_load loads[4];
  size_t count;
  STATUS(DGO_OK, dgo_router_get_potential_loads(shared, NULL, 0, NULL, loads, sizeof loads[0], 4, &count, NULL));
  CHECK(count == 4);
  for (int i = 0; i < 4; i++) CHECK(loads[i].active_requests == 0 && loads[i].potential_decode_blocks == 0);

  for (int i = 0; i < n_threads; i++) CHECK(pthread_create(&threads[i], NULL, until_closed, NULL) == 0);
  STATUS(DGO_OK, dgo_router_close(shared, NULL));
  for (int i = 0; i < n_threads; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* threads [THREADS SECONDS]: at least once. */
int main(int argc, char **argv) {
  if (argc == 3) n_threads = atoi(argv[1]);
  CHECK(n_threads > 0 && n_threads <= MOST_THREADS);
  time_t end = time(NULL) + (argc == 3 ? atoi(argv[2]) : 0);
  do once();
  while (time(NULL) < end);
  return 0;
}
