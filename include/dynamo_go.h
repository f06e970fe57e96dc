/* dynamo_go.h: the C interface of dynamo-go, a KV-cache-aware request router.
 *
 * Which inference worker should serve this prompt? A router knows what every worker holds in its KV cache, from the
 * engines' own events, and what every worker is busy with, from the requests it placed; it picks the cheapest.
 *
 *     dgo_error error = {.struct_size = sizeof error};
 *     dgo_router router;
 *     if (dgo_router_new(16, NULL, 0, NULL, &router, &error) != DGO_OK) fail(error.message);
 *
 *     dgo_worker worker = {.struct_size = sizeof worker};
 *     worker.worker_id = 7;
 *     worker.kv_events = dgo_text("tcp://10.0.0.5:5557");
 *     worker.replay = dgo_text("tcp://10.0.0.5:6557");
 *     dgo_router_add_worker(router, &worker, &error);
 *
 *     dgo_request request = {.struct_size = sizeof request};
 *     request.request_id = dgo_text("req-1");                 // an id books the request; none only asks
 *     dgo_choice choice = {.struct_size = sizeof choice};
 *     if (dgo_router_best_worker(router, tokens, n_tokens, &request, &choice, &error) == DGO_OK) {
 *         // send the prompt to choice.worker_id ... the first output token came:
 *         dgo_router_mark_prefill_complete(router, "req-1", 5, NULL);
 *         // ... the request ended:
 *         dgo_router_free(router, "req-1", 5, NULL);
 *     }
 *     dgo_router_close(router, NULL);
 *
 * Conventions, for every function unless its comment says otherwise:
 *
 *   Status     The result is a dgo_status. Anything but DGO_OK means that nothing was done and no output was written
 *              (except *error). Besides what its comment lists, every function may return DGO_FORKED, DGO_INTERNAL, and
 *              DGO_INVALID_ARGUMENT for an `error` that is none.
 *   Error      `error` may be NULL. Otherwise set error->struct_size first; on a status other than DGO_OK the message
 *              names the offending value and what was expected. It is cut at the buffer's end, never inside a character.
 *   Structs    A struct begins with struct_size, which the caller sets to sizeof. Later versions only append members, so
 *              a program built against an older header keeps working; a size this version does not know, or a pointer
 *              that is not aligned for its type, is DGO_INVALID_ARGUMENT. Zero the rest: zero is every member's default.
 *   Strings    Pointer and length (dgo_string), UTF-8, no terminator needed. A NULL pointer means "none", which is not
 *              the same as the empty string. Invalid UTF-8, NULL with a length, or a length above its limit
 *              (DGO_STRING_MAX, for JSON DGO_JSON_MAX) is DGO_INVALID_ARGUMENT.
 *   Arguments  Of an array or a text `x`, `n_x` is the number of elements and `x_size` the number of bytes. A handle that a
 *              function is named after (`router` of dgo_router_*) is a live one. Numbers without a range may have any value.
 *   Ownership  Inputs are borrowed for the duration of the call and never kept. Outputs go to memory of the caller, or to
 *              a dgo_buffer, which the caller frees with dgo_buffer_free. A buffer that is given again must be freed before:
 *              what it holds is overwritten. An [out] argument must not be NULL, unless its comment says that it may.
 *   Handles    64-bit values, never pointers: of one kind, valid until closed. 0 is never valid. A closed handle gives
 *              DGO_CLOSED, anything that never was a handle of that kind DGO_BAD_HANDLE. At most 16,384 live handles of
 *              a kind.
 *   Threads    Any thread may call any function at any time, also with the same handle, also while it is being closed. Memory
 *              of the caller, dgo_error included, belongs to one call at a time.
 *   Blocking   No call blocks longer than 100 ms, but dgo_mocker_close, dgo_publisher_close, dgo_serve_close,
 *              dgo_router_save and dgo_router_load, whose comments say how long; and none does network I/O: sockets have threads of their own.
 *   Fork       The library starts threads when it is loaded. A child forked after that gets DGO_FORKED from every call;
 *              the parent goes on. fork + exec is fine, and so is loading the library in the child.
 *   Signals    No call installs a signal handler. Loading installs what the Go runtime needs (SIGSEGV, SIGBUS, SIGFPE, SIGPIPE,
 *              SIGURG): the host's own handlers are still called for its own faults, and SIGPIPE does what it did. No signal
 *              for the host comes to a thread of the library, but SIGCHLD and SIGPROF may. Any may interrupt a call, on a stack
 *              of the Go runtime's that is small: the host's handlers must have SA_ONSTACK. What was installed before loading
 *              gets it; install later ones with it. SIGURG is the Go runtime's.
 *   Output     Nothing writes to stdout, nor, unless dgo_log or DYN_LOG says so, to stderr.
 *   Unloading  dlclose does not unload the library.
 *
 * All functions and types are since ABI 1.
 */
#ifndef DYNAMO_GO_H
#define DYNAMO_GO_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DGO_VERSION "0.1.0"
#define DGO_ABI_VERSION 1u

/* Limits. */
#define DGO_TOKENS_MAX ((size_t)1 << 24)     /* tokens of one prompt */
#define DGO_STRING_MAX ((size_t)1 << 16)     /* bytes of an id, name or endpoint */
#define DGO_JSON_MAX ((size_t)1 << 30)       /* bytes of a JSON text or of an engine's payload */
#define DGO_WORKER_IDS_MAX ((size_t)1 << 20) /* elements of allowed_worker_ids, of taints */
#define DGO_EVENTS_MAX ((size_t)1 << 17)     /* events of one call */
#define DGO_STREAM_ITEMS_MAX ((size_t)1 << 20) /* items of one dgo_stream_next */
#define DGO_CREDIT_MAX ((size_t)1 << 20)     /* items that a call of a runtime may be ahead of its reader */
#define DGO_WAIT_MS_MAX 100u                 /* longest wait of a call that may wait */

/* Status of a call. Values never change their meaning; later versions may add some. */
typedef int32_t dgo_status;
enum {
  DGO_OK = 0,
  DGO_INTERNAL = 1,             /* a fault of the library: please report the message. The process and other handles live on */
  DGO_BAD_HANDLE = 2,           /* the value is not, and never was, a handle of this kind */
  DGO_INVALID_ARGUMENT = 3,     /* an argument is out of its range or malformed */
  DGO_NOT_IMPLEMENTED = 4,      /* the value asks for a feature that this version does not have */
  DGO_REQUEST_NOT_FOUND = 5,    /* the request id was never booked, or was freed before */
  DGO_DUPLICATE_REQUEST = 6,    /* the request id is booked already */
  DGO_WORKER_NOT_FOUND = 7,     /* no such worker, or the worker has no such rank */
  DGO_DUPLICATE_WORKER = 8,     /* the worker id is registered with other endpoints */
  DGO_NO_WORKERS = 9,           /* no registered worker is eligible; it may work once one joins */
  DGO_OVERLOADED = 10,          /* a limit of the library or of the workers is reached; try again later */
  DGO_QUEUE_LIMIT_EXCEEDED = 11, /* the request would have to wait, and as many wait as may */
  DGO_TIMEOUT = 12,             /* nothing came in the time given */
  DGO_CLOSED = 13,              /* the handle was closed */
  DGO_FORKED = 14,              /* the process was forked after the library was loaded */
  DGO_EVENT_REFUSED = 15,       /* the event contradicts what the rank holds (unknown parent, broken chain) */
  DGO_CANNOT_CONNECT = 16,      /* an address cannot be bound or reached */
  DGO_DISCONNECTED = 17,        /* who served a stream is gone before its end */
  DGO_CANCELLED = 18,           /* the request was cancelled while it waited, or the stream was killed */
  DGO_WORKER_ERROR = 19,        /* the worker's handler failed; the message is the worker's */
  DGO_FILE_ERROR = 20,          /* a file cannot be read or written */
  DGO_SNAPSHOT_REFUSED = 21,    /* the file is no snapshot that this router can load */
  DGO_SESSION_MOVED = 22,       /* session_affinity_mode "hard": the session's own rank cannot be chosen; ask again to tie it anew */
  DGO_ENDED = 23                /* a stream gave everything and ended well; its handle is still to be closed */
};

/* Where a failed call explains itself. Caller-owned; 512 bytes; set struct_size = sizeof(dgo_error). */
typedef struct dgo_error {
  uint32_t struct_size;
  dgo_status status;  /* [out] what the call returned; untouched on DGO_OK */
  char message[504];  /* [out] UTF-8, terminated by NUL */
} dgo_error;

/* Bytes the library allocated. Caller-owned struct; set struct_size; give to dgo_buffer_free when done. */
typedef struct dgo_buffer {
  uint32_t struct_size;
  uint32_t reserved;
  char *data;   /* [out] `size` bytes followed by a NUL that is not counted */
  size_t size;  /* [out] */
} dgo_buffer;

/* A borrowed string. {NULL, 0} is "none"; a pointer with size 0 is the empty string. */
typedef struct dgo_string {
  const char *data;
  size_t size;
} dgo_string;

/* dgo_text: a dgo_string over a NUL-terminated string, borrowed; NULL gives "none". */
static inline dgo_string dgo_text(const char *text) {
  dgo_string s;
  s.data = text;
  s.size = text == NULL ? 0 : strlen(text);
  return s;
}

typedef uint64_t dgo_router;     /* closed by dgo_router_close */
typedef uint64_t dgo_stream;     /* closed by dgo_stream_close */
typedef uint64_t dgo_mocker;     /* closed by dgo_mocker_close */
typedef uint64_t dgo_publisher;  /* closed by dgo_publisher_close */
typedef uint64_t dgo_radix_tree; /* closed by dgo_radix_tree_close */
typedef uint64_t dgo_runtime;    /* closed by dgo_runtime_close */
typedef uint64_t dgo_server;     /* closed by dgo_serve_close */

/* ---- Library ---------------------------------------------------------------------------------------------------- */

/* dgo_abi_version: the ABI the library has; compare with DGO_ABI_VERSION. Works after fork. Never fails. */
uint32_t dgo_abi_version(void);

/* dgo_version: the release, such as "0.1.0". Static storage. Works after fork. Never fails. */
const char *dgo_version(void);

/* dgo_status_name: the name of a status without its prefix, such as "INVALID_ARGUMENT"; NULL for a value that is none.
 * Static storage. Works after fork. Never fails. */
const char *dgo_status_name(dgo_status status);

/* dgo_buffer_free: free what a call put into a buffer, and empty it. NULL and an empty buffer are fine, twice is fine.
 * Works after fork. */
void dgo_buffer_free(dgo_buffer *buffer);

/* dgo_log: say where the library's log goes. It goes nowhere unless the environment variable DYN_LOG had a level when the
 * library was loaded ("info", or Dynamo's "info,module=debug", of which the part for everything counts): then to standard error.
 * Told are workers that join and leave, every change of how complete the view of a rank is with the reason, events that are left
 * out (at most once a minute for a rank), and faults of the library.
 *   level  [in]  "off", "error", "warn", "info", "debug" or "trace", level_size bytes.
 *   lines  [out] NULL: the log goes to standard error, as lines of text. Otherwise it goes to a new stream, an item a line:
 *                {"time","level","msg",...}. 1,024 lines wait for the reader; more are dropped, and a line says how many. The
 *                stream ends when dgo_log is called again. With "off" there is none, and 0 is written.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT | DGO_OVERLOADED (too many handles). */
dgo_status dgo_log(const char *level, size_t level_size, dgo_stream *lines, dgo_error *error);

/* ---- Router ----------------------------------------------------------------------------------------------------- */

/* dgo_router_new: make a router without workers.
 *   block_size   [in]  tokens per KV block of the engines, 1 .. 1,048,576.
 *   config       [in]  JSON object with the fields of Dynamo's KvRouterConfig, config_size bytes; NULL for the defaults.
 *                      Besides, "max_bytes" bounds the memory of what is known of the workers' blocks, at least 16 MiB:
 *                      at the bound the least recently used go, and dgo_router_health calls the ranks that lost some
 *                      partial; "max_answer_bytes" bounds the answers of local indexers that are read at a time, 64 MiB if it is 0 (a
 *                      rank whose state is longer stays partial). Unknown fields are refused. dgo_config_check tells the same without making a router.
 *   seed         [in]  NULL, or a seed with which the choices among equals are repeatable.
 *   router       [out] the handle; close it with dgo_router_close.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT | DGO_NOT_IMPLEMENTED | DGO_OVERLOADED (too many handles). */
dgo_status dgo_router_new(int64_t block_size, const char *config, size_t config_size, const uint64_t *seed,
                          dgo_router *router, dgo_error *error);

/* dgo_router_close: stop following the workers and forget everything. Calls in flight end as if they had come before or
 * after. Closing again is DGO_OK; so is 0.
 * Returns: DGO_OK | DGO_BAD_HANDLE. */
dgo_status dgo_router_close(dgo_router router, dgo_error *error);

/* A worker, as dgo_router_add_worker takes it. */
typedef struct dgo_worker {
  uint32_t struct_size;
  uint32_t dp_start;  /* first global data-parallel rank of this worker; dp_start + dp_size is below 2^32 */
  uint32_t dp_size;   /* number of ranks, at most 4,096 (a router has at most 65,536); 0 means 1 */
  uint32_t has_block_size;
  uint64_t worker_id; /* any value */
  int64_t block_size; /* with has_block_size: tokens per block of the worker; must be the router's */
  /* Where the ranks publish KV events, and where they replay them. Either a base endpoint, "tcp://HOST:PORT", where rank
   * r uses PORT + r and HOST "*" means `host`, or a JSON object from rank to endpoint: {"0": "tcp://10.0.0.5:5557"}.
   * None: events come by dgo_router_apply_event only. */
  dgo_string kv_events;
  dgo_string replay;
  dgo_string topic;                /* ZeroMQ topic prefix; none means all */
  dgo_string host;                 /* stands for "*" in the endpoints */
  const dgo_string *taints;        /* n_taints labels that routing constraints can ask for; may be NULL if 0 */
  size_t n_taints;
  uint64_t max_num_batched_tokens; /* capacity the engine reports; 0 = unknown */
  uint64_t total_kv_blocks;        /* likewise */
  /* n_adapters names of LoRA adapters that are loaded; may be NULL if 0. Requests for one that any worker names go to those
   * that name it, if they can. */
  const dgo_string *adapters;
  size_t n_adapters;
  /* Where the ranks' local indexers answer queries, written as kv_events is: a router that missed events asks there, and gets
   * them or the rank's whole state. `replay` is not used then. None: no rank has a local indexer. */
  dgo_string query;
} dgo_worker;

/* dgo_router_add_worker: register a worker; it is a candidate at once. Connections are made in the background, whether
 * anybody answers or not; dgo_router_health tells how far they are. The same id with the same endpoints
 * updates the rest, ranks included (with endpoints by rank those are part of them).
 *   worker  [in]  required.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_NOT_IMPLEMENTED | DGO_DUPLICATE_WORKER. */
dgo_status dgo_router_add_worker(dgo_router router, const dgo_worker *worker, dgo_error *error);

/* dgo_router_remove_worker: forget a worker, its blocks and its bookings. Added again, it starts empty.
 *   worker_id  [in]  of dgo_router_add_worker.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_WORKER_NOT_FOUND. */
dgo_status dgo_router_remove_worker(dgo_router router, uint64_t worker_id, dgo_error *error);

/* dgo_router_workers: the registered workers.
 *   workers  [out] JSON array of objects: worker_id, dp_start, dp_size, kv_events, replay, query (each a base endpoint, an object from rank to
 *                  endpoint, or null), topic, host, block_size, max_num_batched_tokens, total_kv_blocks (null: not known), taints, adapters.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_router_workers(dgo_router router, dgo_buffer *workers, dgo_error *error);

/* Flags of dgo_router_apply_event. */
#define DGO_APPLY_SET 1u /* a block stored twice has one reference; without it every store counts */

/* dgo_router_apply_event: apply one KV event of a worker, from a source that the caller follows itself.
 *   worker_id  [in]  of dgo_router_add_worker.
 *   event      [in]  one KvCacheEvent as JSON, event_size bytes:
 *                    {"event_id":1,"dp_rank":0,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":H,"tokens_hash":T}]}}},
 *                    "data":{"removed":{"block_hashes":[H]}} or "data":"cleared". Hashes are -2^63 .. 2^64-1: block_hash is the
 *                    engine's own name of a block, tokens_hash what dgo_compute_block_hashes gives for it. event_id is not checked;
 *                    dp_rank is the global rank, 0 if it is not there. "storage_tier" is device if it is not there, or host_pinned,
 *                    disk or external.
 *   flags      [in]  0 or DGO_APPLY_SET.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (malformed) | DGO_WORKER_NOT_FOUND |
 *          DGO_EVENT_REFUSED (unknown parent, broken chain). */
dgo_status dgo_router_apply_event(dgo_router router, uint64_t worker_id, const char *event, size_t event_size,
                                  uint32_t flags, dgo_error *error);

/* ---- Prompts ---------------------------------------------------------------------------------------------------- */

/* Flags of dgo_request. */
#define DGO_REQUEST_WORKER_ID 1u      /* worker_id is set: only this worker */
#define DGO_REQUEST_DP_RANK 2u        /* dp_rank is set: only this rank */
#define DGO_REQUEST_UPDATE_INDEXER 4u /* presume that the chosen rank holds the prompt, if the configuration presumes */
#define DGO_REQUEST_TIMEOUT 8u        /* timeout_seconds is set */

/* What is asked about a prompt besides its tokens. Zeroed (but for struct_size), or a NULL pointer, it is a plain query. */
typedef struct dgo_request {
  uint32_t struct_size;
  uint32_t flags;
  /* Identity: what, besides tokens, makes cached blocks equal. */
  dgo_string lora_name;
  dgo_string cache_namespace; /* cache salt */
  dgo_string block_mm_infos;  /* JSON array, an element per block: null or {"mm_objects":[{"mm_hash":H,"offsets":[[s,e]]}]} */
  /* Booking: none only asks. The id stays booked until dgo_router_free, or until it expires. */
  dgo_string request_id;
  /* Who may be chosen. */
  uint64_t worker_id;
  uint32_t dp_rank;
  uint32_t strict_priority;           /* of those that wait, higher goes first */
  const uint64_t *allowed_worker_ids; /* NULL: all; otherwise only these n_allowed_worker_ids, none if that is 0 */
  size_t n_allowed_worker_ids;
  dgo_string routing_constraints;     /* JSON object: {"required_taints":[...],"preferred_taints":{"taint":weight}} */
  /* How the choice is made. */
  dgo_string router_config_override;  /* JSON object: overlap_score_credit, prefill_load_scale, router_temperature, ... */
  dgo_string policy_class;            /* how it waits: a class or family of the policy file; one not known is the default */
  dgo_string session_id;              /* at most 256 bytes: prefers the rank that served the session, and a booking ties it to the
                                         chosen one. Without session_affinity_ttl_secs in the configuration it has no effect */
  double timeout_seconds;             /* how long the request may wait; finite, >= 0 */
  double priority_jump;               /* seconds of head start, or weight, of those that wait; finite */
  /* What a cache that all ranks share holds of the prompt: n_shared_ranges pairs [start, end) of block positions, ascending,
   * apart. */
  const uint32_t *shared_ranges;
  size_t n_shared_ranges;
} dgo_request;

/* A chosen worker. Caller-owned; set struct_size. */
typedef struct dgo_choice {
  uint32_t struct_size;
  uint32_t dp_rank;        /* [out] global rank */
  uint64_t worker_id;      /* [out] */
  uint32_t overlap_blocks; /* [out] leading full blocks of the prompt that the chosen rank holds on its device */
  uint32_t reserved;
} dgo_choice;

/* dgo_router_best_worker: choose a worker for one prompt; with a request id, book it there in the same step.
 *   tokens   [in]  n_tokens token ids, at most DGO_TOKENS_MAX; may be NULL iff n_tokens is 0.
 *   request  [in]  may be NULL.
 *   choice   [out] required.
 * Cost: about 3 microseconds for 4,096 tokens; no allocation without a request id.
 * Returns, the first that holds: DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_WORKER_NOT_FOUND (a pinned worker or
 *          rank) | DGO_NO_WORKERS | DGO_OVERLOADED (every rank that fits is beyond a limit of the configuration) | DGO_TIMEOUT (the
 *          request has to wait: dgo_router_submit) | DGO_DUPLICATE_REQUEST | DGO_SESSION_MOVED | DGO_OK. */
dgo_status dgo_router_best_worker(dgo_router router, const uint32_t *tokens, size_t n_tokens, const dgo_request *request,
                                  dgo_choice *choice, dgo_error *error);

/* dgo_router_submit: dgo_router_best_worker for a request that may wait (router_queue_threshold, router_policy_config). It goes
 * when a request ends or its prefill does, a worker joins or leaves, or a booking expires; in the step in which it goes it is
 * booked. Requests without an id wait too.
 *   tokens, request  [in]  as of dgo_router_best_worker. Nothing of them is needed after the call.
 *   choice           [out] required; filled in if the request need not wait.
 *   ticket           [out] 0 if the choice was made. Otherwise give it to dgo_router_wait or dgo_router_cancel, which end it.
 * Returns: as dgo_router_best_worker; DGO_TIMEOUT only if timeout_seconds is 0; DGO_QUEUE_LIMIT_EXCEEDED (the class holds as
 *          many as it may). */
dgo_status dgo_router_submit(dgo_router router, const uint32_t *tokens, size_t n_tokens, const dgo_request *request,
                             dgo_choice *choice, uint64_t *ticket, dgo_error *error);

/* dgo_router_wait: take the result of a ticket, once.
 *   ticket      [in]  of dgo_router_submit.
 *   timeout_ms  [in]  milliseconds, 0 .. DGO_WAIT_MS_MAX; 0 does not wait.
 *   choice      [out] required; filled in if done.
 *   done        [out] required; 0: the request still waits, and so does the ticket.
 * Blocks: up to timeout_ms.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (no such ticket) or how the request ended, as
 *          dgo_router_best_worker: DGO_TIMEOUT if it waited longer than it may. After any of those the ticket is gone. */
dgo_status dgo_router_wait(dgo_router router, uint64_t ticket, uint32_t timeout_ms, dgo_choice *choice, int32_t *done,
                           dgo_error *error);

/* dgo_router_cancel: give a request up, and its ticket. If it was chosen for already and nobody took that, its booking is freed.
 *   ticket  [in]  of dgo_router_submit.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (no such ticket: its result was taken). */
dgo_status dgo_router_cancel(dgo_router router, uint64_t ticket, dgo_error *error);

/* dgo_router_ready_fd: a descriptor that is readable while tickets of this router are done, for an event loop. It stays the
 * router's: only poll it, and stop before dgo_router_close closes it. Linux (an eventfd).
 *   fd  [out] the same at every call.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_OVERLOADED (no descriptor is left). */
dgo_status dgo_router_ready_fd(dgo_router router, int *fd, dgo_error *error);

/* dgo_router_ready: which tickets are done since dgo_router_ready_fd was called first, each once or more. Take their results with
 * dgo_router_wait. A ticket can be listed before its dgo_router_submit returns.
 *   tickets  [out] room for `capacity`; capacity is at least 1.
 *   count    [out] how many were written. If there are more, the descriptor stays readable.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_router_ready(dgo_router router, uint64_t *tickets, size_t capacity, size_t *count, dgo_error *error);

/* dgo_router_mark_prefill_complete: the request's first output token came: its prompt no longer loads the worker. Marking
 * twice is fine.
 *   request_id  [in]  of the booking, request_id_size bytes; not NULL.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND. */
dgo_status dgo_router_mark_prefill_complete(dgo_router router, const char *request_id, size_t request_id_size,
                                            dgo_error *error);

/* dgo_router_free: the request ended, however it did; its booking goes. An id whose booking expired, or whose worker was
 * removed, can be freed once.
 *   request_id  [in]  of the booking, request_id_size bytes; not NULL.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND. */
dgo_status dgo_router_free(dgo_router router, const char *request_id, size_t request_id_size, dgo_error *error);

/* dgo_router_add_output_block: the request's output filled n more blocks.
 *   request_id      [in]  of the booking, request_id_size bytes; not NULL.
 *   n               [in]  blocks, 0 .. 2^31-1.
 *   decay_fraction  [in]  NULL, or in 0 .. 1: how much of the expected output is still to come; the booking's blocks
 *                         weigh that much.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND. */
dgo_status dgo_router_add_output_block(dgo_router router, const char *request_id, size_t request_id_size, int64_t n,
                                       const double *decay_fraction, dgo_error *error);

/* dgo_router_report_cached_tokens: how many tokens of a booked request's prompt its engine found in its cache ("cached_tokens" of a usage), at any
 * time from its decision on, also when it was freed. The first report counts. Without effect where record_decisions of the configuration is 0.
 *   request_id     [in]  of the booking, request_id_size bytes; not NULL.
 *   cached_tokens  [in]  at least 0; more than the prompt has counts as all of it.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND (the latest decisions have no such request). */
dgo_status dgo_router_report_cached_tokens(dgo_router router, const char *request_id, size_t request_id_size, int64_t cached_tokens,
                                           dgo_error *error);

/* dgo_router_decisions: the latest decisions that chose a rank, as many as record_decisions of the configuration says.
 *   after      [in]  only those with a higher number; 0 for all.
 *   decisions  [out] JSON array, oldest first, of objects: number (from 1 on), at (Unix seconds), request_id (null: nothing was booked), worker_id,
 *                    dp_rank, prompt_tokens, predicted_cached_tokens (what the rank holds of the prompt, as far as the router knows),
 *                    actual_cached_tokens (dgo_router_report_cached_tokens, or by itself of a request of dgo_router_generate; null: not reported).
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_router_decisions(dgo_router router, uint64_t after, dgo_buffer *decisions, dgo_error *error);

/* What a rank would be busy with if it got the prompt. */
typedef struct dgo_potential_load {
  uint64_t worker_id;
  uint32_t dp_rank;
  uint32_t active_requests;         /* requests booked on the rank */
  int64_t potential_prefill_tokens; /* uncached prompt tokens of active requests and of this prompt */
  int64_t potential_decode_blocks;  /* distinct blocks of active requests and of this prompt */
} dgo_potential_load;

/* dgo_router_get_potential_loads: the load of every rank, with the prompt added.
 *   tokens    [in]  n_tokens token ids; may be NULL iff n_tokens is 0: the current load.
 *   request   [in]  may be NULL; its identity members are read, the others ignored.
 *   rows      [out] room for `capacity` rows of row_size bytes; may be NULL iff capacity is 0.
 *   row_size  [in]  sizeof(dgo_potential_load).
 *   count     [out] ranks there are. If it exceeds capacity, the first `capacity` rows were written: ask again with room.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_router_get_potential_loads(dgo_router router, const uint32_t *tokens, size_t n_tokens,
                                          const dgo_request *request, dgo_potential_load *rows, size_t row_size,
                                          size_t capacity, size_t *count, dgo_error *error);

/* dgo_router_get_overlap_scores: how many leading blocks of the prompt every rank holds, by tier.
 *   tokens   [in]  as of dgo_router_best_worker.
 *   request  [in]  may be NULL; its identity members are read, the others ignored.
 *   scores   [out] JSON object: block_size, num_blocks (full blocks of the prompt), workers (an object per rank: worker_id, dp_rank,
 *                  device_blocks; host_pinned_blocks and disk_blocks, up to where these tiers go on; host_pinned_extension_blocks and
 *                  disk_extension_blocks, what they add; shared_beyond_device_blocks, or null), shared_cache (enabled,
 *                  total_hit_blocks, ranges, error).
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_router_get_overlap_scores(dgo_router router, const uint32_t *tokens, size_t n_tokens,
                                         const dgo_request *request, dgo_buffer *scores, dgo_error *error);

/* dgo_router_explain: what dgo_router_best_worker would weigh for the request. Books nothing.
 *   tokens, request  [in]  as of dgo_router_best_worker.
 *   explanation      [out] JSON object: isl_tokens, block_size, num_blocks, weights, track_prefill_tokens, assume_kv_reuse, error (why none
 *                          can be chosen, or null), must_wait, picks (the ranks that may be chosen: worker_id, dp_rank), workers (an object
 *                          per rank: worker_id, dp_rank, excluded ("", or why it is no candidate), what it holds and is busy with, the terms
 *                          of its cost, cost in blocks, probability). docs/concepts.md has the formula.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_NOT_IMPLEMENTED. That no rank is eligible is
 *          part of the explanation. */
dgo_status dgo_router_explain(dgo_router router, const uint32_t *tokens, size_t n_tokens, const dgo_request *request,
                              dgo_buffer *explanation, dgo_error *error);

/* ---- State ------------------------------------------------------------------------------------------------------ */

/* dgo_router_dump_events: what the router knows of every rank's blocks, as stores that rebuild it, parents first.
 *   events  [out] JSON array of Dynamo's RouterEvent.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_router_dump_events(dgo_router router, dgo_buffer *events, dgo_error *error);

/* dgo_router_load_events: apply a dump, lower tiers included. Each block gets one reference. A rank with event endpoints takes
 * it only before its own events are known, and gives it up for them: a dump does not say how old it is. Later it is counted as
 * unproven_events (dgo_router_health). dgo_router_save and dgo_router_load go together with events.
 *   events  [in]  JSON array of RouterEvent, size bytes.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (malformed: nothing applied) |
 *          DGO_WORKER_NOT_FOUND | DGO_EVENT_REFUSED (the events before the refused one stay applied). */
dgo_status dgo_router_load_events(dgo_router router, const char *events, size_t size, dgo_error *error);

/* dgo_router_save: write what all ranks hold to a file, for a router that starts later. The file is replaced at once or not
 * at all. Each rank is saved at one position of its events. Bookings are not saved, and neither is what is presumed
 * without events. A link stays, and what it leads to is replaced; a file that is there keeps its mode, a new one is for its
 * owner only; what is there and no regular file is DGO_FILE_ERROR.
 *   path  [in]  path_size bytes.
 * Blocks: while it writes, less than a second per ten million (block, rank) pairs. Events wait so long, and so do workers
 *         that join or leave; decisions do not.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_FILE_ERROR. */
dgo_status dgo_router_save(dgo_router router, const char *path, size_t path_size, dgo_error *error);

/* dgo_router_load: read a file of dgo_router_save. Call it before the workers are added: a restored rank waits until its
 * worker is. If it has event endpoints then, its blocks are kept only if the engine's replay shows that they are current;
 * otherwise only if it had none before. Of registered ranks, those without event endpoints that hold nothing are restored too.
 * dgo_router_remove_worker gives up what waits for a worker.
 *   path   [in]  path_size bytes.
 *   ranks  [out] NULL, or gets the number of ranks that were restored.
 * Blocks: while it reads, at most a second per million pairs. Workers that join or leave wait so long.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_FILE_ERROR (also: no regular file) |
 *          DGO_SNAPSHOT_REFUSED (foreign, of another version or block size, torn, or corrupt). With each of them the router is
 *          as it was. */
dgo_status dgo_router_load(dgo_router router, const char *path, size_t path_size, size_t *ranks, dgo_error *error);

/* dgo_router_health: how complete the view of every rank is, and why.
 *   health  [out] JSON array of objects: worker_id, dp_rank, state, reason, since (Unix seconds), last_seq, counters,
 *                 findings: why prompts do not find what the rank holds, each an object with cause, evidence, action.
 *                 The state is exact, recovering, partial or disconnected; without events it is presumed.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_router_health(dgo_router router, dgo_buffer *health, dgo_error *error);

/* dgo_router_stats: how big the router is.
 *   stats  [out] JSON object with at least blocks, pairs, paths, bytes, memory (the parts of bytes), max_bytes, evicted_blocks, host_pinned_blocks,
 *                disk_blocks, external_blocks (pairs of the lower tiers), presumed_blocks,
 *                waiting_ranks (loaded and not added).
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_router_stats(dgo_router router, dgo_buffer *stats, dgo_error *error);

/* dgo_router_replicate: share load with other routers of the same workers, without a server: each hears what the others place,
 * and counts it. Once, until the router is closed. Delivery is best effort; what was placed before a router joins it does not
 * hear. Messages are those of Dynamo's replica mesh.
 *   replicas  [in]  JSON object, size bytes, all fields optional but one of the first two: bind (endpoint to publish on, such as
 *                   "tcp://0.0.0.0:5600"), connect (array of the others' endpoints; the own one may be among them), id (among the
 *                   replicas, 1 .. 2^64-1), model, group, peer_timeout_secs (30: a router out of reach for so long is gone).
 *   result    [out] JSON object: bind (its port resolved), id.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (also a second call) | DGO_CANNOT_CONNECT (the endpoint
 *          cannot be bound). */
dgo_status dgo_router_replicate(dgo_router router, const char *replicas, size_t size, dgo_buffer *result, dgo_error *error);

/* dgo_router_metrics: what a Prometheus server would scrape: decisions, loads, events, completeness, memory, under Dynamo's
 * names where there are any. Serve it as "text/plain; version=0.0.4".
 *   page  [out] text.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_router_metrics(dgo_router router, dgo_buffer *page, dgo_error *error);

/* dgo_config_check: read a configuration as dgo_router_new would.
 *   config  [in]  JSON object, size bytes.
 *   result  [out] NULL, or gets the complete configuration, defaults filled in, as a JSON object.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT | DGO_NOT_IMPLEMENTED. */
dgo_status dgo_config_check(const char *config, size_t size, dgo_buffer *result, dgo_error *error);

/* ---- Hashes ----------------------------------------------------------------------------------------------------- */

/* dgo_compute_block_hashes: the hash of each full block of a prompt, by Dynamo's formula.
 *   tokens      [in]  n_tokens token ids; may be NULL iff n_tokens is 0.
 *   block_size  [in]  tokens per block, 1 .. 1,048,576.
 *   request     [in]  may be NULL; its identity members are read, the others ignored.
 *   eagle       [in]  not 0: windows of block_size + 1 tokens, as EAGLE drafters use.
 *   hashes      [out] room for `capacity` values; may be NULL iff capacity is 0.
 *   count       [out] blocks there are. If it exceeds capacity, nothing was written to hashes.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT. */
dgo_status dgo_compute_block_hashes(const uint32_t *tokens, size_t n_tokens, int64_t block_size,
                                    const dgo_request *request, int32_t eagle, uint64_t *hashes, size_t capacity,
                                    size_t *count, dgo_error *error);

/* dgo_compute_sequence_hashes: the rolling hash of each block and all before it.
 *   hashes     [in]  n block hashes; may be NULL iff n is 0.
 *   sequences  [out] room for n values; may be the same memory as hashes.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT. */
dgo_status dgo_compute_sequence_hashes(const uint64_t *hashes, size_t n, uint64_t *sequences, dgo_error *error);

/* ---- Radix tree ------------------------------------------------------------------------------------------------- */

/* An index by itself, for those who score on their own: KV events in, how many leading blocks each rank holds out. A rank comes
 * with its first store; at most 65,536. */

/* dgo_radix_tree_new: make an empty tree.
 *   tree  [out]  a live handle; close it with dgo_radix_tree_close.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT | DGO_OVERLOADED (too many live trees). */
dgo_status dgo_radix_tree_new(dgo_radix_tree *tree, dgo_error *error);

/* dgo_radix_tree_apply_event: apply one KV event of a worker.
 *   worker_id  [in]  any value.
 *   event      [in]  one KvCacheEvent as JSON, event_size bytes, as of dgo_router_apply_event, but for device blocks only. A block
 *                    that is stored twice has one reference (DGO_APPLY_SET).
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (malformed, another tier) | DGO_OVERLOADED (too many
 *          ranks) | DGO_EVENT_REFUSED: unknown parent or broken chain, and nothing changed; or a block to remove is not held, and
 *          those that were are removed. */
dgo_status dgo_radix_tree_apply_event(dgo_radix_tree tree, uint64_t worker_id, const char *event, size_t event_size, dgo_error *error);

/* A row of dgo_radix_tree_find_matches. */
typedef struct dgo_match {
  uint64_t worker_id;
  uint32_t dp_rank;
  uint32_t blocks; /* leading blocks that the rank holds, at least 1 */
} dgo_match;

/* dgo_radix_tree_find_matches: how many leading blocks of a prompt each rank holds; ranks that hold none have no row. Rows come in
 * no particular order.
 *   block_hashes  [in]   n_blocks hashes as of dgo_compute_block_hashes; may be NULL iff n_blocks is 0.
 *   rows          [out]  room for `capacity` rows; may be NULL iff capacity is 0.
 *   row_size      [in]   sizeof(dgo_match).
 *   count         [out]  rows there are. If it exceeds capacity, the first `capacity` were written.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_radix_tree_find_matches(dgo_radix_tree tree, const uint64_t *block_hashes, size_t n_blocks, dgo_match *rows,
                                       size_t row_size, size_t capacity, size_t *count, dgo_error *error);

/* dgo_radix_tree_remove_worker: forget a worker's ranks and their blocks. Of a worker that is not there, nothing.
 *   worker_id  [in]  of dgo_radix_tree_apply_event.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED. */
dgo_status dgo_radix_tree_remove_worker(dgo_radix_tree tree, uint64_t worker_id, dgo_error *error);

/* dgo_radix_tree_dump: everything that can be matched, as RouterEvents that store it, parents first, event_id from 0.
 *   events  [out]  JSON, an event a line; free it with dgo_buffer_free.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_radix_tree_dump(dgo_radix_tree tree, dgo_buffer *events, dgo_error *error);

/* dgo_radix_tree_close: end a tree. Closing again, or 0, does nothing.
 * Returns: DGO_OK | DGO_BAD_HANDLE. */
dgo_status dgo_radix_tree_close(dgo_radix_tree tree, dgo_error *error);

/* ---- Engine events ---------------------------------------------------------------------------------------------- */

/* dgo_decode_batch: decode one batch of an engine's KV events (vLLM, SGLang).
 *   payload  [in]  MessagePack, payload_size bytes; not NULL.
 *   seq      [in]  NULL, or the batch's sequence number.
 *   lines    [out] one JSON object and a newline per event: seq, ts, dp_rank, type, ...; {"error","type"} for an event
 *                  that cannot be decoded.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT (the payload as a whole cannot be decoded). */
dgo_status dgo_decode_batch(const char *payload, size_t payload_size, const uint64_t *seq, dgo_buffer *lines,
                            dgo_error *error);

/* dgo_events_open: read an engine's events as they come, connecting in the background.
 *   endpoint  [in]  the PUB socket, "tcp://HOST:PORT" or "ipc://PATH".
 *   replay    [in]  NULL, or the replay socket: what it still holds comes first.
 *   topic     [in]  NULL for all.
 *   events    [out] the stream. An item is what dgo_decode_batch gives of one batch. The message of its DGO_TIMEOUT ends with
 *                   the state of the connection: "connecting", "connected", "cannot connect: why", "connection lost: why".
 *                   1,024 items wait for the reader; the engine's socket holds, and in the end drops, what follows.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT | DGO_OVERLOADED (too many handles). */
dgo_status dgo_events_open(const char *endpoint, size_t endpoint_size, const char *replay, size_t replay_size, const char *topic,
                           size_t topic_size, dgo_stream *events, dgo_error *error);

/* ---- Streams ---------------------------------------------------------------------------------------------------- */

/* A stream gives items, byte strings of any content, in order, and last how it ended. Whoever fills it is held back while more
 * items wait than its buffer has room for, so a reader that falls behind costs no memory. An event loop polls the descriptor
 * and takes all that came in one call; a program without one waits in the call:
 *
 *     struct pollfd poll_for = {.events = POLLIN};
 *     dgo_stream_fd(stream, &poll_for.fd, NULL);
 *     dgo_buffer items = {.struct_size = sizeof items};
 *     size_t ends[256], count;
 *     for (;;) {
 *       poll(&poll_for, 1, -1);
 *       dgo_status status = dgo_stream_next(stream, 0, &items, ends, 256, &count, &error);
 *       if (status == DGO_TIMEOUT) continue;                  // nothing was there after all
 *       if (status != DGO_OK) break;                          // DGO_ENDED, or why it failed
 *       for (size_t i = 0, start = 0; i < count; start = ends[i++]) use(items.data + start, ends[i] - start);
 *       dgo_buffer_free(&items);
 *     }
 *     dgo_stream_close(stream, NULL);
 */

/* dgo_stream_next: take items, all that wait if there is room.
 *   timeout_ms  [in]  0 .. DGO_WAIT_MS_MAX: how long to wait for the first; 0 does not wait.
 *   items       [out] the bytes of the items, one after the other.
 *   ends        [out] NULL, or room for `capacity` values: where in items.data each ends. The first begins at 0, each other one
 *                     where the one before it ends.
 *   capacity    [in]  how many items to take at most, 1 .. DGO_STREAM_ITEMS_MAX.
 *   count       [out] how many were taken, at least 1.
 * Blocks: up to timeout_ms.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_TIMEOUT (nothing came in the time given), or, once
 *          all items were taken, how the stream ended, every time: DGO_ENDED | DGO_CANCELLED (it was killed) | DGO_DISCONNECTED
 *          (who served it is gone) | DGO_WORKER_ERROR (who served it failed). */
dgo_status dgo_stream_next(dgo_stream stream, uint32_t timeout_ms, dgo_buffer *items, size_t *ends, size_t capacity,
                           size_t *count, dgo_error *error);

/* dgo_stream_fd: a descriptor that is readable while dgo_stream_next has something to tell, items or the end, for an event loop. It
 * stays the stream's: only poll it, and stop before dgo_stream_close closes it. Linux (an eventfd). It costs the process a
 * system call for each time that the stream was found empty, not for each item.
 *   fd  [out] the same at every call.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_OVERLOADED (no descriptor is left). */
dgo_status dgo_stream_fd(dgo_stream stream, int *fd, dgo_error *error);

/* Flags of dgo_stream_cancel. */
#define DGO_CANCEL_KILL 1u /* end it now: items that wait are dropped */

/* dgo_stream_cancel: want no more. Without a flag whoever serves the stream is asked to end it; what is on its way comes
 * before the end. Again, or after the end, it has no effect.
 *   flags  [in]  0 or DGO_CANCEL_KILL.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_stream_cancel(dgo_stream stream, uint32_t flags, dgo_error *error);

/* dgo_stream_close: kill the stream and forget it; its descriptor is closed. Closing again is DGO_OK; so is 0.
 * Returns: DGO_OK | DGO_BAD_HANDLE. */
dgo_status dgo_stream_close(dgo_stream stream, dgo_error *error);

/* ---- Publisher -------------------------------------------------------------------------------------------------- */

/* dgo_publisher_new: be the worker's side of KV events: a publisher tells routers what the ranks of one worker hold in their
 * caches. Each rank has sockets of its own: one that publishes, in the format of vLLM, one event a message, which vLLM's
 * subscribers can read; one that gives messages again; and one where routers ask for what they missed or for everything. The
 * first message of a rank clears, so routers notice a restart.
 *   config     [in]  JSON object, config_size bytes:
 *                    worker_id     required, 0 .. 2^64-1.
 *                    block_size    required, tokens per block, 1 .. 1,048,576.
 *                    kv_events     required, where to publish: a base endpoint "tcp://HOST:PORT", HOST "*" for all addresses, to
 *                                  whose port each rank is added. Port 0 takes free ports, which dgo_publisher_info tells.
 *                    replay, query the same for the other sockets; without one there is no such socket.
 *                    topic         ZeroMQ topic (empty).
 *                    dp_start, dp_size   the first global rank and the number of ranks (0 and 1; at most 4,096).
 *                    buffer_steps  how many events are kept to be asked for, 1 .. 1,000,000 (10,000).
 *                    engine        {"kv_events":..,"replay":..,"topic":..}: pass on what an engine publishes; its endpoints are
 *                                  written as in dgo_worker. Gaps are filled from its replay socket. Without it the events
 *                                  come by dgo_publisher_publish.
 *                    Unknown fields are refused.
 *   publisher  [out] the handle; close it with dgo_publisher_close.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT | DGO_CANNOT_CONNECT (an address cannot be bound) | DGO_OVERLOADED. */
dgo_status dgo_publisher_new(const char *config, size_t config_size, dgo_publisher *publisher, dgo_error *error);

/* Kinds of dgo_kv_event. */
#define DGO_EVENT_STORED 1u  /* blocks were added, as a chain */
#define DGO_EVENT_REMOVED 2u /* blocks are gone */
#define DGO_EVENT_CLEARED 3u /* the rank's whole cache is empty, in all tiers */

/* Flags of dgo_kv_event. */
#define DGO_EVENT_PARENT 1u /* parent_hash is set; otherwise a prompt begins with the first block */
#define DGO_EVENT_EAGLE 2u  /* blocks are windows of one token more, and tokens has the one after them */

/* What happened to a cache. Zero is every member's default; DGO_EVENT_CLEARED has no others, DGO_EVENT_REMOVED only
 * block_hashes and medium. An element of an array: its size is told in the call. */
typedef struct dgo_kv_event {
  uint32_t kind;
  uint32_t flags;
  const uint64_t *block_hashes; /* n_blocks names, at least 1: the engine's own, any 64 bits (of a negative number its two's
                                   complement); a name means the same block until it is removed */
  size_t n_blocks;
  const uint32_t *tokens; /* of all blocks, one after the other: n_blocks * block_size (with DGO_EVENT_EAGLE 1 more) */
  size_t n_tokens;
  uint64_t parent_hash; /* the name of the block before the first */
  uint32_t block_size;  /* the publisher's */
  uint32_t reserved;
  dgo_string lora_name;      /* LoRA adapter; none for the base model */
  dgo_string cache_salt;     /* none or empty: not salted */
  dgo_string block_mm_infos; /* JSON list, as in dgo_request, with an element for each block */
  dgo_string medium;         /* "GPU" (none means that), "CPU_PINNED", "DISK" or "EXTERNAL" */
} dgo_kv_event;

/* dgo_publisher_publish: tell of events of a rank, in order. A block that is stored again while it is held is counted; it is
 * there until it was removed as often. Removing what is not held is counted, too, and no error. What subscribers do not take in
 * time they can ask for later; nothing waits for them.
 *   dp_rank     [in]  global rank.
 *   events      [in]  n_events events, at least 1 and at most DGO_EVENTS_MAX.
 *   event_size  [in]  sizeof(dgo_kv_event).
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (an event is not one that an engine could report, or
 *          the publisher has an engine; nothing was published) | DGO_WORKER_NOT_FOUND (no such rank here) | DGO_EVENT_REFUSED
 *          (the first event in the list whose parent is not held or that has a block twice; all others are published). */
dgo_status dgo_publisher_publish(dgo_publisher publisher, uint32_t dp_rank, const dgo_kv_event *events, size_t event_size,
                                 size_t n_events, dgo_error *error);

/* dgo_publisher_info: where the ranks' sockets are, and what was published.
 *   ranks  [out] JSON array: {"dp_rank","kv_events","replay","query" (endpoints, "" for none),"messages","blocks" (held now, on the
 *                device),"stored","duplicate_stores","removed","unknown_removals","refused","engine"}; engine is null or
 *                {"state","reason","counters"}, as dgo_router_health tells of a rank.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_publisher_info(dgo_publisher publisher, dgo_buffer *ranks, dgo_error *error);

/* dgo_publisher_close: stop publishing. Routers find that the worker does not answer. Closing again is DGO_OK; so is 0.
 * Blocks: until its sockets are closed, at most some seconds if peers do not take what is sent to them.
 * Returns: DGO_OK | DGO_BAD_HANDLE. */
dgo_status dgo_publisher_close(dgo_publisher publisher, dgo_error *error);

/* ---- Mocker ----------------------------------------------------------------------------------------------------- */

/* dgo_mocker_new: start an engine without a GPU: a block pool with prefix caching, timing, real KV events, HTTP.
 *   config  [in]  JSON object, config_size bytes; NULL for the defaults. Among its fields: model, http (host:port; port 0 takes a free one),
 *                 kv_events, replay ("" for none), topic, dp_rank, block_size (tokens), blocks (of the pool), prefill_tokens_per_second,
 *                 inter_token_ms, max_num_batched_tokens, max_num_seqs, max_waiting, max_model_len (tokens), speedup, hash_seed. Unknown
 *                 fields are refused.
 *   mocker  [out] the handle; close it with dgo_mocker_close.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT | DGO_CANNOT_CONNECT (an address cannot be bound) | DGO_OVERLOADED. */
dgo_status dgo_mocker_new(const char *config, size_t config_size, dgo_mocker *mocker, dgo_error *error);

/* dgo_mocker_info: where the mocker listens and what it did.
 *   info  [out] JSON object: model, http (URL), kv_events, replay ("" for none), topic, dp_rank, block_size, blocks; and what it did, as stats.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_mocker_info(dgo_mocker mocker, dgo_buffer *info, dgo_error *error);

/* dgo_mocker_generate: serve a request without HTTP, as the engine behind a worker does.
 *   tokens   [in]  n_tokens token ids, at least 1.
 *   options  [in]  JSON object, options_size bytes, or NULL: max_tokens (16), response_buffer_size (100: so many items wait for the
 *                  reader before the answer does; 0 awaits each).
 *   stream   [out] the answer: an item for each output token, {"token_ids":[n]}. The last one has "finish_reason" too: "length",
 *                  or "cancelled" after dgo_stream_cancel. If the mocker is closed first, the stream ends as DGO_DISCONNECTED.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_OVERLOADED (as many requests wait as may, or too many
 *          handles) | DGO_DISCONNECTED (the mocker is being closed). */
dgo_status dgo_mocker_generate(dgo_mocker mocker, const uint32_t *tokens, size_t n_tokens, const char *options,
                               size_t options_size, dgo_stream *stream, dgo_error *error);

/* dgo_mocker_leave: let routers find the worker of dgo_runtime_mocker no more; it goes on with what it has. dgo_mocker_info tells
 * when that is nothing any more: stats has running and waiting. No effect on one that serves no endpoint.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_FILE_ERROR. */
dgo_status dgo_mocker_leave(dgo_mocker mocker, dgo_error *error);

/* dgo_mocker_close: stop the engine; its requests end. Closing again is DGO_OK; so is 0.
 * Blocks: until its sockets are closed, at most some seconds if peers do not take what is sent to them.
 * Returns: DGO_OK | DGO_BAD_HANDLE. */
dgo_status dgo_mocker_close(dgo_mocker mocker, dgo_error *error);

/* ---- Serve ------------------------------------------------------------------------------------------------------
 *
 * An OpenAI endpoint over vLLM and SGLang servers: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics. Each
 * request goes to the engine that holds most of its prompt and is least busy; request and answer are handed on as they are.
 */

/* dgo_serve_new: start a server. Engines become candidates as they turn out to be healthy.
 *   config  [in]  JSON object, config_size bytes: engines ["URL[,EVENTS[,REPLAY]][,FIELD=VALUE...]", ...] or engines_file, or both;
 *                 listen ("127.0.0.1:8000"), block_size (16), router_mode ("kv", "round-robin", "random", "least-loaded",
 *                 "power-of-two", "direct"), router (as dgo_router_new takes it), tokenizer ("engine", "host", "none"), limits (object:
 *                 connections, requests, head_bytes, body_bytes, buffered_bytes, read_seconds, write_seconds, idle_seconds,
 *                 tokenize_seconds), drain_seconds (0). docs/serve.md tells what each means. Unknown fields are refused.
 *   server  [out] the handle; close it with dgo_serve_close.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT | DGO_NOT_IMPLEMENTED (of the router's configuration) | DGO_DUPLICATE_WORKER (two engines
 *          with one id) | DGO_CANNOT_CONNECT (the address cannot be bound) | DGO_OVERLOADED. */
dgo_status dgo_serve_new(const char *config, size_t config_size, dgo_server *server, dgo_error *error);

/* dgo_serve_info: where the server listens, and how it and its engines are.
 *   info  [out] JSON object: status ("ready", "not ready": no engine can serve, "draining", "stopping"), listen (HOST:PORT), router_mode, block_size,
 *               inflight (requests), engines (an object each), drained (nothing runs any more after dgo_serve_stop, or its time is
 *               over), uptime_seconds, and the counters disconnected, retries, broken, untokenized.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_serve_info(dgo_server server, dgo_buffer *info, dgo_error *error);

/* dgo_serve_texts: the texts of prompts that wait for token ids, of a server whose tokenizer is "host".
 *   stream  [out] items {"id": number, "text": text}; answer each with dgo_serve_tokens. It ends as DGO_CLOSED with the server. Closing the
 *                 handle leaves the texts where they are. What has no answer in tokenize_seconds is routed by load alone.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (the tokenizer is another) | DGO_OVERLOADED. */
dgo_status dgo_serve_texts(dgo_server server, dgo_stream *stream, dgo_error *error);

/* dgo_serve_tokens: the token ids of a text. An id that nothing waits for any more is no error.
 *   id      [in]  that of the item of dgo_serve_texts.
 *   tokens  [in]  n_tokens token ids, which are copied; NULL: there are none to be had, and the prompt is routed by load alone.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_serve_tokens(dgo_server server, uint64_t id, const uint32_t *tokens, size_t n_tokens, dgo_error *error);

/* dgo_serve_stop: begin to stop. For drain_seconds of the configuration all is served as before, but /health says 503. Then no connection
 * and no request is taken any more; what runs has so long to end, and is cut off then.
 * dgo_serve_info tells when it is over. Again it has no effect.
 *   grace_ms  [in]  how long what runs has: milliseconds, at least 0.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_serve_stop(dgo_server server, int64_t grace_ms, dgo_error *error);

/* dgo_serve_close: end everything at once: what runs is cut off, and the engines are told. Closing again is DGO_OK; so is 0.
 * Blocks: until its sockets are closed and its threads gave up, some hundred milliseconds; a second longer if clients do not take what they
 * are told.
 * Returns: DGO_OK | DGO_BAD_HANDLE. */
dgo_status dgo_serve_close(dgo_server server, dgo_error *error);

/* ---- Runtime ----------------------------------------------------------------------------------------------------
 *
 * A runtime is one process of a Dynamo deployment: it finds the others in a directory they share, serves endpoints, calls those that
 * others serve, and routes requests to them. Nothing waits and nothing is called back: what is asked for is a number at once, and
 * what becomes of it is told by notices, items of one stream (see Streams). Requests and items are one MessagePack value each.
 *
 *     dgo_runtime_new(config, size, &runtime, &notices, &error);
 *     dgo_runtime_router(runtime, "ns.backend.generate", 19, 16, NULL, 0, &router, &error);
 *     dgo_router_generate(router, tokens, n_tokens, NULL, fields, fields_size, NULL, 0, &call, &error);
 *     // each item of `notices`: a dgo_notice and its payload
 *     //   {call, DGO_NOTICE_BEGUN}, {call, DGO_NOTICE_ITEM, DGO_ITEM_FIRST}, ..., {call, DGO_NOTICE_ENDED, DGO_OK}
 */

/* What a notice is of. "Value" is a MessagePack value, and so is what stands in brackets: an array. */
#define DGO_NOTICE_REQUEST 1u   /* a service is called, and `id` is the call: [service, request id, metadata, body] */
#define DGO_NOTICE_CANCELLED 2u /* its caller wants no more; with DGO_ITEM_KILL it is gone */
#define DGO_NOTICE_DRAINED 3u   /* hardly any answers of it wait for the caller's socket any more */
#define DGO_NOTICE_BEGUN 4u     /* a worker begins to answer a call: nil; to dgo_router_generate [worker_id, dp_rank, overlap blocks, full
                                   blocks of the prompt, request id, requests that waited when it came] */
#define DGO_NOTICE_ITEM 5u      /* its answer goes on: the item's value */
#define DGO_NOTICE_ENDED 6u     /* it is over: flags is the dgo_status, DGO_OK if the answer is complete, and the payload a text that says why */
#define DGO_NOTICE_CHANGED 7u   /* the instances that a client sees changed, or the workers of a router of their endpoint */
#define DGO_NOTICE_CLOSED 8u    /* a service has ended, and its calls with it */

/* Flags of notices. */
#define DGO_ITEM_FIRST 1u /* the first item that dgo_router_generate's worker gave */
#define DGO_ITEM_LAST 2u  /* it has a finish reason: after the item comes [Unix milliseconds when it was asked for, milliseconds until it was
                             sent, from then to the first item, in all] */
#define DGO_ITEM_NOTE 4u  /* no item, but a remark beside them: [name, comment] */
#define DGO_ITEM_KILL 8u

/* What each item of a runtime's stream begins with. */
typedef struct dgo_notice {
  uint64_t id;    /* of the call, client or service */
  uint32_t kind;  /* DGO_NOTICE_*; one that is not known is to be passed over */
  uint32_t flags;
} dgo_notice;

/* dgo_runtime_new: join a deployment.
 *   config   [in]  JSON object, config_size bytes, all fields optional:
 *                  discovery    "file", "etcd", or "mem": nobody else is there. Otherwise DYN_DISCOVERY_BACKEND, or "file".
 *                  path         the directory of "file"; otherwise DYN_FILE_KV, or dynamo_store_kv among temporary files.
 *                  request_plane  what carries requests: "tcp" or "nats"; otherwise DYN_REQUEST_PLANE, or "tcp".
 *                  event_plane    what carries events: "zmq" or "nats"; otherwise DYN_EVENT_PLANE, or "zmq".
 *                  environment  object with Dynamo's variables, to be read instead of the process's: DYN_TCP_RPC_HOST and _PORT,
 *                               DYN_TCP_RESPONSE_STREAM_HOST and _PORT, DYN_EVENT_PLANE_HOST, DYN_REQUEST_PLANE_CODEC, DYN_TCP_TLS_*, ...; of
 *                               "etcd" ETCD_ENDPOINTS, ETCD_AUTH_USERNAME, ...; of "nats" NATS_SERVER, NATS_AUTH_*, NATS_TLS_*.
 *                  Unknown fields are refused. No call waits for etcd or NATS for longer than 80 ms: what it has not got by then it gets later.
 *   runtime  [out] the handle; close it with dgo_runtime_close.
 *   notices  [out] the stream of notices, closed by dgo_stream_close. It ends when the runtime is closed.
 * Returns: DGO_OK | DGO_INVALID_ARGUMENT | DGO_FILE_ERROR (the directory cannot be used) | DGO_OVERLOADED (too many handles). */
dgo_status dgo_runtime_new(const char *config, size_t config_size, dgo_runtime *runtime, dgo_stream *notices, dgo_error *error);

/* dgo_runtime_info: who this process is.
 *   info  [out] JSON object: id (that of its instances); connected (false: etcd or NATS is not within reach); error, if there is one: why it is
 *               not, of etcd after ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS without a first connection, or at once after that, or what it refuses;
 *               discovered (clients and routers have seen what etcd has; always, where there is none); discovery_error: that of etcd alone.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_runtime_info(dgo_runtime runtime, dgo_buffer *info, dgo_error *error);

/* dgo_runtime_close: leave the deployment: services, clients and calls end at once. Its routers and publishers are of no use then, and still
 * to be closed. Closing again is DGO_OK; so is 0.
 * Returns: DGO_OK | DGO_BAD_HANDLE. */
dgo_status dgo_runtime_close(dgo_runtime runtime, dgo_error *error);

/* dgo_runtime_serve: serve an endpoint. DGO_NOTICE_REQUEST tells of each call; dgo_runtime_answer answers it.
 *   endpoint  [in]  "namespace.component.name", endpoint_size bytes.
 *   options   [in]  NULL, or a JSON object, options_size bytes: id (of the instance; the runtime's), listed (true: clients find it), plain
 *                   (false; true: items travel without Dynamo's envelope of data, event and comment), device_type (a text that
 *                   instances show).
 *   service   [out] its number.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (also: the instance serves it already) | DGO_CANNOT_CONNECT (nothing
 *          can be listened on) | DGO_FILE_ERROR (the directory cannot be written) | DGO_OVERLOADED. */
dgo_status dgo_runtime_serve(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, const char *options, size_t options_size,
                             uint64_t *service, dgo_error *error);

/* dgo_runtime_list: let clients find a service, or find it no more; it goes on serving.
 *   service  [in]  of dgo_runtime_serve.
 *   listed   [in]  not 0: find it.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND (no such service) | DGO_FILE_ERROR |
 *          DGO_CANNOT_CONNECT (etcd refuses it). */
dgo_status dgo_runtime_list(dgo_runtime runtime, uint64_t service, int32_t listed, dgo_error *error);

/* dgo_runtime_model: say what an instance is like, before it serves or after. Routers take only instances with a model card. Again, it
 * replaces what was said.
 *   endpoint  [in]  "namespace.component.name", endpoint_size bytes, that the instance serves.
 *   id        [in]  the instance's.
 *   card      [in]  JSON object in Dynamo's form, card_size bytes; NULL takes it back. One with lora.name is of a LoRA adapter that the instance has
 *               loaded, and stands beside its own card: requests with that lora_name go to the instances that have one, if they can. Alone,
 *               {"lora": {"name": NAME}} takes it back; so does NULL, with the instance's own.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND (nothing to take back) | DGO_FILE_ERROR |
 *          DGO_CANNOT_CONNECT (etcd refuses it). */
dgo_status dgo_runtime_model(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, uint64_t id, const char *card,
                             size_t card_size, dgo_error *error);

/* Flags of dgo_runtime_answer. */
#define DGO_ANSWER_END 1u  /* the answer is complete, with this item if there is one */
#define DGO_ANSWER_FAIL 2u /* it failed: item is a text for the caller instead, or {"message", "invalid": the request is at fault, "gone": the
                             worker stops} */

/* dgo_runtime_answer: answer a call of a service. Each has to be ended once, also one that was cancelled.
 *   call     [in]  of DGO_NOTICE_REQUEST.
 *   item     [in]  one MessagePack value, item_size bytes; NULL only with DGO_ANSWER_END.
 *   flags    [in]  0, DGO_ANSWER_END or DGO_ANSWER_FAIL.
 *   ahead    [out] NULL, or gets 1 if many items wait for the caller's socket: DGO_NOTICE_DRAINED comes. Whoever goes on all the same is
 *                  refused at 4,096.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND (it has ended) | DGO_CANCELLED (the caller is
 *          gone; the call is still to be ended) | DGO_OVERLOADED. */
dgo_status dgo_runtime_answer(dgo_runtime runtime, uint64_t call, const char *item, size_t item_size, uint32_t flags, int32_t *ahead,
                              dgo_error *error);

/* dgo_runtime_client: follow the instances of an endpoint, to call them.
 *   endpoint  [in]  "namespace.component.name", endpoint_size bytes.
 *   client    [out] its number; dgo_runtime_end ends it.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_FILE_ERROR. What etcd refuses is in dgo_runtime_info. */
dgo_status dgo_runtime_client(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, uint64_t *client, dgo_error *error);

/* dgo_runtime_instances: those that a client sees.
 *   client     [in]  of dgo_runtime_client.
 *   instances  [out] JSON array of objects: instance_id, namespace, component, endpoint, transport (kind, address), device_type.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND (no such client). */
dgo_status dgo_runtime_instances(dgo_runtime runtime, uint64_t client, dgo_buffer *instances, dgo_error *error);

/* dgo_runtime_call: call an instance. DGO_NOTICE_BEGUN, _ITEM and _ENDED tell of the answer; of one that nobody began, _ENDED alone.
 *   client   [in]  of dgo_runtime_client.
 *   body     [in]  one MessagePack value, body_size bytes.
 *   options  [in]  NULL, or a JSON object, options_size bytes: instance (its id; otherwise all in turn), random (false), request_id (drawn),
 *                  metadata (object of texts), credit (100: so many items may come; dgo_runtime_more allows more).
 *   call     [out] its number.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND (no such client). How it ends: DGO_OK |
 *          DGO_INVALID_ARGUMENT | DGO_NO_WORKERS | DGO_WORKER_NOT_FOUND | DGO_CANNOT_CONNECT | DGO_TIMEOUT | DGO_OVERLOADED | DGO_DISCONNECTED |
 *          DGO_CANCELLED | DGO_WORKER_ERROR | DGO_CLOSED. */
dgo_status dgo_runtime_call(dgo_runtime runtime, uint64_t client, const char *body, size_t body_size, const char *options,
                            size_t options_size, uint64_t *call, dgo_error *error);

/* dgo_runtime_more: a reader took n items of a call: so many more may come.
 *   call  [in]  of dgo_runtime_call or dgo_router_generate.
 *   n     [in]  items.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (a credit above DGO_CREDIT_MAX) | DGO_REQUEST_NOT_FOUND (it has ended). */
dgo_status dgo_runtime_more(dgo_runtime runtime, uint64_t call, size_t n, dgo_error *error);

/* dgo_runtime_cancel: want no more of a call. Without a flag its worker is asked to end it, and what it still sends comes.
 *   call   [in]  of dgo_runtime_call or dgo_router_generate.
 *   flags  [in]  0 or DGO_CANCEL_KILL: it ends now.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND (it has ended). */
dgo_status dgo_runtime_cancel(dgo_runtime runtime, uint64_t call, uint32_t flags, dgo_error *error);

/* dgo_runtime_end: end a service, which DGO_NOTICE_CLOSED tells of, or a client.
 *   id     [in]  of dgo_runtime_serve or dgo_runtime_client.
 *   flags  [in]  0: calls of the service are waited for; DGO_CANCEL_KILL: they end now.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_REQUEST_NOT_FOUND (no such service or client). */
dgo_status dgo_runtime_end(dgo_runtime runtime, uint64_t id, uint32_t flags, dgo_error *error);

/* dgo_runtime_router: a router whose workers are those that serve an endpoint and have a model card, wherever they are: they come, change and go by
 * themselves, and so do their events. With router_replica_sync, the routers of an endpoint share load. Every dgo_router_* call takes it,
 * but dgo_router_add_worker and dgo_router_remove_worker are not for it.
 *   endpoint            [in]  that the workers serve, "namespace.component.name", endpoint_size bytes.
 *   block_size, config  [in]  as of dgo_router_new.
 *   router              [out] the handle; close it with dgo_router_close.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_NOT_IMPLEMENTED | DGO_CANNOT_CONNECT | DGO_FILE_ERROR |
 *          DGO_OVERLOADED (too many handles). */
dgo_status dgo_runtime_router(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, int64_t block_size, const char *config,
                              size_t config_size, dgo_router *router, dgo_error *error);

/* dgo_router_generate: choose a worker, book the request there, send it, and stream the answer, as the runtime's notices tell. It waits while it has
 * to. Its prefill ends with the first item, its booking with the end, whatever that is. A worker that cannot be reached or refuses makes it try
 * another one.
 *   tokens   [in]  as of dgo_router_best_worker; what the worker gets as token_ids.
 *   request  [in]  as of dgo_router_best_worker; without a request id one is drawn.
 *   fields   [in]  MessagePack map, fields_size bytes: what the worker gets besides token_ids and routing. NULL: nothing.
 *   options  [in]  NULL, or a JSON object, options_size bytes: credit (100), as of dgo_runtime_call; routing (object: what the worker gets as
 *                  routing, besides dp_rank and backend_instance_id); token_ids (the prompt that the worker gets, if that is not `tokens`);
 *                     expected_output_tokens (of the answer; with router_track_output_blocks, blocks weigh the less the nearer it is to its end).
 *   call     [out] its number, for dgo_runtime_more and dgo_runtime_cancel.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (also: the router has no runtime) | DGO_NOT_IMPLEMENTED. How it ends: as
 *          dgo_runtime_call and dgo_router_best_worker, and DGO_QUEUE_LIMIT_EXCEEDED. */
dgo_status dgo_router_generate(dgo_router router, const uint32_t *tokens, size_t n_tokens, const dgo_request *request, const char *fields,
                               size_t fields_size, const char *options, size_t options_size, uint64_t *call, dgo_error *error);

/* dgo_runtime_publisher: be the worker's side of KV events in a deployment. dgo_publisher_publish, _info and _close take it; of dgo_publisher_info
 * the endpoints are empty.
 *   endpoint   [in]  that the worker serves, "namespace.component.name", endpoint_size bytes.
 *   config     [in]  JSON object, config_size bytes: block_size (required), worker_id (the runtime's id), dp_rank (0), buffer_steps (1,024),
 *                    local_indexer (true: routers ask for what they missed; the model card must say the same), engine as of dgo_publisher_new.
 *   publisher  [out] the handle; close it with dgo_publisher_close.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_CANNOT_CONNECT | DGO_FILE_ERROR | DGO_OVERLOADED. */
dgo_status dgo_runtime_publisher(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, const char *config, size_t config_size,
                                 dgo_publisher *publisher, dgo_error *error);

/* dgo_runtime_load: tell routers of an endpoint what a worker's rank is busy with.
 *   endpoint  [in]  that the worker serves, "namespace.component.name", endpoint_size bytes.
 *   load      [in]  JSON object, load_size bytes: worker_id (the runtime's id), dp_rank (0), active_decode_blocks, active_prefill_tokens,
 *                   kv_used_blocks. Without any of the last three nothing is sent yet.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_CANNOT_CONNECT | DGO_FILE_ERROR. */
dgo_status dgo_runtime_load(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, const char *load, size_t load_size,
                            dgo_error *error);

/* dgo_runtime_mocker: be a worker without a GPU: a mock engine serves the endpoint, with a model card, KV events, and what it says of its load.
 * dgo_mocker_info, _generate, _leave and _close take it.
 *   endpoint   [in]  "namespace.component.name", endpoint_size bytes.
 *   worker_id  [in]  0: the runtime's id.
 *   config     [in]  as of dgo_mocker_new, but kv_events, replay and topic do not matter: the events go to the deployment.
 *   mocker     [out] the handle; close it with dgo_mocker_close.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT (also: the worker serves it already) | DGO_CANNOT_CONNECT |
 *          DGO_FILE_ERROR | DGO_OVERLOADED. */
dgo_status dgo_runtime_mocker(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, uint64_t worker_id, const char *config,
                              size_t config_size, dgo_mocker *mocker, dgo_error *error);

/*
 * HTTP engines. A vLLM or SGLang server as it is becomes a worker of an endpoint: this process serves it, asks the engine, and passes its KV events on.
 * Routers see it while it is healthy and not draining. docs/engines.md says what each key means.
 */

/* dgo_runtime_add_engine: make an engine a worker of an endpoint; routers see it once it is healthy.
 *   endpoint   [in]  "namespace.component.name", endpoint_size bytes.
 *   config     [in]  JSON object, config_size bytes: url (required, "http://host:8000"), worker_id (one that the URL gives), kind ("vllm", "sglang"),
 *                    model, kv_events, replay (an endpoint, or an object from rank to endpoint; "*" is the host of url; kv_events may be "none"),
 *                    topic, dp_start, dp_size, block_size, max_num_batched_tokens, total_kv_blocks, taints, adapters, headers (object), health_path,
 *                    draining. What is not given is asked of the engine, as far as it tells.
 *   worker_id  [out] the worker's.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_DUPLICATE_WORKER | DGO_CANNOT_CONNECT | DGO_FILE_ERROR. */
dgo_status dgo_runtime_add_engine(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, const char *config, size_t config_size,
                                  uint64_t *worker_id, dgo_error *error);

/* dgo_runtime_watch_engines: make the engines of a file workers of an endpoint, and follow the file: when it changes, so do they. A file that
 * cannot be read or is not valid changes nothing, and dgo_runtime_engines says so. One file an endpoint.
 *   endpoint  [in]  as of dgo_runtime_add_engine.
 *   path      [in]  of a YAML or JSON document, path_size bytes: {"engines": [{"url": ...}, ...]}, each as of dgo_runtime_add_engine.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_DUPLICATE_WORKER | DGO_FILE_ERROR. */
dgo_status dgo_runtime_watch_engines(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, const char *path, size_t path_size,
                                     dgo_error *error);

/* dgo_runtime_engines: how the engines of an endpoint are.
 *   endpoint  [in]  as of dgo_runtime_add_engine.
 *   engines   [out] JSON: {"engines": [{worker_id, endpoint, url, listed, error, kind, version, model, block_size, dp_start, dp_size, state, reason,
 *                   since, active, requests, faults, checks, failed_checks, ejections, returns}, ...], "file": null or {path, loaded, error}}.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT. */
dgo_status dgo_runtime_engines(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, dgo_buffer *engines, dgo_error *error);

/* dgo_runtime_drain_engine: let routers see an engine no more, or again (draining is 0); it goes on with what it has.
 *   endpoint   [in]  as of dgo_runtime_add_engine.
 *   worker_id  [in]  as dgo_runtime_add_engine gave it.
 *   draining   [in]  not 0: routers see it no more.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_WORKER_NOT_FOUND. */
dgo_status dgo_runtime_drain_engine(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, uint64_t worker_id, int32_t draining,
                                    dgo_error *error);

/* dgo_runtime_remove_engine: end an engine's part in an endpoint, after the requests that run; with DGO_CANCEL_KILL at once. It is not waited for.
 *   endpoint   [in]  as of dgo_runtime_add_engine.
 *   worker_id  [in]  as dgo_runtime_add_engine gave it.
 *   flags      [in]  0 or DGO_CANCEL_KILL.
 * Returns: DGO_OK | DGO_BAD_HANDLE | DGO_CLOSED | DGO_INVALID_ARGUMENT | DGO_WORKER_NOT_FOUND. */
dgo_status dgo_runtime_remove_engine(dgo_runtime runtime, const char *endpoint, size_t endpoint_size, uint64_t worker_id, uint32_t flags,
                                     dgo_error *error);

#ifdef __cplusplus
}
#endif
#endif /* DYNAMO_GO_H */
