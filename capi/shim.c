/* The public functions. Each refuses to enter Go in a forked child, then calls the Go function of its name.
 *
 * Both headers are included, so the compiler checks the public contract against what cgo exports. cgo's prototypes know
 * no const: UNCONST drops it, and the Go side never writes through those pointers. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_go.h"
#include "_cgo_export.h"

#define PUBLIC __attribute__((visibility("default")))
#define UNCONST(type, pointer) ((type *)(uintptr_t)(pointer))

/* Set in a child that was forked after the library was loaded: the Go runtime's threads do not exist there, so the first
 * call that parks or collects garbage would hang. Written once, by the only thread of the child. */
static volatile int forked;

static void mark_forked(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, mark_forked); }

static dgo_status refuse(dgo_error *error) {
  static const char message[] =
      "forked: the process was forked after dynamo-go was loaded; use the spawn or forkserver start method, or load it in the child";
  if (error != NULL && (uintptr_t)error % _Alignof(dgo_error) == 0 && error->struct_size == sizeof *error) {
    error->status = DGO_FORKED;
    memcpy(error->message, message, sizeof message);
  }
  return DGO_FORKED;
}

#define ENTER(error)                 \
  do {                               \
    if (forked) return refuse(error); \
  } while (0)

PUBLIC uint32_t dgo_abi_version(void) { return DGO_ABI_VERSION; }

PUBLIC const char *dgo_version(void) { return DGO_VERSION; }

PUBLIC const char *dgo_status_name(dgo_status status) {
#define NAME(name) \
  case DGO_##name: \
    return #name
  switch (status) {
    NAME(OK);
    NAME(INTERNAL);
    NAME(BAD_HANDLE);
    NAME(INVALID_ARGUMENT);
    NAME(NOT_IMPLEMENTED);
    NAME(REQUEST_NOT_FOUND);
    NAME(DUPLICATE_REQUEST);
    NAME(WORKER_NOT_FOUND);
    NAME(DUPLICATE_WORKER);
    NAME(NO_WORKERS);
    NAME(OVERLOADED);
    NAME(QUEUE_LIMIT_EXCEEDED);
    NAME(TIMEOUT);
    NAME(CLOSED);
    NAME(FORKED);
    NAME(EVENT_REFUSED);
    NAME(CANNOT_CONNECT);
    NAME(DISCONNECTED);
    NAME(CANCELLED);
    NAME(WORKER_ERROR);
  }
  return NULL;
#undef NAME
}

PUBLIC void dgo_buffer_free(dgo_buffer *buffer) {
  if (buffer == NULL) return;
  free(buffer->data);
  buffer->data = NULL;
  buffer->size = 0;
}

PUBLIC dgo_status dgo_router_new(int64_t block_size, const char *config, size_t config_size, const uint64_t *seed,
                                 dgo_router *router, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_new(block_size, UNCONST(char, config), config_size, UNCONST(uint64_t, seed), router, error);
}

PUBLIC dgo_status dgo_router_close(dgo_router router, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_close(router, error);
}

PUBLIC dgo_status dgo_router_add_worker(dgo_router router, const dgo_worker *worker, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_add_worker(router, UNCONST(dgo_worker, worker), error);
}

PUBLIC dgo_status dgo_router_remove_worker(dgo_router router, uint64_t worker_id, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_remove_worker(router, worker_id, error);
}

PUBLIC dgo_status dgo_router_workers(dgo_router router, dgo_buffer *workers, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_workers(router, workers, error);
}

PUBLIC dgo_status dgo_router_apply_event(dgo_router router, uint64_t worker_id, const char *event, size_t event_size,
                                         uint32_t flags, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_apply_event(router, worker_id, UNCONST(char, event), event_size, flags, error);
}

PUBLIC dgo_status dgo_router_best_worker(dgo_router router, const uint32_t *tokens, size_t n_tokens,
                                         const dgo_request *request, dgo_choice *choice, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_best_worker(router, UNCONST(uint32_t, tokens), n_tokens, UNCONST(dgo_request, request), choice,
                                   error);
}

PUBLIC dgo_status dgo_router_mark_prefill_complete(dgo_router router, const char *request_id, size_t request_id_size,
                                                   dgo_error *error) {
  ENTER(error);
  return dgo_go_router_mark_prefill_complete(router, UNCONST(char, request_id), request_id_size, error);
}

PUBLIC dgo_status dgo_router_free(dgo_router router, const char *request_id, size_t request_id_size, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_free(router, UNCONST(char, request_id), request_id_size, error);
}

PUBLIC dgo_status dgo_router_add_output_block(dgo_router router, const char *request_id, size_t request_id_size, int64_t n,
                                              const double *decay_fraction, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_add_output_block(router, UNCONST(char, request_id), request_id_size, n,
                                        UNCONST(double, decay_fraction), error);
}

PUBLIC dgo_status dgo_router_get_potential_loads(dgo_router router, const uint32_t *tokens, size_t n_tokens,
                                                 const dgo_request *request, dgo_potential_load *rows, size_t row_size,
                                                 size_t capacity, size_t *count, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_get_potential_loads(router, UNCONST(uint32_t, tokens), n_tokens, UNCONST(dgo_request, request),
                                           rows, row_size, capacity, count, error);
}

PUBLIC dgo_status dgo_router_get_overlap_scores(dgo_router router, const uint32_t *tokens, size_t n_tokens,
                                                const dgo_request *request, dgo_buffer *scores, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_get_overlap_scores(router, UNCONST(uint32_t, tokens), n_tokens, UNCONST(dgo_request, request),
                                          scores, error);
}

PUBLIC dgo_status dgo_router_explain(dgo_router router, const uint32_t *tokens, size_t n_tokens, const dgo_request *request,
                                     dgo_buffer *explanation, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_explain(router, UNCONST(uint32_t, tokens), n_tokens, UNCONST(dgo_request, request), explanation,
                               error);
}

PUBLIC dgo_status dgo_router_dump_events(dgo_router router, dgo_buffer *events, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_dump_events(router, events, error);
}

PUBLIC dgo_status dgo_router_load_events(dgo_router router, const char *events, size_t size, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_load_events(router, UNCONST(char, events), size, error);
}

PUBLIC dgo_status dgo_router_health(dgo_router router, dgo_buffer *health, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_health(router, health, error);
}

PUBLIC dgo_status dgo_router_stats(dgo_router router, dgo_buffer *stats, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_stats(router, stats, error);
}

PUBLIC dgo_status dgo_config_check(const char *config, size_t size, dgo_buffer *result, dgo_error *error) {
  ENTER(error);
  return dgo_go_config_check(UNCONST(char, config), size, result, error);
}

PUBLIC dgo_status dgo_compute_block_hashes(const uint32_t *tokens, size_t n_tokens, int64_t block_size,
                                           const dgo_request *request, int32_t eagle, uint64_t *hashes, size_t capacity,
                                           size_t *count, dgo_error *error) {
  ENTER(error);
  return dgo_go_compute_block_hashes(UNCONST(uint32_t, tokens), n_tokens, block_size, UNCONST(dgo_request, request), eagle,
                                     hashes, capacity, count, error);
}

PUBLIC dgo_status dgo_compute_sequence_hashes(const uint64_t *hashes, size_t n, uint64_t *sequences, dgo_error *error) {
  ENTER(error);
  return dgo_go_compute_sequence_hashes(UNCONST(uint64_t, hashes), n, sequences, error);
}

PUBLIC dgo_status dgo_decode_batch(const char *payload, size_t payload_size, const uint64_t *seq, dgo_buffer *lines,
                                   dgo_error *error) {
  ENTER(error);
  return dgo_go_decode_batch(UNCONST(char, payload), payload_size, UNCONST(uint64_t, seq), lines, error);
}

PUBLIC dgo_status dgo_event_reader_open(const char *endpoint, size_t endpoint_size, const char *replay, size_t replay_size,
                                        const char *topic, size_t topic_size, dgo_event_reader *reader, dgo_error *error) {
  ENTER(error);
  return dgo_go_event_reader_open(UNCONST(char, endpoint), endpoint_size, UNCONST(char, replay), replay_size,
                                  UNCONST(char, topic), topic_size, reader, error);
}

PUBLIC dgo_status dgo_event_reader_next(dgo_event_reader reader, uint32_t timeout_ms, dgo_buffer *lines, dgo_error *error) {
  ENTER(error);
  return dgo_go_event_reader_next(reader, timeout_ms, lines, error);
}

PUBLIC dgo_status dgo_event_reader_close(dgo_event_reader reader, dgo_error *error) {
  ENTER(error);
  return dgo_go_event_reader_close(reader, error);
}

PUBLIC dgo_status dgo_mocker_new(const char *config, size_t config_size, dgo_mocker *mocker, dgo_error *error) {
  ENTER(error);
  return dgo_go_mocker_new(UNCONST(char, config), config_size, mocker, error);
}

PUBLIC dgo_status dgo_mocker_info(dgo_mocker mocker, dgo_buffer *info, dgo_error *error) {
  ENTER(error);
  return dgo_go_mocker_info(mocker, info, error);
}

PUBLIC dgo_status dgo_mocker_close(dgo_mocker mocker, dgo_error *error) {
  ENTER(error);
  return dgo_go_mocker_close(mocker, error);
}
