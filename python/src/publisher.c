/* _native.Publisher: the worker's side of KV events, over ZeroMQ. Arguments are positional; dynamo_go.KvEventPublisher gives
 * them names and defaults. */
#include "native.h"

typedef struct {
  PyObject_HEAD
  dgo_publisher handle; /* set once */
} publisher_object;

/* Publisher(config as JSON), or Publisher(config, runtime, endpoint): in its deployment. */
static PyObject *publisher_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
  PyObject *config, *runtime = NULL, *endpoint = Py_None;
  dgo_string text, path;
  dgo_runtime of = 0;
  if (!PyArg_ParseTuple(args, "O|OO:Publisher", &config, &runtime, &endpoint) || to_string(config, "config", &text) < 0) return NULL;
  if (library_load() < 0) return NULL;
  if (runtime != NULL && (runtime_handle(runtime, &of) < 0 || to_string(endpoint, "endpoint", &path) < 0)) return NULL;
  publisher_object *self = (publisher_object *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = runtime == NULL ? dgo.publisher_new(text.data, text.size, &self->handle, &error)
                           : dgo.runtime_publisher(of, path.data, path.size, text.data, text.size, &self->handle, &error);
  Py_END_ALLOW_THREADS
  if (status == DGO_OK) return (PyObject *)self;
  Py_DECREF(self);
  return raise_status(status, &error);
}

static void publisher_dealloc(publisher_object *self) {
  PyTypeObject *type = Py_TYPE(self);
  if (self->handle != 0) {
    Py_BEGIN_ALLOW_THREADS
    dgo.publisher_close(self->handle, NULL);
    Py_END_ALLOW_THREADS
  }
  type->tp_free((PyObject *)self);
  Py_DECREF(type);
}

/* publish: one event, with the GIL released. */
static PyObject *publish(publisher_object *self, uint32_t dp_rank, const dgo_kv_event *event) {
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.publisher_publish(self->handle, dp_rank, event, sizeof *event, 1, &error);
  Py_END_ALLOW_THREADS
  if (status != DGO_OK) return raise_status(status, &error);
  Py_RETURN_NONE;
}

/* stored_get: args are those of publisher_stored after the hashes. */
static int stored_get(PyObject *const *args, dgo_kv_event *event) {
  int eagle;
  if (to_bool(args[2], "is_eagle", &eagle) < 0) return -1;
  if (eagle) event->flags |= DGO_EVENT_EAGLE;
  if (args[1] != Py_None) {
    event->flags |= DGO_EVENT_PARENT;
    if (to_u64(args[1], "parent_hash", &event->parent_hash) < 0) return -1;
  }
  if (to_u32(args[0], "kv_block_size", &event->block_size) < 0 || to_string(args[3], "lora_name", &event->lora_name) < 0 ||
      to_string(args[4], "cache_salt", &event->cache_salt) < 0)
    return -1;
  return to_string(args[5], "block_mm_infos", &event->block_mm_infos);
}

/* stored(dp_rank, token_ids, block_hashes, block_size, parent_hash, eagle, lora_name, cache_salt, block_mm_infos) */
static PyObject *publisher_stored(publisher_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("stored", n, 9) < 0) return NULL;
  dgo_kv_event event = {.kind = DGO_EVENT_STORED};
  uint32_t dp_rank;
  uint64_t *hashes;
  if (to_u32(args[0], "dp_rank", &dp_rank) < 0 || stored_get(args + 3, &event) < 0 ||
      to_u64_array(args[2], "block_hashes", DGO_TOKENS_MAX, &hashes, &event.n_blocks) < 0)
    return NULL;
  PyObject *result = NULL;
  prompt_tokens tokens;
  if (tokens_get(args[1], &tokens) == 0) {
    event.block_hashes = hashes;
    event.tokens = tokens.data;
    event.n_tokens = tokens.count;
    result = publish(self, dp_rank, &event);
    tokens_release(&tokens);
  }
  PyMem_RawFree(hashes);
  return result;
}

/* removed(dp_rank, block_hashes) */
static PyObject *publisher_removed(publisher_object *self, PyObject *const *args, Py_ssize_t n) {
  if (check_count("removed", n, 2) < 0) return NULL;
  dgo_kv_event event = {.kind = DGO_EVENT_REMOVED};
  uint32_t dp_rank;
  uint64_t *hashes;
  if (to_u32(args[0], "dp_rank", &dp_rank) < 0 ||
      to_u64_array(args[1], "block_hashes", DGO_TOKENS_MAX, &hashes, &event.n_blocks) < 0)
    return NULL;
  event.block_hashes = hashes;
  PyObject *result = publish(self, dp_rank, &event);
  PyMem_RawFree(hashes);
  return result;
}

/* cleared(dp_rank) */
static PyObject *publisher_cleared(publisher_object *self, PyObject *rank) {
  dgo_kv_event event = {.kind = DGO_EVENT_CLEARED};
  uint32_t dp_rank;
  if (to_u32(rank, "dp_rank", &dp_rank) < 0) return NULL;
  return publish(self, dp_rank, &event);
}

static PyObject *publisher_info(publisher_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.publisher_info(self->handle, &buffer, &error);
  Py_END_ALLOW_THREADS
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}

static PyObject *publisher_close(publisher_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.publisher_close(self->handle, &error);
  Py_END_ALLOW_THREADS
  if (status != DGO_OK) return raise_status(status, &error);
  Py_RETURN_NONE;
}

static PyMethodDef publisher_methods[] = {
    {"stored", (PyCFunction)(void (*)(void))publisher_stored, METH_FASTCALL, NULL},
    {"removed", (PyCFunction)(void (*)(void))publisher_removed, METH_FASTCALL, NULL},
    {"cleared", (PyCFunction)publisher_cleared, METH_O, NULL},
    {"info", (PyCFunction)(void (*)(void))publisher_info, METH_NOARGS, NULL},
    {"close", (PyCFunction)(void (*)(void))publisher_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot publisher_slots[] = {
    {Py_tp_new, (void *)publisher_new},
    {Py_tp_dealloc, (void *)publisher_dealloc},
    {Py_tp_methods, publisher_methods},
    {Py_tp_doc, (void *)"The worker's side of KV events; Publisher(config as JSON)."},
    {0, NULL},
};

static PyType_Spec publisher_spec = {
    .name = "dynamo_go._native.Publisher",
    .basicsize = sizeof(publisher_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = publisher_slots,
};

PyTypeObject *publisher_type(void) { return (PyTypeObject *)PyType_FromSpec(&publisher_spec); }
