/* What a call costs over the Go call: the time of the cheapest function, and of a query, printed for people. */
#define _POSIX_C_SOURCE 199309L
#include <time.h>

#include "check.h"

enum { WINDOWS = 200, WINDOW = 500 };

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void) {
  dgo_router router;
  STATUS(DGO_OK, dgo_router_new(16, NULL, 0, NULL, &router, NULL));
  dgo_worker worker = {.struct_size = sizeof worker};
  STATUS(DGO_OK, dgo_router_add_worker(router, &worker, NULL));
  dgo_choice choice = {.struct_size = sizeof choice};
  double empty = 1e18, query = 1e18;
  for (int w = 0; w < WINDOWS; w++) {
    double start = now_ns();
    for (int i = 0; i < WINDOW; i++) STATUS(DGO_OK, dgo_compute_sequence_hashes(NULL, 0, NULL, NULL));
    double middle = now_ns();
    for (int i = 0; i < WINDOW; i++) STATUS(DGO_OK, dgo_router_best_worker(router, NULL, 0, NULL, &choice, NULL));
    double end = now_ns();
    if ((middle - start) / WINDOW < empty) empty = (middle - start) / WINDOW;
    if ((end - middle) / WINDOW < query) query = (end - middle) / WINDOW;
  }
  printf("empty call %.0f ns, best_worker of an empty prompt %.0f ns (min, thread CPU)\n", empty, query);
  STATUS(DGO_OK, dgo_router_close(router, NULL));
  return 0;
}
