/* _native.Server: an OpenAI endpoint over engines. */
#include "native.h"

typedef struct {
  PyObject_HEAD
  dgo_server handle; /* set once */
} server_object;

static PyObject *server_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
  PyObject *config;
  dgo_string text;
  if (!PyArg_ParseTuple(args, "O:Server", &config) || to_string(config, "config", &text) < 0) return NULL;
  if (library_load() < 0) return NULL;
  server_object *self = (server_object *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.serve_new(text.data, text.size, &self->handle, &error);
  Py_END_ALLOW_THREADS
  if (status == DGO_OK) return (PyObject *)self;
  Py_DECREF(self);
  return raise_status(status, &error);
}

static void server_dealloc(server_object *self) {
  PyTypeObject *type = Py_TYPE(self);
  if (self->handle != 0) {
    Py_BEGIN_ALLOW_THREADS
    dgo.serve_close(self->handle, NULL);
    Py_END_ALLOW_THREADS
  }
  type->tp_free((PyObject *)self);
  Py_DECREF(type);
}

static PyObject *server_info(server_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.serve_info(self->handle, &buffer, &error);
  Py_END_ALLOW_THREADS
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}

static PyObject *server_texts(server_object *self, PyObject *Py_UNUSED(unused)) {
  dgo_stream stream = 0;
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.serve_texts(self->handle, &stream, &error);
  Py_END_ALLOW_THREADS
  return status == DGO_OK ? stream_make(stream) : raise_status(status, &error);
}

/* tokens(text_id, token_ids or None). */
static PyObject *server_tokens(server_object *self, PyObject *const *args, Py_ssize_t n) {
  uint64_t id;
  prompt_tokens tokens;
  NEW_ERROR(error);
  dgo_status status;
  if (check_count("tokens", n, 2) < 0 || to_u64(args[0], "text_id", &id) < 0) return NULL;
  if (args[1] == Py_None) {
    Py_BEGIN_ALLOW_THREADS
    status = dgo.serve_tokens(self->handle, id, NULL, 0, &error);
    Py_END_ALLOW_THREADS
  } else {
    static const uint32_t none;
    if (tokens_get(args[1], &tokens) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = dgo.serve_tokens(self->handle, id, tokens.count > 0 ? tokens.data : &none, tokens.count, &error);
    Py_END_ALLOW_THREADS
    tokens_release(&tokens);
  }
  if (status != DGO_OK) return raise_status(status, &error);
  Py_RETURN_NONE;
}

static PyObject *server_stop(server_object *self, PyObject *const *args, Py_ssize_t n) {
  uint64_t grace;
  NEW_ERROR(error);
  dgo_status status;
  if (check_count("stop", n, 1) < 0 || to_u64(args[0], "grace_ms", &grace) < 0) return NULL;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.serve_stop(self->handle, grace > INT64_MAX ? INT64_MAX : (int64_t)grace, &error);
  Py_END_ALLOW_THREADS
  if (status != DGO_OK) return raise_status(status, &error);
  Py_RETURN_NONE;
}

static PyObject *server_close(server_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.serve_close(self->handle, &error);
  Py_END_ALLOW_THREADS
  if (status != DGO_OK) return raise_status(status, &error);
  Py_RETURN_NONE;
}

static PyMethodDef server_methods[] = {
    {"info", (PyCFunction)(void (*)(void))server_info, METH_NOARGS, NULL},
    {"texts", (PyCFunction)(void (*)(void))server_texts, METH_NOARGS, NULL},
    {"tokens", (PyCFunction)(void (*)(void))server_tokens, METH_FASTCALL, NULL},
    {"stop", (PyCFunction)(void (*)(void))server_stop, METH_FASTCALL, NULL},
    {"close", (PyCFunction)(void (*)(void))server_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot server_slots[] = {
    {Py_tp_new, (void *)server_new},
    {Py_tp_dealloc, (void *)server_dealloc},
    {Py_tp_methods, server_methods},
    {Py_tp_doc, (void *)"An OpenAI endpoint over engines; Server(config as JSON)."},
    {0, NULL},
};

static PyType_Spec server_spec = {
    .name = "dynamo_go._native.Server",
    .basicsize = sizeof(server_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = server_slots,
};

PyTypeObject *server_type(void) { return (PyTypeObject *)PyType_FromSpec(&server_spec); }
