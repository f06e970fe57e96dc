/* _native.Router: the router of the C interface as a Python object. Arguments are positional; dynamo_go.Router gives them
 * names and defaults.
 *
 * The GIL: calls that hash few tokens hold it (RELEASE_GIL_TOKENS); calls that return JSON, change workers or apply events
 * release it. Go never calls Python, so a call that waits for the router's lock cannot dead-lock. */
#include "native.h"

typedef struct {
  PyObject_HEAD
  dgo_router handle; /* set once */
} router_object;

/* CALL: one call with the GIL released. */
#define CALL(status, call)       \
  do {                           \
    Py_BEGIN_ALLOW_THREADS       \
    status = (call);             \
    Py_END_ALLOW_THREADS         \
  } while (0)

static PyObject *none_or(dgo_status status, const dgo_error *error) {
  if (status != DGO_OK) return raise_status(status, error);
  Py_RETURN_NONE;
}

static PyObject *text_or(dgo_status status, const dgo_error *error, dgo_buffer *buffer) {
  return status == DGO_OK ? take_buffer(buffer) : raise_status(status, error);
}

/* Router(block_size, config, seed), or Router(block_size, config, None, runtime, endpoint): its workers are those of the endpoint. */
static PyObject *router_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  PyObject *block_size, *config, *seed, *runtime = NULL, *endpoint = Py_None;
  if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0) {
    PyErr_SetString(PyExc_TypeError, "Router takes no keyword arguments");
    return NULL;
  }
  if (!PyArg_ParseTuple(args, "OOO|OO:Router", &block_size, &config, &seed, &runtime, &endpoint)) return NULL;
  int64_t size;
  dgo_string text, path;
  dgo_runtime of = 0;
  uint64_t seed_value = 0;
  if (to_i64(block_size, "block_size", &size) < 0 || to_string(config, "config", &text) < 0) return NULL;
  if (seed != Py_None && to_u64(seed, "seed", &seed_value) < 0) return NULL;
  if (library_load() < 0) return NULL;
  if (runtime != NULL && (runtime_handle(runtime, &of) < 0 || to_string(endpoint, "endpoint", &path) < 0)) return NULL;

  router_object *self = (router_object *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  if (runtime != NULL)
    CALL(status, dgo.runtime_router(of, path.data, path.size, size, text.data, text.size, &self->handle, &error));
  else
    CALL(status, dgo.router_new(size, text.data, text.size, seed == Py_None ? NULL : &seed_value, &self->handle, &error));
  if (status == DGO_OK) return (PyObject *)self;
  Py_DECREF(self);
  return raise_status(status, &error);
}

static void router_dealloc(router_object *self) {
  PyTypeObject *type = Py_TYPE(self);
  if (self->handle != 0) {
    Py_BEGIN_ALLOW_THREADS
    dgo.router_close(self->handle, NULL); /* in a forked child this does nothing */
    Py_END_ALLOW_THREADS
  }
  type->tp_free((PyObject *)self);
  Py_DECREF(type);
}

static PyObject *router_close(router_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_close(self->handle, &error));
  return none_or(status, &error);
}

/* strings_get: strings of a tuple, in memory from PyMem_RawMalloc that the caller frees, also on -1; borrowed from it. */
static int strings_get(PyObject *tuple, const char *name, dgo_string **memory, size_t *count) {
  if (!PyTuple_Check(tuple)) {
    PyErr_Format(PyExc_TypeError, "%s: expected a tuple of str, got %.80s", name, Py_TYPE(tuple)->tp_name);
    return -1;
  }
  Py_ssize_t n = PyTuple_GET_SIZE(tuple);
  *memory = PyMem_RawMalloc(n == 0 ? 1 : (size_t)n * sizeof **memory);
  if (*memory == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  *count = (size_t)n;
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject *item = PyTuple_GET_ITEM(tuple, i);
    if (item == Py_None) PyErr_Format(PyExc_TypeError, "%s: expected str, got None", name);
    if (item == Py_None || to_string(item, name, &(*memory)[i]) < 0) return -1;
  }
  return 0;
}

/* worker_get: args as of router_add_worker. On -1 nothing is left to free. */
static int worker_get(PyObject *const *args, dgo_worker *worker, dgo_string **taints, dgo_string **adapters) {
  *taints = *adapters = NULL;
  if (to_u64(args[0], "worker_id", &worker->worker_id) < 0 || to_u32(args[1], "dp_start", &worker->dp_start) < 0 ||
      to_u32(args[2], "dp_size", &worker->dp_size) < 0 || to_string(args[3], "kv_events", &worker->kv_events) < 0 ||
      to_string(args[4], "replay", &worker->replay) < 0 || to_string(args[5], "topic", &worker->topic) < 0 ||
      to_string(args[6], "host", &worker->host) < 0)
    return -1;
  if (worker->dp_size == 0) { /* to C, 0 is the default */
    raise_invalid("dp_size=0, expected at least 1");
    return -1;
  }
  worker->has_block_size = args[7] != Py_None;
  if (worker->has_block_size && to_i64(args[7], "block_size", &worker->block_size) < 0) return -1;
  if (args[8] != Py_None && to_u64(args[8], "max_num_batched_tokens", &worker->max_num_batched_tokens) < 0) return -1;
  if (args[9] != Py_None && to_u64(args[9], "total_kv_blocks", &worker->total_kv_blocks) < 0) return -1;
  if (strings_get(args[10], "taints", taints, &worker->n_taints) == 0 &&
      strings_get(args[11], "adapters", adapters, &worker->n_adapters) == 0 && to_string(args[12], "query", &worker->query) == 0) {
    worker->taints = *taints;
    worker->adapters = *adapters;
    return 0;
  }
  PyMem_RawFree(*taints);
  PyMem_RawFree(*adapters);
  return -1;
}

/* add_worker(worker_id, dp_start, dp_size, kv_events, replay, topic, host, block_size, max_num_batched_tokens,
 *            total_kv_blocks, taints, adapters, query) */
static PyObject *router_add_worker(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("add_worker", n, 13) < 0) return NULL;
  dgo_worker worker = {.struct_size = sizeof worker};
  dgo_string *taints, *adapters;
  if (worker_get(args, &worker, &taints, &adapters) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_add_worker(self->handle, &worker, &error));
  PyMem_RawFree(taints);
  PyMem_RawFree(adapters);
  return none_or(status, &error);
}

static PyObject *router_remove_worker(router_object *self, PyObject *id) {
  uint64_t worker_id;
  if (to_u64(id, "worker_id", &worker_id) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_remove_worker(self->handle, worker_id, &error));
  return none_or(status, &error);
}

/* apply_event(worker_id, event: bytes, set: bool) */
static PyObject *router_apply_event(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("apply_event", n, 3) < 0) return NULL;
  uint64_t worker_id;
  char *event;
  Py_ssize_t size;
  if (to_u64(args[0], "worker_id", &worker_id) < 0 || PyBytes_AsStringAndSize(args[1], &event, &size) < 0) return NULL;
  int set;
  if (to_bool(args[2], "set", &set) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_apply_event(self->handle, worker_id, event, (size_t)size, set ? DGO_APPLY_SET : 0, &error));
  return none_or(status, &error);
}

/* ---- prompts ---- */

/* identity_get: args are lora_name, cache_namespace, block_mm_infos. */
static int identity_get(PyObject *const *args, dgo_request *request) {
  if (to_string(args[0], "lora_name", &request->lora_name) < 0) return -1;
  if (to_string(args[1], "cache_namespace", &request->cache_namespace) < 0) return -1;
  return to_string(args[2], "block_mm_infos", &request->block_mm_infos);
}

/* shared_get: None, or bytes with pairs of uint32. */
static int shared_get(PyObject *value, dgo_request *request) {
  char *data;
  Py_ssize_t size;
  if (value == Py_None) return 0;
  if (PyBytes_AsStringAndSize(value, &data, &size) < 0) return -1;
  request->shared_ranges = (const uint32_t *)(void *)data; /* the data of a bytes object is aligned */
  request->n_shared_ranges = (size_t)size / (2 * sizeof(uint32_t));
  return 0;
}

/* request_get: args are those of router_best_worker after the tokens. On -1 nothing is left to free. */
static int request_get(PyObject *const *args, dgo_request *request, uint64_t **allowed) {
  *allowed = NULL;
  if (to_string(args[0], "router_config_override", &request->router_config_override) < 0 ||
      to_string(args[1], "request_id", &request->request_id) < 0 || identity_get(args + 3, request) < 0)
    return -1;
  int update_indexer;
  if (to_bool(args[2], "update_indexer", &update_indexer) < 0) return -1;
  if (update_indexer) request->flags |= DGO_REQUEST_UPDATE_INDEXER;
  if (args[6] != Py_None) {
    request->flags |= DGO_REQUEST_WORKER_ID;
    if (to_u64(args[6], "worker_id", &request->worker_id) < 0) return -1;
  }
  if (args[7] != Py_None) {
    request->flags |= DGO_REQUEST_DP_RANK;
    if (to_u32(args[7], "dp_rank", &request->dp_rank) < 0) return -1;
  }
  if (to_string(args[9], "routing_constraints", &request->routing_constraints) < 0 ||
      to_u32(args[10], "strict_priority", &request->strict_priority) < 0 ||
      to_string(args[11], "policy_class", &request->policy_class) < 0 ||
      to_string(args[12], "session_id", &request->session_id) < 0)
    return -1;
  if (args[13] != Py_None) {
    request->flags |= DGO_REQUEST_TIMEOUT;
    if (to_double(args[13], "timeout", &request->timeout_seconds) < 0) return -1;
  }
  if (to_double(args[14], "priority_jump", &request->priority_jump) < 0 || shared_get(args[15], request) < 0) return -1;
  if (args[8] == Py_None) return 0;
  if (to_u64_array(args[8], "allowed_worker_ids", DGO_WORKER_IDS_MAX, allowed, &request->n_allowed_worker_ids) < 0)
    return -1;
  request->allowed_worker_ids = *allowed;
  return 0;
}

enum { REQUEST_ARGS = 17 };

/* submit: a request that may wait, with the GIL held or released. */
static dgo_status submit(dgo_router handle, const prompt_tokens *tokens, const dgo_request *request, dgo_choice *choice,
                         uint64_t *ticket, dgo_error *error) {
  if (tokens->count < RELEASE_GIL_TOKENS)
    return dgo.router_submit(handle, tokens->data, tokens->count, request, choice, ticket, error);
  dgo_status status;
  CALL(status, dgo.router_submit(handle, tokens->data, tokens->count, request, choice, ticket, error));
  return status;
}

PyObject *choice_tuple(const dgo_choice *choice) {
  PyObject *tuple = PyTuple_New(3);
  if (tuple == NULL) return NULL;
  PyTuple_SET_ITEM(tuple, 0, PyLong_FromUnsignedLongLong(choice->worker_id));
  PyTuple_SET_ITEM(tuple, 1, PyLong_FromUnsignedLong(choice->dp_rank));
  PyTuple_SET_ITEM(tuple, 2, PyLong_FromUnsignedLong(choice->overlap_blocks));
  for (int i = 0; i < 3; i++)
    if (PyTuple_GET_ITEM(tuple, i) == NULL) {
      Py_DECREF(tuple);
      return NULL;
    }
  return tuple;
}

/* How long one slice of a wait takes: a signal is noticed after it. */
enum { SLICE_MS = 50 };

/* await_choice: wait for a ticket, in slices without the GIL, until it is done or a signal handler raises. */
static PyObject *await_choice(dgo_router handle, uint64_t ticket, dgo_choice *choice) {
  for (;;) {
    NEW_ERROR(error);
    int32_t done = 0;
    dgo_status status;
    CALL(status, dgo.router_wait(handle, ticket, SLICE_MS, choice, &done, &error));
    if (status != DGO_OK) return raise_status(status, &error);
    if (done) return choice_tuple(choice);
    if (PyErr_CheckSignals() == 0) continue;
    dgo.router_cancel(handle, ticket, NULL);
    return NULL;
  }
}

/* Takes the tokens and the request from the arguments of a decision. After 0 the caller releases the tokens and frees allowed. */
static int question_get(PyObject *const *args, prompt_tokens *tokens, dgo_request *request, uint64_t **allowed) {
  if (request_get(args + 1, request, allowed) < 0) return -1;
  if (tokens_get(args[0], tokens) == 0) return 0;
  PyMem_RawFree(*allowed);
  return -1;
}

/* best_worker(token_ids, router_config_override, request_id, update_indexer, lora_name, cache_namespace, block_mm_infos,
 *             worker_id, dp_rank, allowed_worker_ids, routing_constraints, strict_priority, policy_class, session_id,
 *             timeout, priority_jump, shared_ranges). A request that has to wait does. */
static PyObject *router_best_worker(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("best_worker", n, REQUEST_ARGS) < 0) return NULL;
  dgo_request request = {.struct_size = sizeof request};
  uint64_t *allowed;
  prompt_tokens tokens;
  if (question_get(args, &tokens, &request, &allowed) < 0) return NULL;
  dgo_choice choice = {.struct_size = sizeof choice};
  NEW_ERROR(error);
  uint64_t ticket = 0;
  dgo_status status = submit(self->handle, &tokens, &request, &choice, &ticket, &error);
  tokens_release(&tokens);
  PyMem_RawFree(allowed);
  if (status != DGO_OK) return raise_status(status, &error);
  return ticket == 0 ? choice_tuple(&choice) : await_choice(self->handle, ticket, &choice);
}

/* generate(fields, options as JSON, ...): the rest as best_worker; the call's number. */
static PyObject *router_generate(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("generate", n, 2 + REQUEST_ARGS) < 0) return NULL;
  dgo_request request = {.struct_size = sizeof request};
  dgo_string options;
  uint64_t *allowed, call = 0;
  prompt_tokens tokens;
  packed fields;
  if (to_string(args[1], "options", &options) < 0 || question_get(args + 2, &tokens, &request, &allowed) < 0) return NULL;
  if (pack(args[0], &fields) < 0) {
    tokens_release(&tokens);
    PyMem_RawFree(allowed);
    return NULL;
  }
  NEW_ERROR(error);
  dgo_status status = dgo.router_generate(self->handle, tokens.data, tokens.count, &request, fields.data, fields.size, options.data,
                                          options.size, &call, &error);
  tokens_release(&tokens);
  PyMem_RawFree(allowed);
  pack_release(&fields);
  return status == DGO_OK ? PyLong_FromUnsignedLongLong(call) : raise_status(status, &error);
}

/* submit: arguments as best_worker; the choice, or an int: the ticket of a request that waits. */
static PyObject *router_submit(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("submit", n, REQUEST_ARGS) < 0) return NULL;
  dgo_request request = {.struct_size = sizeof request};
  uint64_t *allowed;
  prompt_tokens tokens;
  if (question_get(args, &tokens, &request, &allowed) < 0) return NULL;
  dgo_choice choice = {.struct_size = sizeof choice};
  uint64_t ticket = 0;
  NEW_ERROR(error);
  dgo_status status = submit(self->handle, &tokens, &request, &choice, &ticket, &error);
  tokens_release(&tokens);
  PyMem_RawFree(allowed);
  if (status != DGO_OK) return raise_status(status, &error);
  return ticket == 0 ? choice_tuple(&choice) : PyLong_FromUnsignedLongLong(ticket);
}

/* submit_many(prompts: tuple, router_config_override, request_ids: tuple, ...): the other arguments as of submit, for all. */
static PyObject *router_submit_many(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("submit_many", n, REQUEST_ARGS) < 0) return NULL;
  if (!PyTuple_CheckExact(args[0]) || !PyTuple_CheckExact(args[2])) {
    PyErr_SetString(PyExc_TypeError, "prompts and request_ids: expected tuples");
    return NULL;
  }
  PyObject *each[REQUEST_ARGS];
  for (Py_ssize_t i = 0; i < n; i++) each[i] = i == 2 ? Py_None : args[i];
  dgo_request request = {.struct_size = sizeof request};
  uint64_t *allowed;
  if (request_get(each + 1, &request, &allowed) < 0) return NULL;
  PyObject *list = batch_submit(self->handle, args[0], args[2], &request);
  PyMem_RawFree(allowed);
  return list;
}

/* wait(ticket): the choice, when the request has got it. */
static PyObject *router_wait(router_object *self, PyObject *value) {
  uint64_t ticket;
  if (to_u64(value, "ticket", &ticket) < 0) return NULL;
  dgo_choice choice = {.struct_size = sizeof choice};
  return await_choice(self->handle, ticket, &choice);
}

/* answer(loop, ...): submit, with the choice as a future of the loop. */
static PyObject *router_answer(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("answer", n, 1 + REQUEST_ARGS) < 0) return NULL;
  PyObject *given = router_submit(self, args + 1, n - 1);
  if (given == NULL || !PyTuple_CheckExact(given)) return given;
  PyObject *request_id = args[3];
  PyObject *answer = request_id == Py_None ? answer_make(args[0], given, NULL, NULL)
                                           : answer_make(args[0], given, (PyObject *)self, request_id);
  if (answer == NULL && request_id != Py_None) router_give_up((PyObject *)self, request_id);
  Py_DECREF(given);
  return answer;
}

/* take(ticket): the choice, or None while the request waits. */
static PyObject *router_take(router_object *self, PyObject *value) {
  uint64_t ticket;
  if (to_u64(value, "ticket", &ticket) < 0) return NULL;
  dgo_choice choice = {.struct_size = sizeof choice};
  int32_t done = 0;
  NEW_ERROR(error);
  dgo_status status = dgo.router_wait(self->handle, ticket, 0, &choice, &done, &error);
  if (status != DGO_OK) return raise_status(status, &error);
  if (done) return choice_tuple(&choice);
  Py_RETURN_NONE;
}

static PyObject *router_cancel(router_object *self, PyObject *value) {
  uint64_t ticket;
  if (to_u64(value, "ticket", &ticket) < 0) return NULL;
  NEW_ERROR(error);
  return none_or(dgo.router_cancel(self->handle, ticket, &error), &error);
}

static PyObject *router_ready_fd(router_object *self, PyObject *Py_UNUSED(unused)) {
  int fd = -1;
  NEW_ERROR(error);
  dgo_status status = dgo.router_ready_fd(self->handle, &fd, &error);
  return status == DGO_OK ? PyLong_FromLong(fd) : raise_status(status, &error);
}

/* ready(): the tickets that are done, at most 64 at a time. */
static PyObject *router_ready(router_object *self, PyObject *Py_UNUSED(unused)) {
  uint64_t tickets[64];
  size_t count = 0;
  NEW_ERROR(error);
  dgo_status status = dgo.router_ready(self->handle, tickets, sizeof tickets / sizeof tickets[0], &count, &error);
  if (status != DGO_OK) return raise_status(status, &error);
  PyObject *list = PyList_New((Py_ssize_t)count);
  for (size_t i = 0; list != NULL && i < count; i++) {
    PyObject *ticket = PyLong_FromUnsignedLongLong(tickets[i]);
    if (ticket == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, (Py_ssize_t)i, ticket);
  }
  return list;
}

/* explain: arguments as best_worker; JSON. */
static PyObject *router_explain(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("explain", n, REQUEST_ARGS) < 0) return NULL;
  dgo_request request = {.struct_size = sizeof request};
  uint64_t *allowed;
  prompt_tokens tokens;
  if (question_get(args, &tokens, &request, &allowed) < 0) return NULL;
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_explain(self->handle, tokens.data, tokens.count, &request, &buffer, &error));
  tokens_release(&tokens);
  PyMem_RawFree(allowed);
  return text_or(status, &error, &buffer);
}

/* overlap_scores(token_ids, lora_name, cache_namespace, block_mm_infos, shared_ranges): JSON. */
static PyObject *router_overlap_scores(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("overlap_scores", n, 5) < 0) return NULL;
  dgo_request request = {.struct_size = sizeof request};
  prompt_tokens tokens;
  if (identity_get(args + 1, &request) < 0 || shared_get(args[4], &request) < 0 || tokens_get(args[0], &tokens) < 0) return NULL;
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_get_overlap_scores(self->handle, tokens.data, tokens.count, &request, &buffer, &error));
  tokens_release(&tokens);
  return text_or(status, &error, &buffer);
}

/* The keys of a row, made once: a new str for each would cost more than the row. */
enum { LOAD_KEYS = 5 };
static const char *const load_key_texts[LOAD_KEYS] = {"worker_id", "dp_rank", "potential_prefill_tokens",
                                                      "potential_decode_blocks", "active_requests"};
static PyObject *load_keys[LOAD_KEYS];

static int make_load_keys(void) {
  for (int i = 0; i < LOAD_KEYS; i++)
    if ((load_keys[i] = PyUnicode_InternFromString(load_key_texts[i])) == NULL) return -1;
  return 0;
}

static PyObject *load_row(const dgo_potential_load *row) {
  PyObject *values[LOAD_KEYS] = {
      PyLong_FromUnsignedLongLong(row->worker_id), PyLong_FromUnsignedLong(row->dp_rank),
      PyLong_FromLongLong(row->potential_prefill_tokens), PyLong_FromLongLong(row->potential_decode_blocks),
      PyLong_FromUnsignedLong(row->active_requests)};
  PyObject *dict = PyDict_New();
  for (int i = 0; i < LOAD_KEYS; i++) {
    if (dict != NULL && (values[i] == NULL || PyDict_SetItem(dict, load_keys[i], values[i]) < 0)) Py_CLEAR(dict);
    Py_XDECREF(values[i]);
  }
  return dict;
}

static PyObject *load_rows(const dgo_potential_load *rows, size_t count) {
  PyObject *list = PyList_New((Py_ssize_t)count);
  for (size_t i = 0; list != NULL && i < count; i++) {
    PyObject *row = load_row(&rows[i]);
    if (row == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, (Py_ssize_t)i, row);
  }
  return list;
}

/* potential_loads(token_ids, lora_name, cache_namespace, block_mm_infos): list of dict. */
static PyObject *router_potential_loads(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("potential_loads", n, 4) < 0) return NULL;
  dgo_request request = {.struct_size = sizeof request};
  prompt_tokens tokens;
  if (identity_get(args + 1, &request) < 0 || tokens_get(args[0], &tokens) < 0) return NULL;
  dgo_potential_load few[64], *rows = few, *more = NULL;
  size_t capacity = sizeof few / sizeof few[0], count = 0;
  NEW_ERROR(error);
  dgo_status status;
  PyObject *result = NULL;
  for (;;) { /* again with room while workers join */
    CALL(status, dgo.router_get_potential_loads(self->handle, tokens.data, tokens.count, &request, rows, sizeof *rows,
                                                capacity, &count, &error));
    if (status != DGO_OK || count <= capacity) break;
    capacity = count + count / 4;
    PyMem_RawFree(more);
    rows = more = PyMem_RawMalloc(capacity * sizeof *rows);
    if (rows == NULL) break;
  }
  if (rows == NULL)
    PyErr_NoMemory();
  else if (status != DGO_OK)
    raise_status(status, &error);
  else
    result = load_rows(rows, count);
  PyMem_RawFree(more);
  tokens_release(&tokens);
  return result;
}

/* ---- bookings ---- */

/* id_get: a request id, which must be a str. */
static int id_get(PyObject *value, dgo_string *id) {
  if (value != Py_None) return to_string(value, "request_id", id);
  PyErr_SetString(PyExc_TypeError, "request_id: expected str, got None");
  return -1;
}

static PyObject *router_mark_prefill_complete(router_object *self, PyObject *request_id) {
  dgo_string id;
  if (id_get(request_id, &id) < 0) return NULL;
  NEW_ERROR(error);
  return none_or(dgo.router_mark_prefill_complete(self->handle, id.data, id.size, &error), &error);
}

static PyObject *router_free(router_object *self, PyObject *request_id) {
  dgo_string id;
  if (id_get(request_id, &id) < 0) return NULL;
  NEW_ERROR(error);
  return none_or(dgo.router_free(self->handle, id.data, id.size, &error), &error);
}

void router_give_up(PyObject *router, PyObject *request_id) {
  dgo_string id;
  if (id_get(request_id, &id) == 0) (void)dgo.router_free(((router_object *)router)->handle, id.data, id.size, NULL);
}

/* add_output_block(request_id, n, decay_fraction) */
static PyObject *router_add_output_block(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("add_output_block", n, 3) < 0) return NULL;
  dgo_string id;
  int64_t blocks;
  double decay = 0;
  if (id_get(args[0], &id) < 0 || to_i64(args[1], "n", &blocks) < 0) return NULL;
  if (args[2] != Py_None && to_double(args[2], "decay_fraction", &decay) < 0) return NULL;
  NEW_ERROR(error);
  return none_or(dgo.router_add_output_block(self->handle, id.data, id.size, blocks, args[2] == Py_None ? NULL : &decay, &error),
                 &error);
}

/* report_cached_tokens(request_id, cached_tokens) */
static PyObject *router_report_cached_tokens(router_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("report_cached_tokens", n, 2) < 0) return NULL;
  dgo_string id;
  int64_t tokens;
  if (id_get(args[0], &id) < 0 || to_i64(args[1], "cached_tokens", &tokens) < 0) return NULL;
  NEW_ERROR(error);
  return none_or(dgo.router_report_cached_tokens(self->handle, id.data, id.size, tokens, &error), &error);
}

/* ---- state ---- */

/* decisions(after): JSON. */
static PyObject *router_decisions(router_object *self, PyObject *number) {
  uint64_t after;
  if (to_u64(number, "after", &after) < 0) return NULL;
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_decisions(self->handle, after, &buffer, &error));
  return text_or(status, &error, &buffer);
}

typedef dgo_status (*json_call)(dgo_router, dgo_buffer *, dgo_error *);

/* router_json: a call that gives a text, nearly always JSON. */
static PyObject *router_json(router_object *self, json_call call) {
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, call(self->handle, &buffer, &error));
  return text_or(status, &error, &buffer);
}

static PyObject *router_workers(router_object *self, PyObject *Py_UNUSED(unused)) {
  return router_json(self, dgo.router_workers);
}
static PyObject *router_health(router_object *self, PyObject *Py_UNUSED(unused)) {
  return router_json(self, dgo.router_health);
}
static PyObject *router_stats(router_object *self, PyObject *Py_UNUSED(unused)) {
  return router_json(self, dgo.router_stats);
}
static PyObject *router_metrics(router_object *self, PyObject *Py_UNUSED(unused)) {
  return router_json(self, dgo.router_metrics);
}
static PyObject *router_dump_events(router_object *self, PyObject *Py_UNUSED(unused)) {
  return router_json(self, dgo.router_dump_events);
}

static PyObject *router_load_events(router_object *self, PyObject *events) {
  char *text;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(events, &text, &size) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_load_events(self->handle, text, (size_t)size, &error));
  return none_or(status, &error);
}

static PyObject *router_replicate(router_object *self, PyObject *replicas) {
  dgo_string text;
  if (to_string(replicas, "replicas", &text) < 0) return NULL;
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_replicate(self->handle, text.data, text.size, &buffer, &error));
  return text_or(status, &error, &buffer);
}

static PyObject *router_save(router_object *self, PyObject *path) {
  dgo_string text;
  if (to_string(path, "path", &text) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_save(self->handle, text.data, text.size, &error));
  return none_or(status, &error);
}

static PyObject *router_load(router_object *self, PyObject *path) {
  dgo_string text;
  size_t ranks = 0;
  if (to_string(path, "path", &text) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.router_load(self->handle, text.data, text.size, &ranks, &error));
  return status == DGO_OK ? PyLong_FromSize_t(ranks) : raise_status(status, &error);
}

#define METHOD(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef router_methods[] = {
    {"close", METHOD(router_close), METH_NOARGS, NULL},
    {"add_worker", METHOD(router_add_worker), METH_FASTCALL, NULL},
    {"remove_worker", METHOD(router_remove_worker), METH_O, NULL},
    {"workers", METHOD(router_workers), METH_NOARGS, NULL},
    {"apply_event", METHOD(router_apply_event), METH_FASTCALL, NULL},
    {"best_worker", METHOD(router_best_worker), METH_FASTCALL, NULL},
    {"submit", METHOD(router_submit), METH_FASTCALL, NULL},
    {"submit_many", METHOD(router_submit_many), METH_FASTCALL, NULL},
    {"wait", METHOD(router_wait), METH_O, NULL},
    {"generate", METHOD(router_generate), METH_FASTCALL, NULL},
    {"answer", METHOD(router_answer), METH_FASTCALL, NULL},
    {"take", METHOD(router_take), METH_O, NULL},
    {"cancel", METHOD(router_cancel), METH_O, NULL},
    {"ready_fd", METHOD(router_ready_fd), METH_NOARGS, NULL},
    {"ready", METHOD(router_ready), METH_NOARGS, NULL},
    {"explain", METHOD(router_explain), METH_FASTCALL, NULL},
    {"overlap_scores", METHOD(router_overlap_scores), METH_FASTCALL, NULL},
    {"potential_loads", METHOD(router_potential_loads), METH_FASTCALL, NULL},
    {"mark_prefill_complete", METHOD(router_mark_prefill_complete), METH_O, NULL},
    {"free", METHOD(router_free), METH_O, NULL},
    {"add_output_block", METHOD(router_add_output_block), METH_FASTCALL, NULL},
    {"report_cached_tokens", METHOD(router_report_cached_tokens), METH_FASTCALL, NULL},
    {"decisions", METHOD(router_decisions), METH_O, NULL},
    {"dump_events", METHOD(router_dump_events), METH_NOARGS, NULL},
    {"load_events", METHOD(router_load_events), METH_O, NULL},
    {"replicate", METHOD(router_replicate), METH_O, NULL},
    {"save", METHOD(router_save), METH_O, NULL},
    {"load", METHOD(router_load), METH_O, NULL},
    {"health", METHOD(router_health), METH_NOARGS, NULL},
    {"stats", METHOD(router_stats), METH_NOARGS, NULL},
    {"metrics", METHOD(router_metrics), METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot router_slots[] = {
    {Py_tp_new, (void *)router_new},
    {Py_tp_dealloc, (void *)router_dealloc},
    {Py_tp_methods, router_methods},
    {Py_tp_doc, (void *)"A router of the C interface; see dynamo_go.Router."},
    {0, NULL},
};

static PyType_Spec router_spec = {
    .name = "dynamo_go._native.Router",
    .basicsize = sizeof(router_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = router_slots,
};

PyTypeObject *router_type(void) { return make_load_keys() < 0 ? NULL : (PyTypeObject *)PyType_FromSpec(&router_spec); }
