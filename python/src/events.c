/* An engine's events as JSON lines: from payloads, and live (_native.EventReader). */
#include "native.h"

/* decode_batch(payload: bytes, seq: int or None): JSON lines. */
PyObject *decode_batch(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n) {
  char *payload;
  Py_ssize_t size;
  uint64_t seq = 0;
  if (check_count("decode_batch", n, 2) < 0 || PyBytes_AsStringAndSize(args[0], &payload, &size) < 0) return NULL;
  if (args[1] != Py_None && to_u64(args[1], "seq", &seq) < 0) return NULL;
  if (library_load() < 0) return NULL;
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.decode_batch(payload, (size_t)size, args[1] == Py_None ? NULL : &seq, &buffer, &error);
  Py_END_ALLOW_THREADS
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}

#define MOST_BATCHES 256 /* whose lines one next() gives */

typedef struct {
  PyObject_HEAD
  dgo_stream handle; /* set once */
  char state[504];         /* what the last timeout said, read and written under the GIL */
} reader_object;

/* EventReader(endpoint, replay, topic) */
static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
  PyObject *endpoint, *replay, *topic;
  dgo_string e, r, t;
  if (!PyArg_ParseTuple(args, "OOO:EventReader", &endpoint, &replay, &topic)) return NULL;
  if (to_string(endpoint, "endpoint", &e) < 0 || to_string(replay, "replay", &r) < 0 || to_string(topic, "topic", &t) < 0)
    return NULL;
  if (library_load() < 0) return NULL;
  reader_object *self = (reader_object *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.events_open(e.data, e.size, r.data, r.size, t.data, t.size, &self->handle, &error);
  Py_END_ALLOW_THREADS
  if (status == DGO_OK) return (PyObject *)self;
  Py_DECREF(self);
  return raise_status(status, &error);
}

static void reader_dealloc(reader_object *self) {
  PyTypeObject *type = Py_TYPE(self);
  if (self->handle != 0) {
    Py_BEGIN_ALLOW_THREADS
    dgo.stream_close(self->handle, NULL);
    Py_END_ALLOW_THREADS
  }
  type->tp_free((PyObject *)self);
  Py_DECREF(type);
}

/* next(timeout_ms): JSON lines, or None if nothing came in time. */
static PyObject *reader_next(reader_object *self, PyObject *timeout) {
  uint32_t timeout_ms;
  if (to_u32(timeout, "timeout_ms", &timeout_ms) < 0) return NULL;
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  size_t count;
  dgo_status status;
  if (stream_wait(self->handle, timeout_ms, &buffer, NULL, MOST_BATCHES, &count, &status, &error) < 0) return NULL;
  if (status == DGO_TIMEOUT) {
    memcpy(self->state, error.message, sizeof self->state);
    Py_RETURN_NONE;
  }
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}

/* state(): the state of the connection when the last next() that gave None ended. */
static PyObject *reader_state(reader_object *self, PyObject *Py_UNUSED(unused)) {
  const char *colon = strchr(self->state, ':'); /* "nothing came in time: state" */
  const char *text = colon == NULL ? "connecting" : colon + 2;
  return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *reader_close(reader_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.stream_close(self->handle, &error);
  Py_END_ALLOW_THREADS
  if (status != DGO_OK) return raise_status(status, &error);
  Py_RETURN_NONE;
}

static PyMethodDef reader_methods[] = {
    {"next", (PyCFunction)(void (*)(void))reader_next, METH_O, NULL},
    {"state", (PyCFunction)(void (*)(void))reader_state, METH_NOARGS, NULL},
    {"close", (PyCFunction)(void (*)(void))reader_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, (void *)reader_new},
    {Py_tp_dealloc, (void *)reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_doc, (void *)"Reads an engine's events as they come; EventReader(endpoint, replay, topic)."},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    .name = "dynamo_go._native.EventReader",
    .basicsize = sizeof(reader_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_slots,
};

PyTypeObject *event_reader_type(void) { return (PyTypeObject *)PyType_FromSpec(&reader_spec); }
