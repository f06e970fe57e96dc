/* follow.c: route by what an engine really holds.
 *
 * A mocker, an engine without a GPU, serves a prompt and publishes what it caches, as vLLM does. The router follows its events
 * over ZeroMQ and finds the prompt there. The library is loaded with dlopen, as a plugin would; route.c links with it.
 *
 * Build and run, from the root of the project:
 *
 *     ./build.sh lib
 *     cc -std=c99 -Wall -Wextra -Werror -Ibuild -o build/follow examples/c/follow.c -ldl
 *     build/follow build/libdynamo_go.so
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_go.h"

/* The functions that are used: dgo.NAME is dgo_NAME. */
#define FUNCTIONS(X)                                                                                                        \
  X(abi_version) X(buffer_free) X(mocker_new) X(mocker_info) X(mocker_generate) X(mocker_close) X(router_new) X(router_close) \
  X(router_add_worker) X(router_best_worker) X(stream_fd) X(stream_next) X(stream_close) X(status_name)

static struct {
#define MEMBER(name) __typeof__(&dgo_##name) name;
  FUNCTIONS(MEMBER)
} dgo;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fail("load", dlerror());
#define RESOLVE(name)                                         \
  {                                                           \
    void *symbol = dlsym(library, "dgo_" #name);              \
    if (symbol == NULL) fail("no function", "dgo_" #name);    \
    memcpy(&dgo.name, &symbol, sizeof symbol); /* C has no cast from data to function */ \
  }
  FUNCTIONS(RESOLVE)
  if (dgo.abi_version() != DGO_ABI_VERSION) fail("load", "the library has another ABI than the header");
}

static dgo_error error = {.struct_size = sizeof error};

static void check(dgo_status status, const char *what) {
  if (status != DGO_OK) fail(what, error.message);
}

/* endpoint: a string member of the mocker's description. A program would use its JSON library. */
static dgo_string endpoint(const dgo_buffer *json, const char *key) {
  dgo_string found = {strstr(json->data, key), 0};
  if (found.data == NULL) fail("no member", key);
  found.data += strlen(key);
  found.size = strcspn(found.data, "\"");
  return found;
}

int main(int argc, char **argv) {
  if (argc != 2) fail("usage", "follow LIBRARY");
  load(argv[1]);
  const char *config = "{\"block_size\":4,\"inter_token_ms\":0}";
  dgo_mocker engine;
  check(dgo.mocker_new(config, strlen(config), &engine, &error), "engine");
  dgo_buffer info = {.struct_size = sizeof info};
  check(dgo.mocker_info(engine, &info, &error), "info");

  dgo_router router;
  check(dgo.router_new(4, NULL, 0, NULL, &router, &error), "router");
  dgo_worker worker = {.struct_size = sizeof worker};
  worker.worker_id = 7;
  worker.kv_events = endpoint(&info, "\"kv_events\":\"");
  worker.replay = endpoint(&info, "\"replay\":\"");
  check(dgo.router_add_worker(router, &worker, &error), "worker");
  dgo.buffer_free(&info);

  /* The engine answers; an event loop would poll the descriptor among its others. */
  const uint32_t prompt[10] = {11, 12, 13, 14, 21, 22, 23, 24, 31, 32};
  dgo_stream answer;
  struct pollfd readable = {.events = POLLIN};
  check(dgo.mocker_generate(engine, prompt, 10, NULL, 0, &answer, &error), "generate");
  check(dgo.stream_fd(answer, &readable.fd, &error), "descriptor");
  dgo_status status;
  do {
    dgo_buffer items = {.struct_size = sizeof items};
    size_t count = 0;
    poll(&readable, 1, -1);
    status = dgo.stream_next(answer, 0, &items, NULL, 64, &count, &error);
    dgo.buffer_free(&items);
  } while (status == DGO_OK || status == DGO_TIMEOUT);
  if (status != DGO_ENDED) fail("answer", dgo.status_name(status));
  check(dgo.stream_close(answer, &error), "close the answer");

  /* Its events come by themselves. */
  dgo_choice choice = {.struct_size = sizeof choice};
  for (int i = 0; choice.overlap_blocks < 2; i++) {
    if (i == 1000) fail("events", "they did not come");
    check(dgo.router_best_worker(router, prompt, 10, NULL, &choice, &error), "best worker");
    nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
  }
  printf("worker %d holds %u blocks of the prompt\n", (int)choice.worker_id, (unsigned)choice.overlap_blocks);
  check(dgo.router_close(router, &error), "close the router");
  check(dgo.mocker_close(engine, &error), "close the engine");
  return 0;
}
