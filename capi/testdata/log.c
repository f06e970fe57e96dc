/* The log: nowhere by default; a stream; standard error. With an argument: what DYN_LOG alone does. Prints what standard error got. */
#include <unistd.h>

#include "check.h"

static dgo_status set(const char *level, dgo_stream *lines) {
  return dgo_log(level, level == NULL ? 0 : strlen(level), lines, NULL);
}

/* work: something that an operator wants to know of: a worker joins whose port is dead, and leaves. */
static void work(void) {
  dgo_router router;
  STATUS(DGO_OK, dgo_router_new(4, NULL, 0, NULL, &router, NULL));
  dgo_worker worker = {.struct_size = sizeof worker};
  worker.worker_id = 18446744073709551557u;
  worker.kv_events = dgo_text("tcp://127.0.0.1:1");
  STATUS(DGO_OK, dgo_router_add_worker(router, &worker, NULL));
  STATUS(DGO_OK, dgo_router_remove_worker(router, worker.worker_id, NULL));
  STATUS(DGO_OK, dgo_router_close(router, NULL));
}

/* gives: wait for a line that has a text. */
static void gives(dgo_stream lines, const char *text) {
  for (;;) {
    dgo_buffer line = {.struct_size = sizeof line};
    size_t count;
    dgo_status status = dgo_stream_next(lines, DGO_WAIT_MS_MAX, &line, NULL, 1, &count, NULL);
    if (status == DGO_TIMEOUT) continue;
    STATUS(DGO_OK, status);
    CHECK(line.data[0] == '{' && line.data[line.size - 1] == '}');
    int found = strstr(line.data, text) != NULL;
    dgo_buffer_free(&line);
    if (found) return;
  }
}

int main(int argc, char **argv) {
  (void)argv;
  work();
  if (argc > 1) return 0;
  dgo_stream lines = 7, next = 7, none = 7;
  STATUS(DGO_INVALID_ARGUMENT, set(NULL, &lines));
  STATUS(DGO_INVALID_ARGUMENT, set("", &lines));
  STATUS(DGO_INVALID_ARGUMENT, set("loud", &lines));
  STATUS(DGO_INVALID_ARGUMENT, set("\xff", &lines));
  STATUS(DGO_INVALID_ARGUMENT, dgo_log("info", 4, (dgo_stream *)1, NULL));
  CHECK(lines == 7);
  STATUS(DGO_OK, set("info", &lines));
  work();
  gives(lines, "\"msg\":\"rank is disconnected\"");
  gives(lines, "\"msg\":\"worker joined\",\"worker_id\":18446744073709551557");
  gives(lines, "\"msg\":\"worker left\"");
  STATUS(DGO_OK, set("error", &next));
  dgo_buffer line = {.struct_size = sizeof line};
  size_t count;
  dgo_status status;
  do status = dgo_stream_next(lines, 0, &line, NULL, 1, &count, NULL), dgo_buffer_free(&line);
  while (status == DGO_OK);
  STATUS(DGO_ENDED, status);
  work();
  STATUS(DGO_TIMEOUT, dgo_stream_next(next, 0, &line, NULL, 1, &count, NULL));
  STATUS(DGO_OK, dgo_stream_close(lines, NULL));
  STATUS(DGO_OK, dgo_stream_close(next, NULL)); /* the log is still sent there, and is dropped */
  work();
  STATUS(DGO_OK, set("off", &none));
  CHECK(none == 0);
  work();
  STATUS(DGO_OK, set("info", NULL));
  work();
  STATUS(DGO_OK, set("off", NULL));
  work();
  return 0;
}
