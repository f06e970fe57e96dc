/* Streams of a mocker in this process, and of its events: polled and waited for, stopped, killed, closed; wrong use. */
#include <errno.h>
#include <poll.h>

#include "check.h"

static const uint32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

static dgo_mocker new_mocker(const char *config) {
  dgo_mocker mocker = 0;
  STATUS(DGO_OK, dgo_mocker_new(config, strlen(config), &mocker, NULL));
  return mocker;
}

static dgo_stream generate(dgo_mocker mocker, const char *options) {
  dgo_stream stream = 0;
  dgo_error error = {.struct_size = sizeof error};
  dgo_status status = dgo_mocker_generate(mocker, tokens, 9, options, strlen(options), &stream, &error);
  if (status != DGO_OK) fprintf(stderr, "%s\n", error.message);
  CHECK(status == DGO_OK);
  return stream;
}

static int readable(int fd, int timeout) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  int n;
  do n = poll(&p, 1, timeout);
  while (n < 0 && errno == EINTR); /* Go's threads have signals of their own */
  return n == 1;
}

/* drain: take everything, `capacity` items at a time, by the descriptor or waiting in the call. Counts the items, and how the
 * stream ended. */
static size_t drain(dgo_stream stream, int fd, size_t capacity, dgo_status *end) {
  size_t *ends = malloc(capacity * sizeof *ends), total = 0;
  CHECK(ends != NULL);
  for (;;) {
    dgo_buffer items = {.struct_size = sizeof items};
    size_t count = 0;
    if (fd >= 0) CHECK(readable(fd, 60000));
    dgo_status status = dgo_stream_next(stream, fd >= 0 ? 0 : DGO_WAIT_MS_MAX, &items, ends, capacity, &count, NULL);
    if (status == DGO_TIMEOUT) continue;
    if (status != DGO_OK) {
      *end = status;
      if (fd >= 0) CHECK(readable(fd, 0)); /* the end stays */
      break;
    }
    CHECK(count >= 1 && count <= capacity && ends[count - 1] == items.size && items.data[items.size] == 0);
    for (size_t i = 0, start = 0; i < count; start = ends[i++])
      CHECK(ends[i] > start && strncmp(items.data + start, "{\"token_ids\":[", 14) == 0 && items.data[ends[i] - 1] == '}');
    total += count;
    dgo_buffer_free(&items);
  }
  free(ends);
  return total;
}

static void whole(dgo_mocker mocker) {
  const char *options[] = {"{\"max_tokens\":1000,\"response_buffer_size\":0}", "{\"max_tokens\":1000,\"response_buffer_size\":7}",
                           "{\"max_tokens\":1000}"};
  for (size_t i = 0; i < 3; i++) {
    for (int with_fd = 0; with_fd < 2; with_fd++) {
      dgo_stream stream = generate(mocker, options[i]);
      int fd = -1, again = -1;
      if (with_fd) {
        STATUS(DGO_OK, dgo_stream_fd(stream, &fd, NULL));
        STATUS(DGO_OK, dgo_stream_fd(stream, &again, NULL));
        CHECK(fd >= 0 && fd == again);
      }
      dgo_status end;
      CHECK(drain(stream, fd, i == 1 ? 3 : 256, &end) == 1000 && end == DGO_ENDED);
      STATUS(DGO_OK, dgo_stream_cancel(stream, DGO_CANCEL_KILL, NULL));
      CHECK(drain(stream, fd, 1, &end) == 0 && end == DGO_ENDED); /* every time */
      STATUS(DGO_OK, dgo_stream_close(stream, NULL));
    }
  }
}

static void cut_off(void) {
  dgo_mocker slow = new_mocker("{\"inter_token_ms\":1}");
  dgo_status end;
  dgo_stream stream = generate(slow, "{\"max_tokens\":100000}");
  STATUS(DGO_OK, dgo_stream_cancel(stream, 0, NULL));
  CHECK(drain(stream, -1, 256, &end) >= 1 && end == DGO_ENDED); /* the last item says cancelled */
  STATUS(DGO_OK, dgo_stream_close(stream, NULL));

  stream = generate(slow, "{\"max_tokens\":100000,\"response_buffer_size\":0}");
  STATUS(DGO_OK, dgo_stream_cancel(stream, DGO_CANCEL_KILL, NULL));
  CHECK(drain(stream, -1, 256, &end) == 0 && end == DGO_CANCELLED);
  STATUS(DGO_OK, dgo_stream_close(stream, NULL));

  stream = generate(slow, "{\"max_tokens\":100000}");
  STATUS(DGO_OK, dgo_stream_close(stream, NULL)); /* while it runs */
  STATUS(DGO_OK, dgo_stream_close(stream, NULL));

  stream = generate(slow, "{\"max_tokens\":100000}");
  STATUS(DGO_OK, dgo_mocker_close(slow, NULL));
  drain(stream, -1, 256, &end);
  CHECK(end == DGO_DISCONNECTED);
  STATUS(DGO_OK, dgo_stream_close(stream, NULL));
  STATUS(DGO_CLOSED, dgo_mocker_generate(slow, tokens, 9, NULL, 0, &stream, NULL));
}

/* member: the text of a JSON member that is a string without escapes. */
static dgo_string member(const dgo_buffer *json, const char *name) {
  char key[32];
  int size = snprintf(key, sizeof key, "\"%s\":\"", name);
  const char *at = strstr(json->data, key);
  CHECK(at != NULL);
  dgo_string s = {at + size, strcspn(at + size, "\"")};
  return s;
}

static void events(dgo_mocker mocker) {
  dgo_buffer info = {.struct_size = sizeof info}, lines = {.struct_size = sizeof lines};
  STATUS(DGO_OK, dgo_mocker_info(mocker, &info, NULL));
  dgo_string live = member(&info, "kv_events"), replay = member(&info, "replay");
  dgo_stream stream;
  STATUS(DGO_OK, dgo_events_open(live.data, live.size, replay.data, replay.size, NULL, 0, &stream, NULL));
  dgo_buffer_free(&info);
  size_t count = 0;
  dgo_status status;
  do status = dgo_stream_next(stream, DGO_WAIT_MS_MAX, &lines, NULL, 1, &count, NULL);
  while (status == DGO_TIMEOUT);
  CHECK(status == DGO_OK && count == 1 && strstr(lines.data, "\"type\":\"stored\"") != NULL);
  CHECK(lines.data[lines.size - 1] == '\n');
  dgo_buffer_free(&lines);
  STATUS(DGO_OK, dgo_stream_cancel(stream, 0, NULL));
  do status = dgo_stream_next(stream, DGO_WAIT_MS_MAX, &lines, NULL, 1, &count, NULL), dgo_buffer_free(&lines);
  while (status == DGO_TIMEOUT || status == DGO_OK);
  CHECK(status == DGO_ENDED);
  STATUS(DGO_OK, dgo_stream_close(stream, NULL));
}

static void wrong_use(dgo_mocker mocker) {
  dgo_stream stream = 7;
  const char *bad[] = {"", "[]", "{\"max_tokens\":0}", "{\"max_tokens\":-1}", "{\"max_tokens\":1e9}", "{\"tokens\":1}",
                       "{\"response_buffer_size\":-1}", "{\"response_buffer_size\":1048577}"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    STATUS(DGO_INVALID_ARGUMENT, dgo_mocker_generate(mocker, tokens, 9, bad[i], strlen(bad[i]), &stream, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_mocker_generate(mocker, NULL, 0, NULL, 0, &stream, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_mocker_generate(mocker, NULL, 9, NULL, 0, &stream, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_mocker_generate(mocker, tokens, 9, NULL, 0, NULL, NULL));
  CHECK(stream == 7);
  stream = generate(mocker, "{}");
  dgo_buffer items = {.struct_size = sizeof items};
  size_t ends[2], count = 7;
  int fd = 7;
  STATUS(DGO_INVALID_ARGUMENT, dgo_stream_next(stream, DGO_WAIT_MS_MAX + 1, &items, ends, 2, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_stream_next(stream, 0, NULL, ends, 2, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_stream_next(stream, 0, &items, ends, 2, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_stream_next(stream, 0, &items, ends, 0, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_stream_next(stream, 0, &items, ends, DGO_STREAM_ITEMS_MAX + 1, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_stream_next(stream, 0, &items, (size_t *)(void *)((char *)ends + 1), 1, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_stream_fd(stream, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_stream_cancel(stream, 2, NULL));
  CHECK(count == 7 && fd == 7);
  STATUS(DGO_OK, dgo_stream_close(stream, NULL));
  STATUS(DGO_CLOSED, dgo_stream_next(stream, 0, &items, ends, 2, &count, NULL));
  STATUS(DGO_CLOSED, dgo_stream_fd(stream, &fd, NULL));
  STATUS(DGO_CLOSED, dgo_stream_cancel(stream, 0, NULL));
  STATUS(DGO_BAD_HANDLE, dgo_stream_next(mocker, 0, &items, ends, 2, &count, NULL));
  STATUS(DGO_BAD_HANDLE, dgo_stream_cancel(0, 0, NULL));
  STATUS(DGO_OK, dgo_stream_close(0, NULL));
}

int main(void) {
  dgo_mocker mocker = new_mocker("{\"inter_token_ms\":0,\"prefill_tokens_per_second\":1e9,\"block_size\":4,\"blocks\":100000}");
  whole(mocker);
  events(mocker);
  wrong_use(mocker);
  STATUS(DGO_OK, dgo_mocker_close(mocker, NULL));
  cut_off();
  return 0;
}
