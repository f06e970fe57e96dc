/* _native.RadixTree: the index by itself; dynamo_go.RadixTree tells the rest. */
#include "native.h"

typedef struct {
  PyObject_HEAD
  dgo_radix_tree handle; /* set once */
} tree_object;

static PyObject *none_or(dgo_status status, const dgo_error *error) {
  if (status != DGO_OK) return raise_status(status, error);
  Py_RETURN_NONE;
}

/* RadixTree() */
static PyObject *tree_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
  if (!PyArg_ParseTuple(args, ":RadixTree") || library_load() < 0) return NULL;
  tree_object *self = (tree_object *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  NEW_ERROR(error);
  dgo_status status = dgo.radix_tree_new(&self->handle, &error);
  if (status == DGO_OK) return (PyObject *)self;
  Py_DECREF(self);
  return raise_status(status, &error);
}

static void tree_dealloc(tree_object *self) {
  PyTypeObject *type = Py_TYPE(self);
  if (self->handle != 0) {
    Py_BEGIN_ALLOW_THREADS
    dgo.radix_tree_close(self->handle, NULL);
    Py_END_ALLOW_THREADS
  }
  type->tp_free((PyObject *)self);
  Py_DECREF(type);
}

/* apply_event(worker_id, event: bytes) */
static PyObject *tree_apply_event(tree_object *self, PyObject *const *args, Py_ssize_t n) {
  uint64_t worker_id;
  char *event;
  Py_ssize_t size;
  if (check_count("apply_event", n, 2) < 0 || to_u64(args[0], "worker_id", &worker_id) < 0 ||
      PyBytes_AsStringAndSize(args[1], &event, &size) < 0)
    return NULL;
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.radix_tree_apply_event(self->handle, worker_id, event, (size_t)size, &error);
  Py_END_ALLOW_THREADS
  return none_or(status, &error);
}

/* A match of so many blocks releases the GIL; see RELEASE_GIL_TOKENS. */
enum { RELEASE_GIL_BLOCKS = 2048 };

static dgo_status find(dgo_radix_tree handle, const uint64_t *hashes, size_t n, dgo_match *rows, size_t capacity, size_t *count,
                       dgo_error *error) {
  if (n < RELEASE_GIL_BLOCKS)
    return dgo.radix_tree_find_matches(handle, hashes, n, rows, sizeof *rows, capacity, count, error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.radix_tree_find_matches(handle, hashes, n, rows, sizeof *rows, capacity, count, error);
  Py_END_ALLOW_THREADS
  return status;
}

/* add_score: scores[worker_id, dp_rank] = blocks. */
static int add_score(PyObject *scores, const dgo_match *row) {
  PyObject *key = PyTuple_New(2), *blocks = PyLong_FromUnsignedLong(row->blocks);
  int failed = -1;
  if (key != NULL && blocks != NULL) {
    PyTuple_SET_ITEM(key, 0, PyLong_FromUnsignedLongLong(row->worker_id));
    PyTuple_SET_ITEM(key, 1, PyLong_FromUnsignedLong(row->dp_rank));
    if (PyTuple_GET_ITEM(key, 0) != NULL && PyTuple_GET_ITEM(key, 1) != NULL) failed = PyDict_SetItem(scores, key, blocks);
  }
  Py_XDECREF(key);
  Py_XDECREF(blocks);
  return failed;
}

static PyObject *score_dict(const dgo_match *rows, size_t count) {
  PyObject *scores = PyDict_New();
  for (size_t i = 0; scores != NULL && i < count; i++)
    if (add_score(scores, &rows[i]) < 0) Py_CLEAR(scores);
  return scores;
}

/* find_matches(block_hashes): dict from (worker_id, dp_rank) to blocks. */
static PyObject *tree_find_matches(tree_object *self, PyObject *value) {
  uint64_t *hashes;
  size_t n;
  if (to_u64_array(value, "sequence", DGO_TOKENS_MAX, &hashes, &n) < 0) return NULL;
  dgo_match few[64], *rows = few, *more = NULL;
  size_t capacity = sizeof few / sizeof few[0], count = 0;
  NEW_ERROR(error);
  dgo_status status;
  while ((status = find(self->handle, hashes, n, rows, capacity, &count, &error)) == DGO_OK && count > capacity) {
    capacity = count + count / 4; /* again with room while ranks come */
    PyMem_RawFree(more);
    if ((rows = more = PyMem_RawMalloc(capacity * sizeof *rows)) == NULL) break;
  }
  PyObject *result = NULL;
  if (rows == NULL)
    PyErr_NoMemory();
  else
    result = status == DGO_OK ? score_dict(rows, count) : raise_status(status, &error);
  PyMem_RawFree(more);
  PyMem_RawFree(hashes);
  return result;
}

static PyObject *tree_remove_worker(tree_object *self, PyObject *id) {
  uint64_t worker_id;
  if (to_u64(id, "worker_id", &worker_id) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.radix_tree_remove_worker(self->handle, worker_id, &error);
  Py_END_ALLOW_THREADS
  return none_or(status, &error);
}

/* dump(): JSON lines. */
static PyObject *tree_dump(tree_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.radix_tree_dump(self->handle, &buffer, &error);
  Py_END_ALLOW_THREADS
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}

static PyObject *tree_close(tree_object *self, PyObject *Py_UNUSED(unused)) {
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.radix_tree_close(self->handle, &error);
  Py_END_ALLOW_THREADS
  return none_or(status, &error);
}

#define METHOD(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef tree_methods[] = {
    {"apply_event", METHOD(tree_apply_event), METH_FASTCALL, NULL},
    {"find_matches", METHOD(tree_find_matches), METH_O, NULL},
    {"remove_worker", METHOD(tree_remove_worker), METH_O, NULL},
    {"dump", METHOD(tree_dump), METH_NOARGS, NULL},
    {"close", METHOD(tree_close), METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tree_slots[] = {
    {Py_tp_new, (void *)tree_new},
    {Py_tp_dealloc, (void *)tree_dealloc},
    {Py_tp_methods, tree_methods},
    {Py_tp_doc, (void *)"An index by itself; see dynamo_go.RadixTree."},
    {0, NULL},
};

static PyType_Spec tree_spec = {
    .name = "dynamo_go._native.RadixTree",
    .basicsize = sizeof(tree_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = tree_slots,
};

PyTypeObject *radix_tree_type(void) { return (PyTypeObject *)PyType_FromSpec(&tree_spec); }
