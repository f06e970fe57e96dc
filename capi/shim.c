/* The public functions. Each refuses to enter Go in a forked child, then calls the Go function of its name.
 *
 * Both headers are included, so the compiler checks the public contract against what cgo exports. cgo's prototypes know
 * no const: ARRAY and OBJECT drop it, and the Go side never writes through those pointers. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_go.h"
#include "_cgo_export.h"

#define PUBLIC __attribute__((visibility("default")))

/* Go ends the process when it meets a pointer into the first page on its stack, though nobody follows it. To empty arrays
 * such pointers are common: a Rust slice without elements points to its alignment. So Go never gets to see one; pointers
 * inside structs are the business of `member` in memory.go. */
#define FIRST_PAGE 4096u
#define IN_FIRST_PAGE(pointer) ((uintptr_t)(pointer) - 1 < FIRST_PAGE - 1)
#define TYPED(type, pointer) (1 ? (pointer) : (const type *)NULL)
#define ARRAY(type, pointer, n) ((type *)array(TYPED(type, pointer), n))
#define OBJECT(type, pointer) ((type *)object(TYPED(type, pointer)))

static uint64_t empty[2];

/* array: a pointer to n elements. To none it may be anything but NULL; to some, one into the first page is as NULL. */
static void *array(const void *pointer, size_t n) {
  if (!IN_FIRST_PAGE(pointer)) return (void *)(uintptr_t)pointer;
  return n == 0 ? empty : NULL;
}

/* object: a pointer to one object. One into the first page becomes one that is not aligned, which Go refuses. */
static void *object(const void *pointer) {
  return IN_FIRST_PAGE(pointer) ? (char *)empty + 1 : (void *)(uintptr_t)pointer;
}

/* Set in a child that was forked after the library was loaded: the Go runtime's threads do not exist there, so the first
 * call that parks or collects garbage would hang. Written once, by the only thread of the child. */
static volatile int forked;

static void mark_forked(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, mark_forked); }

/* The host's signals are the host's: the Go runtime's threads, which take over the mask of the thread that loads the library, have
 * everything blocked but what the runtime unblocks (faults, SIGURG, SIGCHLD, SIGPROF). So no other handler of the host runs on one of
 * them. Constructors with a priority come before the Go runtime's, others after it, in the order of the
 * link, in which Go's object is the first. */
static sigset_t of_host;

__attribute__((constructor(101))) static void block_signals(void) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &of_host);
}

__attribute__((constructor)) static void unblock_signals(void) { pthread_sigmask(SIG_SETMASK, &of_host, NULL); }

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
    error = OBJECT(dgo_error, error); \
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
    NAME(FILE_ERROR);
    NAME(SNAPSHOT_REFUSED);
    NAME(SESSION_MOVED);
    NAME(ENDED);
  }
  return NULL;
#undef NAME
}

PUBLIC void dgo_buffer_free(dgo_buffer *buffer) {
  if (buffer == NULL || IN_FIRST_PAGE(buffer) || (uintptr_t)buffer % _Alignof(dgo_buffer) != 0 || buffer->struct_size != sizeof *buffer)
    return;
  free(buffer->data);
  buffer->data = NULL;
  buffer->size = 0;
}

PUBLIC dgo_status dgo_log(const char *level, size_t level_size, dgo_stream *lines, dgo_error *error) {
  ENTER(error);
  return dgo_go_log(ARRAY(char, level, level_size), level_size, OBJECT(dgo_stream, lines), error);
}

PUBLIC dgo_status dgo_router_new(int64_t block_size, const char *config, size_t config_size, const uint64_t *seed,
                                 dgo_router *router, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_new(block_size, ARRAY(char, config, config_size), config_size, OBJECT(uint64_t, seed),
                           OBJECT(dgo_router, router), error);
}

PUBLIC dgo_status dgo_router_close(dgo_router router, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_close(router, error);
}

PUBLIC dgo_status dgo_router_add_worker(dgo_router router, const dgo_worker *worker, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_add_worker(router, OBJECT(dgo_worker, worker), error);
}

PUBLIC dgo_status dgo_router_remove_worker(dgo_router router, uint64_t worker_id, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_remove_worker(router, worker_id, error);
}

PUBLIC dgo_status dgo_router_workers(dgo_router router, dgo_buffer *workers, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_workers(router, OBJECT(dgo_buffer, workers), error);
}

PUBLIC dgo_status dgo_router_apply_event(dgo_router router, uint64_t worker_id, const char *event, size_t event_size,
                                         uint32_t flags, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_apply_event(router, worker_id, ARRAY(char, event, event_size), event_size, flags, error);
}

PUBLIC dgo_status dgo_router_best_worker(dgo_router router, const uint32_t *tokens, size_t n_tokens,
                                         const dgo_request *request, dgo_choice *choice, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_best_worker(router, ARRAY(uint32_t, tokens, n_tokens), n_tokens, OBJECT(dgo_request, request),
                                   OBJECT(dgo_choice, choice), error);
}

PUBLIC dgo_status dgo_router_submit(dgo_router router, const uint32_t *tokens, size_t n_tokens, const dgo_request *request,
                                    dgo_choice *choice, uint64_t *ticket, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_submit(router, ARRAY(uint32_t, tokens, n_tokens), n_tokens, OBJECT(dgo_request, request),
                              OBJECT(dgo_choice, choice), OBJECT(uint64_t, ticket), error);
}

PUBLIC dgo_status dgo_router_wait(dgo_router router, uint64_t ticket, uint32_t timeout_ms, dgo_choice *choice, int32_t *done,
                                  dgo_error *error) {
  ENTER(error);
  return dgo_go_router_wait(router, ticket, timeout_ms, OBJECT(dgo_choice, choice), OBJECT(int32_t, done), error);
}

PUBLIC dgo_status dgo_router_cancel(dgo_router router, uint64_t ticket, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_cancel(router, ticket, error);
}

PUBLIC dgo_status dgo_router_ready_fd(dgo_router router, int *fd, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_ready_fd(router, OBJECT(int, fd), error);
}

PUBLIC dgo_status dgo_router_ready(dgo_router router, uint64_t *tickets, size_t capacity, size_t *count, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_ready(router, ARRAY(uint64_t, tickets, capacity), capacity, OBJECT(size_t, count), error);
}

PUBLIC dgo_status dgo_router_mark_prefill_complete(dgo_router router, const char *request_id, size_t request_id_size,
                                                   dgo_error *error) {
  ENTER(error);
  return dgo_go_router_mark_prefill_complete(router, ARRAY(char, request_id, request_id_size), request_id_size, error);
}

PUBLIC dgo_status dgo_router_free(dgo_router router, const char *request_id, size_t request_id_size, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_free(router, ARRAY(char, request_id, request_id_size), request_id_size, error);
}

PUBLIC dgo_status dgo_router_add_output_block(dgo_router router, const char *request_id, size_t request_id_size, int64_t n,
                                              const double *decay_fraction, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_add_output_block(router, ARRAY(char, request_id, request_id_size), request_id_size, n,
                                        OBJECT(double, decay_fraction), error);
}

PUBLIC dgo_status dgo_router_report_cached_tokens(dgo_router router, const char *request_id, size_t request_id_size,
                                                  int64_t cached_tokens, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_report_cached_tokens(router, ARRAY(char, request_id, request_id_size), request_id_size, cached_tokens,
                                            error);
}

PUBLIC dgo_status dgo_router_decisions(dgo_router router, uint64_t after, dgo_buffer *decisions, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_decisions(router, after, OBJECT(dgo_buffer, decisions), error);
}

PUBLIC dgo_status dgo_router_get_potential_loads(dgo_router router, const uint32_t *tokens, size_t n_tokens,
                                                 const dgo_request *request, dgo_potential_load *rows, size_t row_size,
                                                 size_t capacity, size_t *count, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_get_potential_loads(router, ARRAY(uint32_t, tokens, n_tokens), n_tokens, OBJECT(dgo_request, request),
                                           ARRAY(dgo_potential_load, rows, capacity), row_size, capacity,
                                           OBJECT(size_t, count), error);
}

PUBLIC dgo_status dgo_router_get_overlap_scores(dgo_router router, const uint32_t *tokens, size_t n_tokens,
                                                const dgo_request *request, dgo_buffer *scores, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_get_overlap_scores(router, ARRAY(uint32_t, tokens, n_tokens), n_tokens, OBJECT(dgo_request, request),
                                          OBJECT(dgo_buffer, scores), error);
}

PUBLIC dgo_status dgo_router_explain(dgo_router router, const uint32_t *tokens, size_t n_tokens, const dgo_request *request,
                                     dgo_buffer *explanation, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_explain(router, ARRAY(uint32_t, tokens, n_tokens), n_tokens, OBJECT(dgo_request, request),
                               OBJECT(dgo_buffer, explanation), error);
}

PUBLIC dgo_status dgo_router_dump_events(dgo_router router, dgo_buffer *events, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_dump_events(router, OBJECT(dgo_buffer, events), error);
}

PUBLIC dgo_status dgo_router_load_events(dgo_router router, const char *events, size_t size, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_load_events(router, ARRAY(char, events, size), size, error);
}

PUBLIC dgo_status dgo_router_save(dgo_router router, const char *path, size_t path_size, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_save(router, ARRAY(char, path, path_size), path_size, error);
}

PUBLIC dgo_status dgo_router_load(dgo_router router, const char *path, size_t path_size, size_t *ranks, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_load(router, ARRAY(char, path, path_size), path_size, OBJECT(size_t, ranks), error);
}

PUBLIC dgo_status dgo_router_health(dgo_router router, dgo_buffer *health, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_health(router, OBJECT(dgo_buffer, health), error);
}

PUBLIC dgo_status dgo_router_stats(dgo_router router, dgo_buffer *stats, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_stats(router, OBJECT(dgo_buffer, stats), error);
}

PUBLIC dgo_status dgo_router_replicate(dgo_router router, const char *replicas, size_t size, dgo_buffer *result,
                                       dgo_error *error) {
  ENTER(error);
  return dgo_go_router_replicate(router, ARRAY(char, replicas, size), size, OBJECT(dgo_buffer, result), error);
}

PUBLIC dgo_status dgo_router_metrics(dgo_router router, dgo_buffer *page, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_metrics(router, OBJECT(dgo_buffer, page), error);
}

PUBLIC dgo_status dgo_config_check(const char *config, size_t size, dgo_buffer *result, dgo_error *error) {
  ENTER(error);
  return dgo_go_config_check(ARRAY(char, config, size), size, OBJECT(dgo_buffer, result), error);
}

PUBLIC dgo_status dgo_compute_block_hashes(const uint32_t *tokens, size_t n_tokens, int64_t block_size,
                                           const dgo_request *request, int32_t eagle, uint64_t *hashes, size_t capacity,
                                           size_t *count, dgo_error *error) {
  ENTER(error);
  return dgo_go_compute_block_hashes(ARRAY(uint32_t, tokens, n_tokens), n_tokens, block_size, OBJECT(dgo_request, request),
                                     eagle, ARRAY(uint64_t, hashes, capacity), capacity, OBJECT(size_t, count), error);
}

PUBLIC dgo_status dgo_compute_sequence_hashes(const uint64_t *hashes, size_t n, uint64_t *sequences, dgo_error *error) {
  ENTER(error);
  return dgo_go_compute_sequence_hashes(ARRAY(uint64_t, hashes, n), n, ARRAY(uint64_t, sequences, n), error);
}

PUBLIC dgo_status dgo_decode_batch(const char *payload, size_t payload_size, const uint64_t *seq, dgo_buffer *lines,
                                   dgo_error *error) {
  ENTER(error);
  return dgo_go_decode_batch(ARRAY(char, payload, payload_size), payload_size, OBJECT(uint64_t, seq),
                             OBJECT(dgo_buffer, lines), error);
}

PUBLIC dgo_status dgo_events_open(const char *endpoint, size_t endpoint_size, const char *replay, size_t replay_size,
                                  const char *topic, size_t topic_size, dgo_stream *events, dgo_error *error) {
  ENTER(error);
  return dgo_go_events_open(ARRAY(char, endpoint, endpoint_size), endpoint_size, ARRAY(char, replay, replay_size), replay_size,
                            ARRAY(char, topic, topic_size), topic_size, OBJECT(dgo_stream, events), error);
}

PUBLIC dgo_status dgo_stream_next(dgo_stream stream, uint32_t timeout_ms, dgo_buffer *items, size_t *ends, size_t capacity,
                                  size_t *count, dgo_error *error) {
  ENTER(error);
  return dgo_go_stream_next(stream, timeout_ms, OBJECT(dgo_buffer, items), OBJECT(size_t, ends), capacity,
                            OBJECT(size_t, count), error);
}

PUBLIC dgo_status dgo_stream_fd(dgo_stream stream, int *fd, dgo_error *error) {
  ENTER(error);
  return dgo_go_stream_fd(stream, OBJECT(int, fd), error);
}

PUBLIC dgo_status dgo_stream_cancel(dgo_stream stream, uint32_t flags, dgo_error *error) {
  ENTER(error);
  return dgo_go_stream_cancel(stream, flags, error);
}

PUBLIC dgo_status dgo_stream_close(dgo_stream stream, dgo_error *error) {
  ENTER(error);
  return dgo_go_stream_close(stream, error);
}

PUBLIC dgo_status dgo_mocker_new(const char *config, size_t config_size, dgo_mocker *mocker, dgo_error *error) {
  ENTER(error);
  return dgo_go_mocker_new(ARRAY(char, config, config_size), config_size, OBJECT(dgo_mocker, mocker), error);
}

PUBLIC dgo_status dgo_mocker_info(dgo_mocker mocker, dgo_buffer *info, dgo_error *error) {
  ENTER(error);
  return dgo_go_mocker_info(mocker, OBJECT(dgo_buffer, info), error);
}

PUBLIC dgo_status dgo_mocker_generate(dgo_mocker mocker, const uint32_t *tokens, size_t n_tokens, const char *options,
                                      size_t options_size, dgo_stream *stream, dgo_error *error) {
  ENTER(error);
  return dgo_go_mocker_generate(mocker, ARRAY(uint32_t, tokens, n_tokens), n_tokens, ARRAY(char, options, options_size),
                                options_size, OBJECT(dgo_stream, stream), error);
}

PUBLIC dgo_status dgo_mocker_leave(dgo_mocker mocker, dgo_error *error) {
  ENTER(error);
  return dgo_go_mocker_leave(mocker, error);
}

PUBLIC dgo_status dgo_mocker_close(dgo_mocker mocker, dgo_error *error) {
  ENTER(error);
  return dgo_go_mocker_close(mocker, error);
}

PUBLIC dgo_status dgo_serve_new(const char *config, size_t config_size, dgo_server *server, dgo_error *error) {
  ENTER(error);
  return dgo_go_serve_new(ARRAY(char, config, config_size), config_size, OBJECT(dgo_server, server), error);
}

PUBLIC dgo_status dgo_serve_info(dgo_server server, dgo_buffer *info, dgo_error *error) {
  ENTER(error);
  return dgo_go_serve_info(server, OBJECT(dgo_buffer, info), error);
}

PUBLIC dgo_status dgo_serve_texts(dgo_server server, dgo_stream *stream, dgo_error *error) {
  ENTER(error);
  return dgo_go_serve_texts(server, OBJECT(dgo_stream, stream), error);
}

PUBLIC dgo_status dgo_serve_tokens(dgo_server server, uint64_t id, const uint32_t *tokens, size_t n_tokens, dgo_error *error) {
  ENTER(error);
  return dgo_go_serve_tokens(server, id, ARRAY(uint32_t, tokens, n_tokens), n_tokens, error);
}

PUBLIC dgo_status dgo_serve_stop(dgo_server server, int64_t grace_ms, dgo_error *error) {
  ENTER(error);
  return dgo_go_serve_stop(server, grace_ms, error);
}

PUBLIC dgo_status dgo_serve_close(dgo_server server, dgo_error *error) {
  ENTER(error);
  return dgo_go_serve_close(server, error);
}

PUBLIC dgo_status dgo_publisher_new(const char *config, size_t config_size, dgo_publisher *publisher, dgo_error *error) {
  ENTER(error);
  return dgo_go_publisher_new(ARRAY(char, config, config_size), config_size, OBJECT(dgo_publisher, publisher), error);
}

PUBLIC dgo_status dgo_publisher_publish(dgo_publisher publisher, uint32_t dp_rank, const dgo_kv_event *events, size_t event_size,
                                        size_t n_events, dgo_error *error) {
  ENTER(error);
  return dgo_go_publisher_publish(publisher, dp_rank, ARRAY(dgo_kv_event, events, n_events), event_size, n_events, error);
}

PUBLIC dgo_status dgo_publisher_info(dgo_publisher publisher, dgo_buffer *ranks, dgo_error *error) {
  ENTER(error);
  return dgo_go_publisher_info(publisher, OBJECT(dgo_buffer, ranks), error);
}

PUBLIC dgo_status dgo_publisher_close(dgo_publisher publisher, dgo_error *error) {
  ENTER(error);
  return dgo_go_publisher_close(publisher, error);
}

PUBLIC dgo_status dgo_radix_tree_new(dgo_radix_tree *tree, dgo_error *error) {
  ENTER(error);
  return dgo_go_radix_tree_new(OBJECT(dgo_radix_tree, tree), error);
}

PUBLIC dgo_status dgo_radix_tree_apply_event(dgo_radix_tree tree, uint64_t worker_id, const char *event, size_t event_size,
                                             dgo_error *error) {
  ENTER(error);
  return dgo_go_radix_tree_apply_event(tree, worker_id, ARRAY(char, event, event_size), event_size, error);
}

PUBLIC dgo_status dgo_radix_tree_find_matches(dgo_radix_tree tree, const uint64_t *block_hashes, size_t n_blocks, dgo_match *rows,
                                              size_t row_size, size_t capacity, size_t *count, dgo_error *error) {
  ENTER(error);
  return dgo_go_radix_tree_find_matches(tree, ARRAY(uint64_t, block_hashes, n_blocks), n_blocks, ARRAY(dgo_match, rows, capacity),
                                        row_size, capacity, OBJECT(size_t, count), error);
}

PUBLIC dgo_status dgo_radix_tree_remove_worker(dgo_radix_tree tree, uint64_t worker_id, dgo_error *error) {
  ENTER(error);
  return dgo_go_radix_tree_remove_worker(tree, worker_id, error);
}

PUBLIC dgo_status dgo_radix_tree_dump(dgo_radix_tree tree, dgo_buffer *events, dgo_error *error) {
  ENTER(error);
  return dgo_go_radix_tree_dump(tree, OBJECT(dgo_buffer, events), error);
}

PUBLIC dgo_status dgo_radix_tree_close(dgo_radix_tree tree, dgo_error *error) {
  ENTER(error);
  return dgo_go_radix_tree_close(tree, error);
}

PUBLIC dgo_status dgo_runtime_new(const char *config, size_t config_size, dgo_runtime *runtime, dgo_stream *notices,
                                  dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_new(ARRAY(char, config, config_size), config_size, OBJECT(dgo_runtime, runtime),
                            OBJECT(dgo_stream, notices), error);
}

PUBLIC dgo_status dgo_runtime_info(dgo_runtime runtime, dgo_buffer *info, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_info(runtime, OBJECT(dgo_buffer, info), error);
}

PUBLIC dgo_status dgo_runtime_close(dgo_runtime runtime, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_close(runtime, error);
}

PUBLIC dgo_status dgo_runtime_serve(dgo_runtime runtime, const char *endpoint, size_t endpoint_size,
                                    const char *options, size_t options_size, uint64_t *service, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_serve(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size,
                              ARRAY(char, options, options_size), options_size, OBJECT(uint64_t, service), error);
}

PUBLIC dgo_status dgo_runtime_list(dgo_runtime runtime, uint64_t service, int32_t listed, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_list(runtime, service, listed, error);
}

PUBLIC dgo_status dgo_runtime_model(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, uint64_t id,
                                    const char *card, size_t card_size, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_model(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size, id,
                              ARRAY(char, card, card_size), card_size, error);
}

PUBLIC dgo_status dgo_runtime_answer(dgo_runtime runtime, uint64_t call, const char *item, size_t item_size,
                                     uint32_t flags, int32_t *ahead, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_answer(runtime, call, ARRAY(char, item, item_size), item_size, flags, OBJECT(int32_t, ahead),
                               error);
}

PUBLIC dgo_status dgo_runtime_client(dgo_runtime runtime, const char *endpoint, size_t endpoint_size,
                                     uint64_t *client, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_client(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size, OBJECT(uint64_t, client),
                               error);
}

PUBLIC dgo_status dgo_runtime_instances(dgo_runtime runtime, uint64_t client, dgo_buffer *instances,
                                        dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_instances(runtime, client, OBJECT(dgo_buffer, instances), error);
}

PUBLIC dgo_status dgo_runtime_call(dgo_runtime runtime, uint64_t client, const char *body, size_t body_size,
                                   const char *options, size_t options_size, uint64_t *call, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_call(runtime, client, ARRAY(char, body, body_size), body_size,
                             ARRAY(char, options, options_size), options_size, OBJECT(uint64_t, call), error);
}

PUBLIC dgo_status dgo_runtime_more(dgo_runtime runtime, uint64_t call, size_t n, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_more(runtime, call, n, error);
}

PUBLIC dgo_status dgo_runtime_cancel(dgo_runtime runtime, uint64_t call, uint32_t flags, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_cancel(runtime, call, flags, error);
}

PUBLIC dgo_status dgo_runtime_end(dgo_runtime runtime, uint64_t id, uint32_t flags, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_end(runtime, id, flags, error);
}

PUBLIC dgo_status dgo_runtime_router(dgo_runtime runtime, const char *endpoint, size_t endpoint_size,
                                     int64_t block_size, const char *config, size_t config_size, dgo_router *router,
                                     dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_router(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size, block_size,
                               ARRAY(char, config, config_size), config_size, OBJECT(dgo_router, router), error);
}

PUBLIC dgo_status dgo_router_generate(dgo_router router, const uint32_t *tokens, size_t n_tokens,
                                      const dgo_request *request, const char *fields, size_t fields_size,
                                      const char *options, size_t options_size, uint64_t *call, dgo_error *error) {
  ENTER(error);
  return dgo_go_router_generate(router, ARRAY(uint32_t, tokens, n_tokens), n_tokens, OBJECT(dgo_request, request),
                                ARRAY(char, fields, fields_size), fields_size, ARRAY(char, options, options_size),
                                options_size, OBJECT(uint64_t, call), error);
}

PUBLIC dgo_status dgo_runtime_publisher(dgo_runtime runtime, const char *endpoint, size_t endpoint_size,
                                        const char *config, size_t config_size, dgo_publisher *publisher,
                                        dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_publisher(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size,
                                  ARRAY(char, config, config_size), config_size, OBJECT(dgo_publisher, publisher),
                                  error);
}

PUBLIC dgo_status dgo_runtime_load(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, const char *load,
                                   size_t load_size, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_load(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size,
                             ARRAY(char, load, load_size), load_size, error);
}

PUBLIC dgo_status dgo_runtime_mocker(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, uint64_t worker_id,
                                     const char *config, size_t config_size, dgo_mocker *mocker, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_mocker(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size, worker_id,
                               ARRAY(char, config, config_size), config_size, OBJECT(dgo_mocker, mocker), error);
}

PUBLIC dgo_status dgo_runtime_add_engine(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, const char *config,
                                         size_t config_size, uint64_t *worker_id, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_add_engine(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size,
                                   ARRAY(char, config, config_size), config_size, OBJECT(uint64_t, worker_id), error);
}

PUBLIC dgo_status dgo_runtime_watch_engines(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, const char *path,
                                            size_t path_size, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_watch_engines(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size,
                                      ARRAY(char, path, path_size), path_size, error);
}

PUBLIC dgo_status dgo_runtime_engines(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, dgo_buffer *engines,
                                      dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_engines(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size, OBJECT(dgo_buffer, engines), error);
}

PUBLIC dgo_status dgo_runtime_drain_engine(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, uint64_t worker_id,
                                           int32_t draining, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_drain_engine(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size, worker_id, draining, error);
}

PUBLIC dgo_status dgo_runtime_remove_engine(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, uint64_t worker_id,
                                            uint32_t flags, dgo_error *error) {
  ENTER(error);
  return dgo_go_runtime_remove_engine(runtime, ARRAY(char, endpoint, endpoint_size), endpoint_size, worker_id, flags, error);
}
