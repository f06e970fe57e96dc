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
    {"log", log_lines, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* add_type: put a new type into the module. */
static int add_type(PyObject *module, const char *name, PyTypeObject *type) {
  if (type == NULL) return -1;
  int failed = PyModule_AddObjectRef(module, name, (PyObject *)type);
  Py_DECREF(type);
  return failed;
}

/* The library belongs to the process, and so do the types: two interpreters must not share them. */
static int execute(PyObject *module) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError, "dynamo_go does not support subinterpreters: import it in the main interpreter");
    return -1;
  }
  if (add_type(module, "Answer", answer_type()) < 0) return -1;
  if (add_type(module, "Router", router_type()) < 0) return -1;
  if (add_type(module, "Runtime", runtime_type()) < 0) return -1;
  if (add_type(module, "EventReader", event_reader_type()) < 0) return -1;
  if (add_type(module, "Mocker", mocker_type()) < 0) return -1;
  if (add_type(module, "Server", server_type()) < 0) return -1;
  if (add_type(module, "Publisher", publisher_type()) < 0) return -1;
  if (add_type(module, "RadixTree", radix_tree_type()) < 0) return -1;
  return add_type(module, "Stream", stream_type());
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_USED}, /* lists are read while nothing else can change them */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "dynamo_go._native",
    .m_doc = "The C interface of dynamo-go; use the classes of dynamo_go.",
    .m_size = 0, /* the library is loaded once for the process */
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
