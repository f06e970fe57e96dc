/* A child forked after the library was loaded gets DGO_FORKED from every call; the parent goes on. */
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int main(void) {
  dgo_router router;
  STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &router, NULL));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    dgo_error error = {.struct_size = sizeof error};
    dgo_buffer buffer = {.struct_size = sizeof buffer};
    dgo_router other;
    STATUS(DGO_FORKED, dgo_router_new(4, NULL, 0, NULL, &other, &error));
    CHECK(error.status == DGO_FORKED && strstr(error.message, "spawn") != NULL);
    error.struct_size = 1;
    STATUS(DGO_FORKED, dgo_router_stats(router, &buffer, &error));
    STATUS(DGO_FORKED, dgo_router_close(router, NULL));
    CHECK(dgo_abi_version() == DGO_ABI_VERSION && dgo_version() != NULL && dgo_status_name(DGO_OK) != NULL);
    dgo_buffer_free(&buffer);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  dgo_buffer buffer = {.struct_size = sizeof buffer};
  STATUS(DGO_OK, dgo_router_stats(router, &buffer, NULL));
  dgo_buffer_free(&buffer);
  STATUS(DGO_OK, dgo_router_close(router, NULL));
  return 0;
}
