/* Single arguments from Python to C. A wrong type is a TypeError, a value out of range InvalidArgument; both name the
 * argument and the value. */
#include "native.h"

static int wrong_type(PyObject *value, const char *name, const char *expected) {
  PyErr_Format(PyExc_TypeError, "%s: expected %s, got %.80s", name, expected, Py_TYPE(value)->tp_name);
  return -1;
}

static int out_of_range(PyObject *value, const char *name, const char *range) {
  PyErr_Clear();
  PyObject *text = describe(value);
  if (text == NULL) return -1;
  raise_invalid("%s=%U, expected an int in %s", name, text, range);
  Py_DECREF(text);
  return -1;
}

/* as_int: new reference to the value as a Python int, by __index__. */
static PyObject *as_int(PyObject *value, const char *name) {
  if (!PyIndex_Check(value)) {
    wrong_type(value, name, "int");
    return NULL;
  }
  return PyNumber_Index(value);
}

int to_u64(PyObject *value, const char *name, uint64_t *result) {
  PyObject *number = as_int(value, name);
  if (number == NULL) return -1;
  unsigned long long u = PyLong_AsUnsignedLongLong(number);
  int failed = u == (unsigned long long)-1 && PyErr_Occurred();
  if (failed) out_of_range(number, name, "0 .. 2**64-1");
  Py_DECREF(number);
  if (failed) return -1;
  *result = u;
  return 0;
}

int to_u32(PyObject *value, const char *name, uint32_t *result) {
  PyObject *number = as_int(value, name);
  if (number == NULL) return -1;
  unsigned long long u = PyLong_AsUnsignedLongLong(number);
  int failed = (u == (unsigned long long)-1 && PyErr_Occurred()) || u > UINT32_MAX;
  if (failed) out_of_range(number, name, "0 .. 2**32-1");
  Py_DECREF(number);
  if (failed) return -1;
  *result = (uint32_t)u;
  return 0;
}

int to_i64(PyObject *value, const char *name, int64_t *result) {
  PyObject *number = as_int(value, name);
  if (number == NULL) return -1;
  long long i = PyLong_AsLongLong(number);
  int failed = i == -1 && PyErr_Occurred();
  if (failed) out_of_range(number, name, "-2**63 .. 2**63-1");
  Py_DECREF(number);
  if (failed) return -1;
  *result = i;
  return 0;
}

int to_double(PyObject *value, const char *name, double *result) {
  double d = PyFloat_AsDouble(value);
  if (d == -1.0 && PyErr_Occurred()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      return wrong_type(value, name, "a number");
    }
    return out_of_range(value, name, "the range of double");
  }
  *result = d;
  return 0;
}

int to_bool(PyObject *value, const char *name, int *result) {
  if (!PyBool_Check(value)) return wrong_type(value, name, "bool");
  *result = value == Py_True;
  return 0;
}

int to_string(PyObject *value, const char *name, dgo_string *result) {
  if (value == Py_None) {
    result->data = NULL;
    result->size = 0;
    return 0;
  }
  if (!PyUnicode_Check(value)) return wrong_type(value, name, "str or None");
  Py_ssize_t size;
  const char *data = PyUnicode_AsUTF8AndSize(value, &size);
  if (data == NULL) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) return -1;
    PyErr_Clear();
    PyObject *text = describe(value);
    if (text == NULL) return -1;
    raise_invalid("%s=%U is not valid Unicode", name, text);
    Py_DECREF(text);
    return -1;
  }
  result->data = data;
  result->size = (size_t)size;
  return 0;
}

/* append_all: the items of an iterator, until there are too many. */
static int append_all(PyObject *list, PyObject *iterator, const char *name, size_t limit) {
  for (PyObject *item; (item = PyIter_Next(iterator)) != NULL;) {
    int failed = (size_t)PyList_GET_SIZE(list) == limit;
    if (failed)
      raise_invalid("%s has more than %zu elements", name, limit);
    else
      failed = PyList_Append(list, item) < 0;
    Py_DECREF(item);
    if (failed) return -1;
  }
  return PyErr_Occurred() ? -1 : 0;
}

PyObject *items_of(PyObject *value, const char *name, size_t limit) {
  if (PyList_CheckExact(value) && (size_t)PyList_GET_SIZE(value) <= limit)
    return PyList_GetSlice(value, 0, PyList_GET_SIZE(value));
  PyObject *iterator = PyObject_GetIter(value);
  if (iterator == NULL) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return NULL;
    PyErr_Clear();
    wrong_type(value, name, "an iterable of ints");
    return NULL;
  }
  PyObject *list = PyList_New(0);
  if (list != NULL && append_all(list, iterator, name, limit) < 0) Py_CLEAR(list);
  Py_DECREF(iterator);
  return list;
}

/* few_digits: the value of an int from 0 to 2**64-1 read in place, which PyLong_AsUnsignedLongLong takes three times as long
 * for. CPython 3.12 moved sign and digit count into a tag: the count above 3 bits, of which 0 in the lowest two is positive. */
static inline int few_digits(PyObject *item, uint64_t *value) {
  if (!PyLong_CheckExact(item)) return 0;
#if PY_VERSION_HEX >= 0x030C0000
  uintptr_t tag = ((PyLongObject *)item)->long_value.lv_tag;
  if ((tag & 3) != 0) return 0;
  Py_ssize_t digits = (Py_ssize_t)(tag >> 3);
  const digit *d = ((PyLongObject *)item)->long_value.ob_digit;
#else
  Py_ssize_t digits = Py_SIZE(item);
  const digit *d = ((PyLongObject *)item)->ob_digit;
#endif
  switch (digits) {
    case 1: *value = d[0]; return 1;
    case 2: *value = d[0] | (uint64_t)d[1] << PyLong_SHIFT; return 1;
    case 3:
      if (d[2] >> (64 - 2 * PyLong_SHIFT) != 0) return 0;
      *value = d[0] | (uint64_t)d[1] << PyLong_SHIFT | (uint64_t)d[2] << 2 * PyLong_SHIFT;
      return 1;
  }
  return 0;
}

int to_u64_array(PyObject *value, const char *name, size_t limit, uint64_t **result, size_t *count) {
  if (PyUnicode_Check(value)) return wrong_type(value, name, "an iterable of ints");
  PyObject *items = items_of(value, name, limit); /* a list of its own: __index__ below may run any code */
  if (items == NULL) return -1;
  size_t n = (size_t)PyList_GET_SIZE(items);
  uint64_t *array = PyMem_RawMalloc(n == 0 ? 1 : n * sizeof *array);
  if (array == NULL) PyErr_NoMemory();
  for (size_t i = 0; array != NULL && i < n; i++) {
    PyObject *item = PyList_GET_ITEM(items, (Py_ssize_t)i);
    if (few_digits(item, &array[i])) continue;
    if (to_u64(item, name, &array[i]) < 0) {
      PyMem_RawFree(array);
      array = NULL;
    }
  }
  Py_DECREF(items);
  if (array == NULL) return -1;
  *result = array;
  *count = n;
  return 0;
}

PyObject *take_buffer(dgo_buffer *buffer) {
  PyObject *text = PyUnicode_DecodeUTF8(buffer->data, (Py_ssize_t)buffer->size, "replace");
  dgo.buffer_free(buffer);
  return text;
}

int check_count(const char *function, Py_ssize_t given, Py_ssize_t expected) {
  if (given == expected) return 0;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", function, expected, given);
  return -1;
}
