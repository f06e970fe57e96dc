/* The library by dlopen: dgo.NAME is dgo_NAME. */
#ifndef LOAD_H
#define LOAD_H

#include <dlfcn.h>

#include "check.h"

#define LOADED(X) X(abi_version) X(router_new) X(router_close) X(router_add_worker) X(router_best_worker) X(router_stats) X(buffer_free) X(mocker_new) X(mocker_close)

static struct {
#define MEMBER(name) __typeof__(&dgo_##name) name;
  LOADED(MEMBER)
} dgo;

/* load: the library's handle. */
static void *load(const char *file) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(library != NULL);
#define RESOLVE(name)                                      \
  {                                                        \
    void *symbol = dlsym(library, "dgo_" #name);           \
    CHECK(symbol != NULL);                                 \
    memcpy(&dgo.name, &symbol, sizeof symbol);             \
  }
  LOADED(RESOLVE)
  CHECK(dgo.abi_version() == DGO_ABI_VERSION);
  return library;
}

/* routes: make a router, and have it choose. */
static void routes(void) {
  const uint32_t tokens[4] = {1, 2, 3, 4};
  dgo_router router = 0;
  CHECK(dgo.router_new(4, NULL, 0, NULL, &router, NULL) == DGO_OK);
  dgo_worker worker = {.struct_size = sizeof worker};
  worker.worker_id = 0xF123456789ABCDEFu;
  CHECK(dgo.router_add_worker(router, &worker, NULL) == DGO_OK);
  dgo_choice choice = {.struct_size = sizeof choice};
  CHECK(dgo.router_best_worker(router, tokens, 4, NULL, &choice, NULL) == DGO_OK && choice.worker_id == 0xF123456789ABCDEFu);
  CHECK(dgo.router_close(router, NULL) == DGO_OK);
}

#endif
