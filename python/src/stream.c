/* _native.Stream: items as they come, in batches; dynamo_go.ItemStream awaits them. */
#include "native.h"

typedef struct {
  PyObject_HEAD
  dgo_stream handle; /* set once */
} stream_object;

static PyTypeObject *type_of_streams; /* for as long as the process: the module is never unloaded */

PyObject *stream_make(dgo_stream handle) {
  stream_object *self = PyObject_New(stream_object, type_of_streams);
  if (self == NULL) {
    dgo.stream_close(handle, NULL);
    return NULL;
  }
  self->handle = handle;
  return (PyObject *)self;
}

static void stream_dealloc(stream_object *self) {
  PyTypeObject *type = Py_TYPE(self);
  Py_BEGIN_ALLOW_THREADS
  dgo.stream_close(self->handle, NULL); /* in a forked child this does nothing */
  Py_END_ALLOW_THREADS
  PyObject_Free(self);
  Py_DECREF(type);
}

/* How long one slice of a wait takes: a signal is noticed after it. */
enum { SLICE_MS = 50 };

int stream_wait(dgo_stream handle, uint32_t timeout_ms, dgo_buffer *items, size_t *ends, size_t capacity, size_t *count,
                dgo_status *status, dgo_error *error) {
  for (;;) {
    uint32_t slice = timeout_ms > SLICE_MS && timeout_ms <= DGO_WAIT_MS_MAX ? SLICE_MS : timeout_ms;
    Py_BEGIN_ALLOW_THREADS
    *status = dgo.stream_next(handle, slice, items, ends, capacity, count, error);
    Py_END_ALLOW_THREADS
    timeout_ms -= slice;
    if (*status != DGO_TIMEOUT || timeout_ms == 0) return 0;
    if (PyErr_CheckSignals() < 0) return -1;
  }
}

/* How many items one take() gives at most: a loop has other things to do, too. */
enum { MOST_ITEMS = 1024 };

static PyObject *item_list(const dgo_buffer *items, const size_t *ends, size_t count) {
  PyObject *list = PyList_New((Py_ssize_t)count);
  for (size_t i = 0, start = 0; list != NULL && i < count; start = ends[i++]) {
    PyObject *item = PyBytes_FromStringAndSize(items->data + start, (Py_ssize_t)(ends[i] - start));
    if (item == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, (Py_ssize_t)i, item);
  }
  return list;
}

/* take(timeout_ms): the items that wait, as a list of bytes; [] if none came in time; None once the stream has ended well. */
static PyObject *stream_take(stream_object *self, PyObject *timeout) {
  uint32_t timeout_ms;
  if (to_u32(timeout, "timeout_ms", &timeout_ms) < 0) return NULL;
  NEW_BUFFER(items);
  NEW_ERROR(error);
  size_t ends[MOST_ITEMS], count = 0;
  dgo_status status;
  if (stream_wait(self->handle, timeout_ms, &items, ends, MOST_ITEMS, &count, &status, &error) < 0) return NULL;
  if (status == DGO_TIMEOUT) return PyList_New(0);
  if (status == DGO_ENDED) Py_RETURN_NONE;
  if (status != DGO_OK) return raise_status(status, &error);
  PyObject *list = item_list(&items, ends, count);
  dgo.buffer_free(&items);
  return list;
}

static PyObject *stream_fd(stream_object *self, PyObject *Py_UNUSED(unused)) {
  int fd = -1;
  NEW_ERROR(error);
  dgo_status status = dgo.stream_fd(self->handle, &fd, &error);
  return status == DGO_OK ? PyLong_FromLong(fd) : raise_status(status, &error);
}

static PyObject *none_or(dgo_status status, const dgo_error *error) {
  if (status != DGO_OK) return raise_status(status, error);
  Py_RETURN_NONE;
}

/* cancel(kill: bool) */
static PyObject *stream_cancel(stream_object *self, PyObject *value) {
  int kill;
  if (to_bool(value, "kill", &kill) < 0) return NULL;
  NEW_ERROR(error);
  return none_or(dgo.stream_cancel(self->handle, kill ? DGO_CANCEL_KILL : 0, &error), &error);
}

static PyObject *stream_close(stream_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.stream_close(self->handle, &error);
  Py_END_ALLOW_THREADS
  return none_or(status, &error);
}

/* log(level: str): a Stream of the log's lines from that level on, each a JSON object; None for "off". The one before ends. */
PyObject *log_lines(PyObject *Py_UNUSED(module), PyObject *level) {
  dgo_string text;
  if (to_string(level, "level", &text) < 0 || library_load() < 0) return NULL;
  dgo_stream lines = 0;
  NEW_ERROR(error);
  dgo_status status = dgo.log(text.data, text.size, &lines, &error);
  if (status != DGO_OK) return raise_status(status, &error);
  if (lines != 0) return stream_make(lines);
  Py_RETURN_NONE;
}

#define METHOD(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef stream_methods[] = {
    {"take", METHOD(stream_take), METH_O, NULL},
    {"fd", METHOD(stream_fd), METH_NOARGS, NULL},
    {"cancel", METHOD(stream_cancel), METH_O, NULL},
    {"close", METHOD(stream_close), METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot stream_slots[] = {
    {Py_tp_dealloc, (void *)stream_dealloc},
    {Py_tp_methods, stream_methods},
    {Py_tp_doc, (void *)"Items as they come; see dynamo_go.ItemStream."},
    {0, NULL},
};

static PyType_Spec stream_spec = {
    .name = "dynamo_go._native.Stream",
    .basicsize = sizeof(stream_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = stream_slots,
};

PyTypeObject *stream_type(void) {
  type_of_streams = (PyTypeObject *)PyType_FromSpec(&stream_spec);
  return (PyTypeObject *)Py_XNewRef((PyObject *)type_of_streams);
}
