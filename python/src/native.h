/* What the files of the extension share. See module.c for what the extension is. */
#ifndef DYNAMO_GO_NATIVE_H
#define DYNAMO_GO_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dynamo_go.h"

/* ---- library.c: libdynamo_go.so, loaded on first use ---- */

/* Every function the extension calls. */
#define DGO_FUNCTIONS(X)       \
  X(abi_version)               \
  X(version)                   \
  X(status_name)               \
  X(buffer_free)               \
  X(log)                       \
  X(router_new)                \
  X(router_close)              \
  X(router_add_worker)         \
  X(router_remove_worker)      \
  X(router_workers)            \
  X(router_apply_event)        \
  X(router_best_worker)        \
  X(router_submit)             \
  X(router_wait)               \
  X(router_cancel)             \
  X(router_ready_fd)           \
  X(router_ready)              \
  X(router_mark_prefill_complete) \
  X(router_free)               \
  X(router_add_output_block)   \
  X(router_report_cached_tokens) \
  X(router_decisions)          \
  X(router_get_potential_loads) \
  X(router_get_overlap_scores) \
  X(router_explain)            \
  X(router_dump_events)        \
  X(router_load_events)        \
  X(router_save)               \
  X(router_load)               \
  X(router_health)             \
  X(router_stats)              \
  X(router_metrics)            \
  X(router_replicate)          \
  X(config_check)              \
  X(compute_block_hashes)      \
  X(compute_sequence_hashes)   \
  X(decode_batch)              \
  X(events_open)               \
  X(stream_next)               \
  X(stream_fd)                 \
  X(stream_cancel)             \
  X(stream_close)              \
  X(mocker_new)                \
  X(mocker_info)               \
  X(mocker_generate)           \
  X(mocker_leave)              \
  X(mocker_close)              \
  X(serve_new)                 \
  X(serve_info)                \
  X(serve_texts)               \
  X(serve_tokens)              \
  X(serve_stop)                \
  X(serve_close)               \
  X(publisher_new)             \
  X(publisher_publish)         \
  X(publisher_info)            \
  X(publisher_close)           \
  X(radix_tree_new)            \
  X(radix_tree_apply_event)    \
  X(radix_tree_find_matches)   \
  X(radix_tree_remove_worker)  \
  X(radix_tree_dump)           \
  X(radix_tree_close)          \
  X(runtime_new)               \
  X(runtime_info)              \
  X(runtime_close)             \
  X(runtime_serve)             \
  X(runtime_list)              \
  X(runtime_model)             \
  X(runtime_answer)            \
  X(runtime_client)            \
  X(runtime_instances)         \
  X(runtime_call)              \
  X(runtime_more)              \
  X(runtime_cancel)            \
  X(runtime_end)               \
  X(runtime_router)            \
  X(router_generate)           \
  X(runtime_publisher)         \
  X(runtime_load)              \
  X(runtime_mocker)            \
  X(runtime_add_engine)        \
  X(runtime_watch_engines)     \
  X(runtime_engines)           \
  X(runtime_drain_engine)      \
  X(runtime_remove_engine)

typedef struct {
#define X(name) __typeof__(&dgo_##name) name;
  DGO_FUNCTIONS(X)
#undef X
} library_api;

extern library_api dgo;

/* library_load: load the library unless it is loaded. The GIL is held. 0, or -1 with an exception. */
int library_load(void);

/* ---- errors.c ---- */

/* raise_status: set the Python exception of a status other than DGO_OK. Always NULL. */
PyObject *raise_status(dgo_status status, const dgo_error *error);

/* raise_invalid: set InvalidArgument with a message as of PyUnicode_FromFormat. Always NULL. */
PyObject *raise_invalid(const char *format, ...);

/* describe: a short text of a value for a message; new reference, or NULL with an exception. */
PyObject *describe(PyObject *value);

/* statuses: for each status, its name and the exception class it is raised as. */
PyObject *statuses(PyObject *module, PyObject *unused);

#define NEW_ERROR(name) dgo_error name = {.struct_size = sizeof name}
#define NEW_BUFFER(name) dgo_buffer name = {.struct_size = sizeof name}

/* ---- convert.c: single arguments. `name` is for the message. 0, or -1 with an exception. ---- */

int to_u64(PyObject *value, const char *name, uint64_t *result);
int to_u32(PyObject *value, const char *name, uint32_t *result);
int to_i64(PyObject *value, const char *name, int64_t *result);
int to_double(PyObject *value, const char *name, double *result);
int to_bool(PyObject *value, const char *name, int *result);

/* to_string: None gives "none". Borrowed from value, which must outlive the result. */
int to_string(PyObject *value, const char *name, dgo_string *result);

/* items_of: the items of an iterable as a new list. More than `limit` are InvalidArgument; it need not end. */
PyObject *items_of(PyObject *value, const char *name, size_t limit);

/* to_u64_array: any iterable of at most `limit` ints, to memory from PyMem_RawMalloc that the caller frees. */
int to_u64_array(PyObject *value, const char *name, size_t limit, uint64_t **result, size_t *count);

/* take_buffer: the buffer's contents as str, or as None-safe NULL with an exception; the buffer is freed. */
PyObject *take_buffer(dgo_buffer *buffer);

/* check_count: how many arguments a METH_FASTCALL function got. */
int check_count(const char *function, Py_ssize_t given, Py_ssize_t expected);

/* ---- tokens.c ---- */

/* Tokens of one prompt: borrowed from a buffer, or converted into memory of its own. */
typedef struct {
  const uint32_t *data;
  size_t count;
  uint32_t *owned;
  Py_buffer view;
  int has_view;
} prompt_tokens;

/* tokens_get: buffers of uint32 are used in place; everything else is copied. 0, or -1 with an exception and nothing to
 * release. */
int tokens_get(PyObject *value, prompt_tokens *tokens);
void tokens_release(prompt_tokens *tokens);

/* A call with at least so many tokens releases the GIL. Below, a call takes at most a few microseconds, and getting the
 * GIL back from a busy thread would cost more than the call (measured: 1 us held, 2.7 us released, on average). */
#define RELEASE_GIL_TOKENS ((size_t)8192)

/* ---- answer.c ---- */

/* answer_make: a future that is done. With a router (of router_type) and a request id, a booking nobody has read of yet. */
PyObject *answer_make(PyObject *loop, PyObject *value, PyObject *router, PyObject *request_id);

/* ---- batch.c ---- */

/* batch_submit: a list with, for each prompt of a tuple, its choice, its ticket, or its exception. request_ids is a tuple of str
 * or None; `common` is what else is asked of each. */
PyObject *batch_submit(dgo_router router, PyObject *prompts, PyObject *request_ids, const dgo_request *common);

/* ---- stream.c ---- */

/* stream_make: an object that owns a stream; NULL with an exception, and the stream is closed. */
PyObject *stream_make(dgo_stream handle);

/* stream_wait: dgo_stream_next without the GIL, in slices. 0, or -1 with what a signal handler raised meanwhile. */
int stream_wait(dgo_stream handle, uint32_t timeout_ms, dgo_buffer *items, size_t *ends, size_t capacity, size_t *count,
                dgo_status *status, dgo_error *error);

/* ---- msgpack.c ---- */

typedef struct {
  char *data;
  size_t size, capacity;
} packed;

typedef struct {
  const unsigned char *at, *end;
} packed_view;

/* pack: a value as MessagePack. 0, or -1 with an exception and nothing to release. */
int pack(PyObject *value, packed *p);
void pack_release(packed *p);

/* unpack: the next value; new reference, or NULL with an exception. */
PyObject *unpack(packed_view *view);

/* ---- runtime.c ---- */

/* runtime_handle: that of a _native.Runtime. 0, or -1 with an exception. */
int runtime_handle(PyObject *value, dgo_runtime *handle);

/* ---- router.c ---- */

/* choice_tuple: (worker_id, dp_rank, overlap_blocks). */
PyObject *choice_tuple(const dgo_choice *choice);

/* router_give_up: free a booking, if it is there. */
void router_give_up(PyObject *router, PyObject *request_id);

/* ---- types and functions of the module ---- */

PyTypeObject *answer_type(void);
PyTypeObject *router_type(void);
PyTypeObject *runtime_type(void);
PyTypeObject *event_reader_type(void);
PyTypeObject *mocker_type(void);
PyTypeObject *server_type(void);
PyTypeObject *publisher_type(void);
PyTypeObject *radix_tree_type(void);
PyTypeObject *stream_type(void);

PyObject *block_hashes(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *sequence_hashes(PyObject *module, PyObject *value);
PyObject *decode_batch(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *config_check(PyObject *module, PyObject *config);
PyObject *log_lines(PyObject *module, PyObject *level);

#endif
