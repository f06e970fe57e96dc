/* What the generated program of calls_test.go calls with: live, closed and foreign handles, memory that is right and wrong. */
#ifndef CALLS_H
#define CALLS_H

#include <limits.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define LOW(type, address) ((type *)(uintptr_t)(address))
#define ODD(type, memory) ((type *)(void *)((char *)(memory) + 1))

enum { MOST_PARAMETERS = 16, ROOM = 1 << 16, HUGE = 10 << 20 };

static char path[512];          /* of a file that may be written */
static char engines[512];       /* of one of engines, without any */
static char *nowhere;           /* a page that faults */
static char *huge;              /* 10 MB of 'a' */
static uint64_t memory[MOST_PARAMETERS][ROOM / 8];
static const uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static const uint64_t hashes[8] = {1, 2, 3, 4, 5, 6, 7, 8};

typedef struct {
  uint64_t live, closed;
} handles;

static handles router, stream, mocker, publisher, radix_tree, runtime, server;
static dgo_router waiting, bystander; /* one whose requests wait; one that nothing may touch */
static uint64_t ticket;
static dgo_status last; /* of the latest call; DGO_INTERNAL before the first of a function */

static const char *const mocker_config =
    "{\"inter_token_ms\":0,\"prefill_tokens_per_second\":1e9,\"block_size\":1024,\"blocks\":1000,\"max_model_len\":500000,\"replay\":\"\","
    "\"buffer_steps\":16}";
static const char *const publisher_config = "{\"worker_id\":1,\"block_size\":4,\"kv_events\":\"tcp://127.0.0.1:0\",\"buffer_steps\":16}";

static const char *const server_config =
    "{\"listen\":\"127.0.0.1:0\",\"engines\":[\"http://127.0.0.1:1,none\"],\"tokenizer\":\"host\"}";

/* Of the runtime: its notices, a service of it and a client, calls, and a router. */
static dgo_stream notices;
static uint64_t service, client, running, asked, ending, engine = 77;
static uint64_t mocked = 1000; /* the next worker of dgo_runtime_mocker */
static dgo_router routed;

static void add(dgo_router r, uint64_t id) {
  dgo_worker worker = {.struct_size = sizeof worker};
  worker.worker_id = id;
  STATUS(DGO_OK, dgo_router_add_worker(r, &worker, NULL));
}

static void add_2(void) { add(router.live, 2); }

static void new_router(void) {
  STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &router.live, NULL));
  add(router.live, 1);
  STATUS(DGO_OK, dgo_router_save(router.live, path, strlen(path), NULL));
}

static void new_mocker(void) { STATUS(DGO_OK, dgo_mocker_new(mocker_config, strlen(mocker_config), &mocker.live, NULL)); }

static void new_publisher(void) {
  STATUS(DGO_OK, dgo_publisher_new(publisher_config, strlen(publisher_config), &publisher.live, NULL));
}

static void new_server(void) { STATUS(DGO_OK, dgo_serve_new(server_config, strlen(server_config), &server.live, NULL)); }

static void new_radix_tree(void) { STATUS(DGO_OK, dgo_radix_tree_new(&radix_tree.live, NULL)); }

static void new_stream(void) {
  const char *options = "{\"max_tokens\":40000,\"response_buffer_size\":1000}";
  STATUS(DGO_OK, dgo_stream_close(stream.live, NULL));
  STATUS(DGO_OK, dgo_mocker_generate(mocker.live, tokens, 8, options, strlen(options), &stream.live, NULL));
}

/* more: the stream gives items, unless it gave the last one. */
static void more(void) {
  if (stream.live == 0 || last == DGO_ENDED || last == DGO_CANCELLED || last == DGO_DISCONNECTED) new_stream();
}

static void book_in(dgo_router r, const char *id) {
  dgo_request request = {.struct_size = sizeof request};
  request.request_id = dgo_text(id);
  dgo_choice choice = {.struct_size = sizeof choice};
  STATUS(DGO_OK, dgo_router_best_worker(r, tokens, 8, &request, &choice, NULL));
}

static void book(void) { book_in(router.live, "a"); }
static void unbook(void) { dgo_router_free(router.live, "a", 1, NULL); }

/* wait_one: a request waits behind another one; served: the one before it ends. */
static void wait_one(void) {
  dgo_request request = {.struct_size = sizeof request};
  request.request_id = dgo_text("next");
  dgo_choice choice = {.struct_size = sizeof choice};
  book_in(waiting, "busy");
  STATUS(DGO_OK, dgo_router_submit(waiting, tokens, 8, &request, &choice, &ticket, NULL));
  CHECK(ticket != 0);
}

static void served(void) {
  wait_one();
  STATUS(DGO_OK, dgo_router_free(waiting, "busy", 4, NULL));
}

/* idle: nobody waits any more. */
static void idle(void) {
  dgo_router_cancel(waiting, ticket, NULL);
  dgo_router_free(waiting, "busy", 4, NULL);
  dgo_router_free(waiting, "next", 4, NULL);
}

/* hear: take notices until one is of a kind; requests that nobody wants are answered. 0: none came. */
static uint64_t hear(uint32_t kind, uint32_t timeout_ms) {
  for (uint64_t found = 0;;) {
    dgo_buffer items = {.struct_size = sizeof items};
    size_t ends[64], count;
    if (dgo_stream_next(notices, found == 0 ? timeout_ms : 0, &items, ends, 64, &count, NULL) != DGO_OK) return found;
    for (size_t i = 0, start = 0; i < count; start = ends[i++]) {
      dgo_notice notice;
      memcpy(&notice, items.data + start, sizeof notice);
      if (notice.kind == kind && found == 0)
        found = notice.id;
      else if (notice.kind == DGO_NOTICE_REQUEST)
        dgo_runtime_answer(runtime.live, notice.id, NULL, 0, DGO_ANSWER_END, NULL, NULL);
    }
    dgo_buffer_free(&items);
  }
}

/* stop: a call ends, if it is one, before the next begins, so that none pile up. Who serves it ends it too, or it would wait for ever. */
static void stop(uint64_t call) {
  if (dgo_runtime_cancel(runtime.live, call, DGO_CANCEL_KILL, NULL) == DGO_OK) hear(DGO_NOTICE_ENDED, DGO_WAIT_MS_MAX);
}

static void end_call(void) {
  stop(memory[6][0]); /* where dgo_runtime_call wrote */
  stop(memory[8][0]); /* and dgo_router_generate */
}

static void end_service(void) {
  if (dgo_runtime_end(runtime.live, memory[5][0], DGO_CANCEL_KILL, NULL) == DGO_OK) CHECK(hear(DGO_NOTICE_CLOSED, 100) != 0);
  memory[5][0] = 0;
}

static void end_client(void) { dgo_runtime_end(runtime.live, memory[3][0], 0, NULL); }

static void call(void) {
  hear(0, 0);
  STATUS(DGO_OK, dgo_runtime_call(runtime.live, client, "\xc0", 1, NULL, 0, &running, NULL));
}

/* again: the call before went as it should, so what it was about can serve for some more. */
static int again(void) {
  static unsigned used;
  return (last == DGO_OK || last == DGO_BAD_HANDLE) && ++used % 64 != 0;
}

/* a_call: one is there that runs. */
static void a_call(void) {
  if (again()) return;
  stop(running);
  call();
}

/* ask: a request is there that came and is not answered yet, or not whole. */
static void ask(void) {
  if (again()) return;
  dgo_runtime_answer(runtime.live, asked, NULL, 0, DGO_ANSWER_END, NULL, NULL); /* the one before */
  STATUS(DGO_OK, dgo_runtime_list(runtime.live, service, 1, NULL));
  do call();
  while ((asked = hear(DGO_NOTICE_REQUEST, 100)) == 0);
}

static void another_client(void) { STATUS(DGO_OK, dgo_runtime_client(runtime.live, "a.b.c", 5, &ending, NULL)); }

/* An engine that is not there: it is asked again and again, and that is all. */
static void end_engine(void) { dgo_runtime_remove_engine(runtime.live, "a.b.engines", 11, engine, DGO_CANCEL_KILL, NULL); }

static void an_engine(void) {
  const char *config = "{\"url\":\"http://127.0.0.1:1\",\"worker_id\":77}";
  uint64_t id;
  end_engine();
  STATUS(DGO_OK, dgo_runtime_add_engine(runtime.live, "a.b.engines", 11, config, strlen(config), &id, NULL));
  CHECK(id == engine);
}

static void one_engine(void) {
  if (!again()) an_engine();
}

static void end_another(void) { dgo_runtime_end(runtime.live, ending, 0, NULL); }

static void take_back(void) { dgo_runtime_model(runtime.live, "a.b.c", 5, 1, NULL, 0, NULL); }

static void new_runtime(void) {
  const char *config = "{\"discovery\":\"mem\",\"environment\":{\"DYN_TCP_RPC_HOST\":\"127.0.0.1\",\"DYN_TCP_RESPONSE_STREAM_HOST\":\"127.0.0.1\"}}";
  STATUS(DGO_OK, dgo_router_close(routed, NULL));
  STATUS(DGO_OK, dgo_stream_close(notices, NULL));
  STATUS(DGO_OK, dgo_runtime_new(config, strlen(config), &runtime.live, &notices, NULL));
  STATUS(DGO_OK, dgo_runtime_serve(runtime.live, "a.b.c", 5, NULL, 0, &service, NULL));
  STATUS(DGO_OK, dgo_runtime_client(runtime.live, "a.b.c", 5, &client, NULL));
  STATUS(DGO_OK, dgo_runtime_router(runtime.live, "a.b.c", 5, 4, NULL, 0, &routed, NULL));
}

/* renew: what was closed is there again. */
static void renew(void) {
  dgo_buffer buffer = {.struct_size = sizeof buffer};
  size_t count;
  int fd;
  if (dgo_router_stats(router.live, &buffer, NULL) != DGO_OK) new_router();
  dgo_buffer_free(&buffer);
  if (dgo_mocker_info(mocker.live, &buffer, NULL) != DGO_OK) new_mocker();
  dgo_buffer_free(&buffer);
  if (dgo_publisher_info(publisher.live, &buffer, NULL) != DGO_OK) new_publisher();
  dgo_buffer_free(&buffer);
  if (dgo_radix_tree_find_matches(radix_tree.live, NULL, 0, NULL, sizeof(dgo_match), 0, &count, NULL) != DGO_OK) new_radix_tree();
  if (dgo_stream_fd(stream.live, &fd, NULL) != DGO_OK) new_stream();
  if (dgo_serve_info(server.live, &buffer, NULL) != DGO_OK) new_server();
  dgo_buffer_free(&buffer);
  if (dgo_runtime_info(runtime.live, &buffer, NULL) != DGO_OK) new_runtime();
  dgo_buffer_free(&buffer);
  hear(0, 0);
}

static void begin(const char *directory) {
  snprintf(path, sizeof path, "%s/snapshot", directory);
  snprintf(engines, sizeof engines, "%s/engines.json", directory);
  FILE *file = fopen(engines, "w");
  CHECK(file != NULL && fputs("{\"engines\": []}", file) >= 0 && fclose(file) == 0);
  nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  huge = malloc(HUGE);
  CHECK(nowhere != MAP_FAILED && huge != NULL);
  memset(huge, 'a', HUGE);
  renew();
  router.closed = router.live, mocker.closed = mocker.live, publisher.closed = publisher.live;
  radix_tree.closed = radix_tree.live, stream.closed = stream.live, runtime.closed = runtime.live;
  server.closed = server.live;
  STATUS(DGO_OK, dgo_stream_close(stream.live, NULL));
  STATUS(DGO_OK, dgo_router_close(router.live, NULL));
  STATUS(DGO_OK, dgo_mocker_close(mocker.live, NULL));
  STATUS(DGO_OK, dgo_publisher_close(publisher.live, NULL));
  STATUS(DGO_OK, dgo_radix_tree_close(radix_tree.live, NULL));
  STATUS(DGO_OK, dgo_runtime_close(runtime.live, NULL));
  STATUS(DGO_OK, dgo_serve_close(server.live, NULL));
  renew();
  const char *queue = "{\"router_queue_threshold\":0}";
  STATUS(DGO_OK, dgo_router_new(4, queue, strlen(queue), NULL, &waiting, NULL));
  add(waiting, 1);
  STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &bystander, NULL));
  add(bystander, 42);
}

/* untouched: another router is as it was. */
static void untouched(void) {
  dgo_choice choice = {.struct_size = sizeof choice};
  STATUS(DGO_OK, dgo_router_best_worker(bystander, tokens, 8, NULL, &choice, NULL));
  CHECK(choice.worker_id == 42 && choice.overlap_blocks == 0);
}

static uint64_t noise(void) { /* xorshift */
  static uint64_t state = 88172645463325252u;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

/* resident: bytes of memory that this process holds. */
static long resident(void) {
  FILE *f = fopen("/proc/self/statm", "r");
  long total, pages;
  CHECK(f != NULL && fscanf(f, "%ld %ld", &total, &pages) == 2);
  fclose(f);
  return pages * sysconf(_SC_PAGESIZE);
}

/* A function of the header, called with the alternative of each parameter that is picked; 0 is a right one. */
typedef struct {
  const char *name;
  dgo_status (*call)(const int *pick);
  void (*before)(void), (*after)(void);
  int parameters, wrong; /* wrong: the parameter whose alternative 1 is refused; -1: nothing is */
  int rare;              /* it makes threads or sockets */
  int alternatives[MOST_PARAMETERS];
  dgo_status documented[24]; /* ends with DGO_OK */
} function;

extern const function functions[];

static void once(const function *f, const int *pick) {
  if (f->before != NULL) f->before();
  last = f->call(pick);
  int known = last == DGO_OK || last == DGO_INTERNAL;
  known |= last == DGO_INVALID_ARGUMENT && f->parameters > 0 && pick[f->parameters - 1] != 0; /* of the error */
  for (const dgo_status *s = f->documented; *s != DGO_OK; s++) known |= *s == last;
  if (!known) {
    fprintf(stderr, "%s: %s is not among the statuses of its comment; alternatives", f->name, dgo_status_name(last));
    for (int i = 0; i < f->parameters; i++) fprintf(stderr, " %d", pick[i]);
    fprintf(stderr, "\n");
    exit(1);
  }
  if (f->after != NULL) f->after();
}

/* abuse: each alternative of each parameter alone, then any together. */
static void abuse(const function *f) {
  int pick[MOST_PARAMETERS] = {0};
  last = DGO_INTERNAL;
  once(f, pick);
  if (last != DGO_OK) {
    fprintf(stderr, "%s: the right call gives %s: tell calls_test.go what one is\n", f->name, dgo_status_name(last));
    exit(1);
  }
  renew();
  for (int i = 0; i < f->parameters; i++) {
    for (pick[i] = 1; pick[i] < f->alternatives[i]; pick[i]++) once(f, pick), renew();
    pick[i] = 0;
  }
  for (int n = f->rare ? 40 : 400; n > 0; n--) {
    for (int i = 0; i < f->parameters; i++) pick[i] = noise() % 3 == 0 ? (int)(noise() % (uint64_t)f->alternatives[i]) : 0;
    once(f, pick);
    renew();
  }
  untouched();
}

/* repeat: many calls, and many that are refused, in hardly more memory. The first half as many again warm up, and 100 more: a
 * garbage-collected heap grows to its working size, and an index by huge pages. What counts is the least of what is seen in the last quarter, against the beginning. */
static void repeat(const function *f, int calls, long bound) {
  int pick[MOST_PARAMETERS] = {0};
  if (f->rare) calls /= 100;
  for (int wrong = 0; wrong < 2; wrong++) {
    if (wrong && f->wrong < 0) continue;
    if (wrong) pick[f->wrong] = 1;
    last = DGO_INTERNAL;
    long before = 0, after = LONG_MAX;
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int n = -calls / 2 - 100; n < calls; n++) {
      if (n == 0) before = resident();
      once(f, pick);
      CHECK(wrong == (last != DGO_OK) || f->before == more); /* which ends at some time */
      if (n >= calls / 4 * 3 && n % (calls / 40 + 1) == 0 && resident() < after) after = resident();
    }
    renew();
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double us = ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / 1e3 / (calls * 1.5 + 100);
    printf("%s: %d %s calls, %.1f us each: %+ld KiB\n", f->name, calls, wrong ? "wrong" : "right", us, (after - before) / 1024);
    fflush(stdout);
    if (after - before > bound) exit(1);
  }
}

/* in_child: every call in a forked child says so; here all goes on. */
static void in_child(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    int pick[MOST_PARAMETERS] = {0};
    for (const function *f = functions; f->name != NULL; f++)
      if (f->call(pick) != DGO_FORKED && f->wrong >= 0) {
        fprintf(stderr, "%s is not refused in a forked child\n", f->name);
        _exit(1);
      }
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 3 || argc == 5 || argc == 6);
  begin(argv[1]);
  if (strcmp(argv[2], "fork") == 0) {
    in_child();
    untouched();
    return 0;
  }
  for (const function *f = functions; f->name != NULL; f++) {
    if (argc == 6 && strstr(f->name, argv[5]) == NULL) continue;
    if (argc == 3)
      abuse(f);
    else
      repeat(f, atoi(argv[3]), atol(argv[4]));
  }
  untouched();
  return 0;
}

#endif
