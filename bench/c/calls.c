/* What callers from C pay. `calls call` prints the CPU nanoseconds of a dgo_compute_sequence_hashes of one block, the least of many
 * windows; `calls best_worker` of a dgo_router_best_worker that has hardly anything to do; `calls stream` prints the nanoseconds, on the clock, of an item that a mocker generates and a loop drains. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_go.h"

enum { WINDOWS = 400, CALLS = 500, ITEMS = 1000000 };

static void check(dgo_status status) {
  if (status == DGO_OK) return;
  fprintf(stderr, "%s\n", dgo_status_name(status));
  exit(1);
}

static double now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double a_call(int small) {
  dgo_router router;
  uint64_t hash = 1;
  check(dgo_router_new(16, NULL, 0, NULL, &router, NULL));
  dgo_worker worker = {.struct_size = sizeof worker};
  check(dgo_router_add_worker(router, &worker, NULL));
  dgo_choice choice = {.struct_size = sizeof choice};
  double least = 1e18;
  for (int w = 0; w < WINDOWS; w++) {
    double start = now(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < CALLS; i++)
      check(small ? dgo_compute_sequence_hashes(&hash, 1, &hash, NULL) : dgo_router_best_worker(router, NULL, 0, NULL, &choice, NULL));
    double took = (now(CLOCK_THREAD_CPUTIME_ID) - start) / CALLS;
    if (took < least) least = took;
  }
  check(dgo_router_close(router, NULL));
  return least;
}

static double an_item(void) {
  const char *config =
      "{\"inter_token_ms\":0,\"prefill_tokens_per_second\":1e9,\"block_size\":1024,\"blocks\":4096,\"max_model_len\":4000000,\"replay\":\"\"}";
  const char *options = "{\"max_tokens\":1000000,\"response_buffer_size\":1024}";
  const uint32_t prompt[1] = {1};
  static size_t ends[4096];
  dgo_mocker engine;
  dgo_stream answer;
  check(dgo_mocker_new(config, strlen(config), &engine, NULL));
  double start = now(CLOCK_MONOTONIC);
  check(dgo_mocker_generate(engine, prompt, 1, options, strlen(options), &answer, NULL));
  struct pollfd readable = {.events = POLLIN};
  check(dgo_stream_fd(answer, &readable.fd, NULL));
  size_t items = 0, count;
  dgo_status status;
  do {
    dgo_buffer bytes = {.struct_size = sizeof bytes};
    poll(&readable, 1, -1);
    status = dgo_stream_next(answer, 0, &bytes, ends, sizeof ends / sizeof ends[0], &count, NULL);
    if (status == DGO_OK) items += count;
    dgo_buffer_free(&bytes);
  } while (status == DGO_OK || status == DGO_TIMEOUT);
  double took = now(CLOCK_MONOTONIC) - start;
  if (status != DGO_ENDED || items != ITEMS) check(DGO_INTERNAL);
  check(dgo_stream_close(answer, NULL));
  check(dgo_mocker_close(engine, NULL));
  return took / ITEMS;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  printf("%.2f\n", strcmp(argv[1], "stream") == 0 ? an_item() : a_call(strcmp(argv[1], "call") == 0));
  return 0;
}
