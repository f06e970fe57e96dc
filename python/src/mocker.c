/* _native.Mocker: an engine without a GPU. */
#include "native.h"

typedef struct {
  PyObject_HEAD
  dgo_mocker handle; /* set once */
} mocker_object;

/* Mocker(config: str or None[, runtime, endpoint, worker id]): by itself, or a worker of a deployment. */
static PyObject *mocker_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
  PyObject *config, *runtime = NULL, *endpoint = Py_None, *id = NULL;
  dgo_string text, path;
  dgo_runtime of = 0;
  uint64_t worker = 0;
  if (!PyArg_ParseTuple(args, "O|OOO:Mocker", &config, &runtime, &endpoint, &id) || to_string(config, "config", &text) < 0 ||
      to_string(endpoint, "endpoint", &path) < 0 || (runtime != NULL && runtime_handle(runtime, &of) < 0) ||
      (id != NULL && to_u64(id, "worker_id", &worker) < 0))
    return NULL;
  if (library_load() < 0) return NULL;
  mocker_object *self = (mocker_object *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = runtime == NULL ? dgo.mocker_new(text.data, text.size, &self->handle, &error)
                           : dgo.runtime_mocker(of, path.data, path.size, worker, text.data, text.size, &self->handle, &error);
  Py_END_ALLOW_THREADS
  if (status == DGO_OK) return (PyObject *)self;
  Py_DECREF(self);
  return raise_status(status, &error);
}

static void mocker_dealloc(mocker_object *self) {
  PyTypeObject *type = Py_TYPE(self);
  if (self->handle != 0) {
    Py_BEGIN_ALLOW_THREADS
    dgo.mocker_close(self->handle, NULL);
    Py_END_ALLOW_THREADS
  }
  type->tp_free((PyObject *)self);
  Py_DECREF(type);
}

static PyObject *mocker_info(mocker_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.mocker_info(self->handle, &buffer, &error);
  Py_END_ALLOW_THREADS
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}

/* generate(token_ids, options: str): Stream. */
static PyObject *mocker_generate(mocker_object *self, PyObject *const *args, Py_ssize_t n) {
  dgo_string options;
  prompt_tokens tokens;
  if (check_count("generate", n, 2) < 0 || to_string(args[1], "options", &options) < 0 || tokens_get(args[0], &tokens) < 0)
    return NULL;
  dgo_stream stream = 0;
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.mocker_generate(self->handle, tokens.data, tokens.count, options.data, options.size, &stream, &error);
  Py_END_ALLOW_THREADS
  tokens_release(&tokens);
  return status == DGO_OK ? stream_make(stream) : raise_status(status, &error);
}

static PyObject *mocker_leave(mocker_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.mocker_leave(self->handle, &error);
  Py_END_ALLOW_THREADS
  if (status != DGO_OK) return raise_status(status, &error);
  Py_RETURN_NONE;
}

static PyObject *mocker_close(mocker_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.mocker_close(self->handle, &error);
  Py_END_ALLOW_THREADS
  if (status != DGO_OK) return raise_status(status, &error);
  Py_RETURN_NONE;
}

static PyMethodDef mocker_methods[] = {
    {"info", (PyCFunction)(void (*)(void))mocker_info, METH_NOARGS, NULL},
    {"generate", (PyCFunction)(void (*)(void))mocker_generate, METH_FASTCALL, NULL},
    {"leave", (PyCFunction)(void (*)(void))mocker_leave, METH_NOARGS, NULL},
    {"close", (PyCFunction)(void (*)(void))mocker_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot mocker_slots[] = {
    {Py_tp_new, (void *)mocker_new},
    {Py_tp_dealloc, (void *)mocker_dealloc},
    {Py_tp_methods, mocker_methods},
    {Py_tp_doc, (void *)"An engine without a GPU; Mocker(config as JSON or None[, runtime, endpoint, worker id])."},
    {0, NULL},
};

static PyType_Spec mocker_spec = {
    .name = "dynamo_go._native.Mocker",
    .basicsize = sizeof(mocker_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = mocker_slots,
};

PyTypeObject *mocker_type(void) { return (PyTypeObject *)PyType_FromSpec(&mocker_spec); }
