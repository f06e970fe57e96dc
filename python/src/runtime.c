/* _native.Runtime: a process of a deployment. Arguments are positional; dynamo_go._deployment gives them names. Its notices come by take(), which
 * never waits; an event loop watches fd(). */
#include "native.h"

typedef struct {
  PyObject_HEAD
  dgo_runtime handle; /* both set once */
  dgo_stream notices;
} runtime_object;

static PyTypeObject *type_of_runtimes; /* for as long as the process: the module is never unloaded */

int runtime_handle(PyObject *value, dgo_runtime *handle) {
  if (!PyObject_TypeCheck(value, type_of_runtimes)) {
    PyErr_Format(PyExc_TypeError, "expected a Runtime, got %.80s", Py_TYPE(value)->tp_name);
    return -1;
  }
  *handle = ((runtime_object *)value)->handle;
  return 0;
}

static PyObject *none_or(dgo_status status, const dgo_error *error) {
  if (status != DGO_OK) return raise_status(status, error);
  Py_RETURN_NONE;
}

static PyObject *number_or(dgo_status status, const dgo_error *error, uint64_t number) {
  return status == DGO_OK ? PyLong_FromUnsignedLongLong(number) : raise_status(status, error);
}

/* CALL: one call with the GIL released: it may write files, or start threads. */
#define CALL(status, call)       \
  do {                           \
    Py_BEGIN_ALLOW_THREADS       \
    status = (call);             \
    Py_END_ALLOW_THREADS         \
  } while (0)

/* Runtime(config as JSON) */
static PyObject *runtime_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
  PyObject *config;
  dgo_string text;
  if (!PyArg_ParseTuple(args, "O:Runtime", &config) || to_string(config, "config", &text) < 0 || library_load() < 0) return NULL;
  runtime_object *self = (runtime_object *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.runtime_new(text.data, text.size, &self->handle, &self->notices, &error));
  if (status == DGO_OK) return (PyObject *)self;
  Py_DECREF(self);
  return raise_status(status, &error);
}

static void runtime_dealloc(runtime_object *self) {
  PyTypeObject *type = Py_TYPE(self);
  if (self->handle != 0) {
    Py_BEGIN_ALLOW_THREADS
    dgo.runtime_close(self->handle, NULL); /* in a forked child these do nothing */
    dgo.stream_close(self->notices, NULL);
    Py_END_ALLOW_THREADS
  }
  type->tp_free((PyObject *)self);
  Py_DECREF(type);
}

static PyObject *runtime_fd(runtime_object *self, PyObject *Py_UNUSED(unused)) {
  int fd = -1;
  NEW_ERROR(error);
  dgo_status status = dgo.stream_fd(self->notices, &fd, &error);
  return status == DGO_OK ? PyLong_FromLong(fd) : raise_status(status, &error);
}

/* How many notices one take() gives at most: a loop has other things to do, too. */
enum { MOST_NOTICES = 512 };

/* notice: (kind, id, flags, payload, what comes after the payload or None). A payload that cannot be read is the exception instead. */
static PyObject *notice(const char *data, size_t size) {
  dgo_notice head;
  if (size < sizeof head) {
    PyErr_SetString(PyExc_ValueError, "a notice without a head");
    return NULL;
  }
  memcpy(&head, data, sizeof head);
  packed_view view = {(const unsigned char *)data + sizeof head, (const unsigned char *)data + size};
  PyObject *payload = Py_NewRef(Py_None), *more = Py_NewRef(Py_None);
  if (view.at < view.end) Py_SETREF(payload, unpack(&view));
  if (payload != NULL && view.at < view.end) Py_SETREF(more, unpack(&view));
  if (payload == NULL || more == NULL) {
    Py_XDECREF(payload);
    Py_XDECREF(more);
    return NULL;
  }
  return Py_BuildValue("IKINN", head.kind, (unsigned long long)head.id, head.flags, payload, more);
}

/* take(): the notices that wait, as a list; None once the runtime is closed. */
static PyObject *runtime_take(runtime_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_BUFFER(items);
  NEW_ERROR(error);
  size_t ends[MOST_NOTICES], count = 0;
  dgo_status status = dgo.stream_next(self->notices, 0, &items, ends, MOST_NOTICES, &count, &error);
  if (status == DGO_TIMEOUT) return PyList_New(0);
  if (status == DGO_ENDED || status == DGO_CLOSED) Py_RETURN_NONE;
  if (status != DGO_OK) return raise_status(status, &error);
  PyObject *list = PyList_New((Py_ssize_t)count);
  for (size_t i = 0, start = 0; list != NULL && i < count; start = ends[i++]) {
    PyObject *item = notice(items.data + start, ends[i] - start);
    if (item == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, (Py_ssize_t)i, item);
  }
  dgo.buffer_free(&items);
  return list;
}

static PyObject *runtime_info(runtime_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status = dgo.runtime_info(self->handle, &buffer, &error);
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}

static PyObject *runtime_close(runtime_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.runtime_close(self->handle, &error));
  return none_or(status, &error);
}

/* serve(endpoint, options as JSON): the service's number. */
static PyObject *runtime_serve(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  dgo_string endpoint, options;
  if (check_count("serve", n, 2) < 0 || to_string(args[0], "endpoint", &endpoint) < 0 || to_string(args[1], "options", &options) < 0)
    return NULL;
  uint64_t service = 0;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.runtime_serve(self->handle, endpoint.data, endpoint.size, options.data, options.size, &service, &error));
  return number_or(status, &error, service);
}

/* listed(service, listed: bool) */
static PyObject *runtime_listed(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  uint64_t service;
  int listed;
  if (check_count("listed", n, 2) < 0 || to_u64(args[0], "service", &service) < 0 || to_bool(args[1], "listed", &listed) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.runtime_list(self->handle, service, listed, &error));
  return none_or(status, &error);
}

/* model(endpoint, id, card as JSON or None) */
static PyObject *runtime_model(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  dgo_string endpoint, card;
  uint64_t id;
  if (check_count("model", n, 3) < 0 || to_string(args[0], "endpoint", &endpoint) < 0 || to_u64(args[1], "id", &id) < 0 ||
      to_string(args[2], "card", &card) < 0)
    return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.runtime_model(self->handle, endpoint.data, endpoint.size, id, card.data, card.size, &error));
  return none_or(status, &error);
}

/* answer(call, item): whether to wait for Drained. */
static PyObject *runtime_answer(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  uint64_t call;
  packed item;
  if (check_count("answer", n, 2) < 0 || to_u64(args[0], "call", &call) < 0 || pack(args[1], &item) < 0) return NULL;
  int32_t ahead = 0;
  NEW_ERROR(error);
  dgo_status status = dgo.runtime_answer(self->handle, call, item.data, item.size, 0, &ahead, &error);
  pack_release(&item);
  return status == DGO_OK ? PyBool_FromLong(ahead) : raise_status(status, &error);
}

/* finish(call, failure): it is complete, or failed, if failure is not None: a JSON object. */
static PyObject *runtime_finish(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  uint64_t call;
  dgo_string failure;
  if (check_count("finish", n, 2) < 0 || to_u64(args[0], "call", &call) < 0 || to_string(args[1], "failure", &failure) < 0) return NULL;
  NEW_ERROR(error);
  uint32_t flags = failure.data == NULL ? DGO_ANSWER_END : DGO_ANSWER_FAIL;
  return none_or(dgo.runtime_answer(self->handle, call, failure.data, failure.size, flags, NULL, &error), &error);
}

/* client(endpoint): its number. */
static PyObject *runtime_client(runtime_object *self, PyObject *path) {
  dgo_string endpoint;
  if (to_string(path, "endpoint", &endpoint) < 0) return NULL;
  uint64_t client = 0;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.runtime_client(self->handle, endpoint.data, endpoint.size, &client, &error));
  return number_or(status, &error, client);
}

/* instances(client): JSON. */
static PyObject *runtime_instances(runtime_object *self, PyObject *value) {
  uint64_t client;
  if (to_u64(value, "client", &client) < 0) return NULL;
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status = dgo.runtime_instances(self->handle, client, &buffer, &error);
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}

/* call(client, body, options as JSON): the call's number. */
static PyObject *runtime_call(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  uint64_t client, call = 0;
  dgo_string options;
  packed body;
  if (check_count("call", n, 3) < 0 || to_u64(args[0], "client", &client) < 0 || to_string(args[2], "options", &options) < 0 ||
      pack(args[1], &body) < 0)
    return NULL;
  NEW_ERROR(error);
  dgo_status status = dgo.runtime_call(self->handle, client, body.data, body.size, options.data, options.size, &call, &error);
  pack_release(&body);
  return number_or(status, &error, call);
}

/* more(call, n): nothing if it has ended. */
static PyObject *runtime_more(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  uint64_t call, items;
  if (check_count("more", n, 2) < 0 || to_u64(args[0], "call", &call) < 0 || to_u64(args[1], "n", &items) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status = dgo.runtime_more(self->handle, call, (size_t)items, &error);
  return none_or(status == DGO_REQUEST_NOT_FOUND || status == DGO_CLOSED ? DGO_OK : status, &error);
}

/* ending: cancel or end, which do nothing to what has ended. */
static PyObject *ending(runtime_object *self, PyObject *const *args, Py_ssize_t n, const char *name,
                        dgo_status (*function)(dgo_runtime, uint64_t, uint32_t, dgo_error *)) {
  uint64_t id;
  int kill;
  if (check_count(name, n, 2) < 0 || to_u64(args[0], "id", &id) < 0 || to_bool(args[1], "kill", &kill) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status = function(self->handle, id, kill ? DGO_CANCEL_KILL : 0, &error);
  return none_or(status == DGO_REQUEST_NOT_FOUND || status == DGO_CLOSED || status == DGO_FORKED ? DGO_OK : status, &error);
}

/* cancel(call, kill: bool) */
static PyObject *runtime_cancel(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  return ending(self, args, n, "cancel", dgo.runtime_cancel);
}

/* end(service or client, kill: bool) */
static PyObject *runtime_end(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  return ending(self, args, n, "end", dgo.runtime_end);
}

/* load(endpoint, load as JSON) */
static PyObject *runtime_load(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  dgo_string endpoint, load;
  if (check_count("load", n, 2) < 0 || to_string(args[0], "endpoint", &endpoint) < 0 || to_string(args[1], "load", &load) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.runtime_load(self->handle, endpoint.data, endpoint.size, load.data, load.size, &error));
  return none_or(status, &error);
}

/* add_engine(endpoint, config as JSON): the worker's id. */
static PyObject *runtime_add_engine(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  dgo_string endpoint, config;
  if (check_count("add_engine", n, 2) < 0 || to_string(args[0], "endpoint", &endpoint) < 0 || to_string(args[1], "config", &config) < 0)
    return NULL;
  uint64_t worker = 0;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.runtime_add_engine(self->handle, endpoint.data, endpoint.size, config.data, config.size, &worker, &error));
  return number_or(status, &error, worker);
}

/* watch_engines(endpoint, path of a file) */
static PyObject *runtime_watch_engines(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  dgo_string endpoint, path;
  if (check_count("watch_engines", n, 2) < 0 || to_string(args[0], "endpoint", &endpoint) < 0 || to_string(args[1], "path", &path) < 0)
    return NULL;
  NEW_ERROR(error);
  dgo_status status;
  CALL(status, dgo.runtime_watch_engines(self->handle, endpoint.data, endpoint.size, path.data, path.size, &error));
  return none_or(status, &error);
}

/* engines(endpoint): JSON. */
static PyObject *runtime_engines(runtime_object *self, PyObject *value) {
  dgo_string endpoint;
  if (to_string(value, "endpoint", &endpoint) < 0) return NULL;
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status = dgo.runtime_engines(self->handle, endpoint.data, endpoint.size, &buffer, &error);
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}

/* drain_engine(endpoint, worker id, draining: bool) */
static PyObject *runtime_drain_engine(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  dgo_string endpoint;
  uint64_t worker;
  int draining;
  if (check_count("drain_engine", n, 3) < 0 || to_string(args[0], "endpoint", &endpoint) < 0 || to_u64(args[1], "worker_id", &worker) < 0 ||
      to_bool(args[2], "draining", &draining) < 0)
    return NULL;
  NEW_ERROR(error);
  return none_or(dgo.runtime_drain_engine(self->handle, endpoint.data, endpoint.size, worker, draining, &error), &error);
}

/* remove_engine(endpoint, worker id, kill: bool) */
static PyObject *runtime_remove_engine(runtime_object *self, PyObject *const *args, Py_ssize_t n) {
  dgo_string endpoint;
  uint64_t worker;
  int kill;
  if (check_count("remove_engine", n, 3) < 0 || to_string(args[0], "endpoint", &endpoint) < 0 || to_u64(args[1], "worker_id", &worker) < 0 ||
      to_bool(args[2], "kill", &kill) < 0)
    return NULL;
  NEW_ERROR(error);
  return none_or(
      dgo.runtime_remove_engine(self->handle, endpoint.data, endpoint.size, worker, kill ? DGO_CANCEL_KILL : 0, &error), &error);
}

#define METHOD(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef runtime_methods[] = {
    {"fd", METHOD(runtime_fd), METH_NOARGS, NULL},
    {"take", METHOD(runtime_take), METH_NOARGS, NULL},
    {"info", METHOD(runtime_info), METH_NOARGS, NULL},
    {"close", METHOD(runtime_close), METH_NOARGS, NULL},
    {"serve", METHOD(runtime_serve), METH_FASTCALL, NULL},
    {"listed", METHOD(runtime_listed), METH_FASTCALL, NULL},
    {"model", METHOD(runtime_model), METH_FASTCALL, NULL},
    {"answer", METHOD(runtime_answer), METH_FASTCALL, NULL},
    {"finish", METHOD(runtime_finish), METH_FASTCALL, NULL},
    {"client", METHOD(runtime_client), METH_O, NULL},
    {"instances", METHOD(runtime_instances), METH_O, NULL},
    {"call", METHOD(runtime_call), METH_FASTCALL, NULL},
    {"more", METHOD(runtime_more), METH_FASTCALL, NULL},
    {"cancel", METHOD(runtime_cancel), METH_FASTCALL, NULL},
    {"end", METHOD(runtime_end), METH_FASTCALL, NULL},
    {"load", METHOD(runtime_load), METH_FASTCALL, NULL},
    {"add_engine", METHOD(runtime_add_engine), METH_FASTCALL, NULL},
    {"watch_engines", METHOD(runtime_watch_engines), METH_FASTCALL, NULL},
    {"engines", METHOD(runtime_engines), METH_O, NULL},
    {"drain_engine", METHOD(runtime_drain_engine), METH_FASTCALL, NULL},
    {"remove_engine", METHOD(runtime_remove_engine), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot runtime_slots[] = {
    {Py_tp_new, (void *)runtime_new},
    {Py_tp_dealloc, (void *)runtime_dealloc},
    {Py_tp_methods, runtime_methods},
    {Py_tp_doc, (void *)"A process of a deployment; Runtime(config as JSON)."},
    {0, NULL},
};

static PyType_Spec runtime_spec = {
    .name = "dynamo_go._native.Runtime",
    .basicsize = sizeof(runtime_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = runtime_slots,
};

PyTypeObject *runtime_type(void) {
  type_of_runtimes = (PyTypeObject *)PyType_FromSpec(&runtime_spec);
  return (PyTypeObject *)Py_XNewRef((PyObject *)type_of_runtimes);
}
