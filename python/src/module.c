/* dynamo_go._native: the C interface for Python. It converts arguments and results, and nothing else; the classes that
 * users see are Python. Built for each Python version, because the fast conversion of lists reads the layout of int. */
#include "native.h"

static PyObject *version(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return library_load() < 0 ? NULL : PyUnicode_FromString(dgo.version());
}

static PyObject *abi_version(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return library_load() < 0 ? NULL : PyLong_FromUnsignedLong(dgo.abi_version());
}

static PyMethodDef functions[] = {
    {"version", version, METH_NOARGS, NULL},
    {"abi_version", abi_version, METH_NOARGS, NULL},
    {"statuses", statuses, METH_NOARGS, NULL},
    {"block_hashes", (PyCFunction)(void (*)(void))block_hashes, METH_FASTCALL, NULL},
    {"sequence_hashes", sequence_hashes, METH_O, NULL},
    {"decode_batch", (PyCFunction)(void (*)(void))decode_batch, METH_FASTCALL, NULL},
    {"config_check", config_check, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "dynamo_go._native",
    .m_doc = "The C interface of dynamo-go; use the classes of dynamo_go.",
    .m_size = -1, /* the library is loaded once for the process */
    .m_methods = functions,
};

/* add_type: put a new type into the module. */
static int add_type(PyObject *module, const char *name, PyTypeObject *type) {
  if (type == NULL) return -1;
  int failed = PyModule_AddObjectRef(module, name, (PyObject *)type);
  Py_DECREF(type);
  return failed;
}

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module == NULL) return NULL;
  if (add_type(module, "Router", router_type()) < 0 || add_type(module, "EventReader", event_reader_type()) < 0 ||
      add_type(module, "Mocker", mocker_type()) < 0 || add_type(module, "Publisher", publisher_type()) < 0) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
