/* MessagePack, for requests and items: Python values there and back. What comes from the library is valid; the bounds are checked all the same. */
#include "native.h"

enum { MOST_DEPTH = 128 };

/* ---- encoding ---- */

/* room: make place for n more bytes. 0, or -1 with an exception. */
static int room(packed *p, size_t n) {
  if (p->size + n <= p->capacity) return 0;
  size_t capacity = (p->size + n) * 2 + 256;
  char *data = PyMem_Realloc(p->data, capacity);
  if (data == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  p->data = data;
  p->capacity = capacity;
  return 0;
}

static int put(packed *p, const void *data, size_t n) {
  if (room(p, n) < 0) return -1;
  memcpy(p->data + p->size, data, n);
  p->size += n;
  return 0;
}

/* put_head: a code and the low `n` bytes of a number, the highest first. */
static int put_head(packed *p, unsigned code, uint64_t value, int n) {
  unsigned char head[9] = {(unsigned char)code};
  for (int i = n; i > 0; i--, value >>= 8) head[i] = (unsigned char)value;
  return put(p, head, (size_t)n + 1);
}

static int put_int(packed *p, PyObject *value) {
  int overflow;
  long long v = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (v == -1 && PyErr_Occurred()) return -1;
  if (overflow > 0) {
    unsigned long long u = PyLong_AsUnsignedLongLong(value);
    if (u == (unsigned long long)-1 && PyErr_Occurred()) return -1;
    return put_head(p, 0xcf, u, 8);
  }
  if (overflow < 0) {
    PyErr_SetString(PyExc_OverflowError, "int below -2**63 cannot be sent");
    return -1;
  }
  if (v >= 0) {
    if (v < 0x80) return put_head(p, (unsigned)v, 0, 0);
    if (v <= 0xff) return put_head(p, 0xcc, (uint64_t)v, 1);
    if (v <= 0xffff) return put_head(p, 0xcd, (uint64_t)v, 2);
    return v <= 0xffffffffLL ? put_head(p, 0xce, (uint64_t)v, 4) : put_head(p, 0xcf, (uint64_t)v, 8);
  }
  if (v >= -32) return put_head(p, (unsigned)(v & 0xff), 0, 0);
  return v >= INT32_MIN ? put_head(p, 0xd2, (uint64_t)v, 4) : put_head(p, 0xd3, (uint64_t)v, 8);
}

static int put_float(packed *p, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return put_head(p, 0xcb, bits, 8);
}

/* put_length: of what has codes for 8 (or none), 16 and 32 bits. */
static int put_length(packed *p, Py_ssize_t n, unsigned fix, Py_ssize_t fixed, unsigned c8, unsigned c16, unsigned c32) {
  if (n < fixed) return put_head(p, fix | (unsigned)n, 0, 0);
  if (c8 != 0 && n <= 0xff) return put_head(p, c8, (uint64_t)n, 1);
  if (n <= 0xffff) return put_head(p, c16, (uint64_t)n, 2);
  if ((uint64_t)n <= 0xffffffffu) return put_head(p, c32, (uint64_t)n, 4);
  PyErr_SetString(PyExc_OverflowError, "more than 2**32 - 1 bytes or elements cannot be sent");
  return -1;
}

static int put_text(packed *p, PyObject *value) {
  Py_ssize_t n;
  const char *text = PyUnicode_AsUTF8AndSize(value, &n);
  if (text == NULL || put_length(p, n, 0xa0, 32, 0xd9, 0xda, 0xdb) < 0) return -1;
  return put(p, text, (size_t)n);
}

static int put_value(packed *p, PyObject *value, int depth);

static int put_pair(packed *p, PyObject *key, PyObject *value, int depth) {
  if (!PyUnicode_Check(key)) {
    PyErr_Format(PyExc_TypeError, "dict keys must have type str, got %.80s", Py_TYPE(key)->tp_name);
    return -1;
  }
  return put_text(p, key) < 0 ? -1 : put_value(p, value, depth);
}

/* put_mapping: the items of a dict, or of any other mapping; taken first, as what is encoded may run Python. */
static int put_mapping(packed *p, PyObject *value, int depth) {
  PyObject *items = PyMapping_Items(value);
  if (items == NULL) return -1;
  Py_ssize_t n = PyList_GET_SIZE(items);
  int status = put_length(p, n, 0x80, 16, 0, 0xde, 0xdf);
  for (Py_ssize_t i = 0; status == 0 && i < n; i++) {
    PyObject *pair = PyList_GET_ITEM(items, i);
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
      PyErr_SetString(PyExc_TypeError, "a mapping whose items are no pairs cannot be sent");
      status = -1;
    } else {
      status = put_pair(p, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1), depth);
    }
  }
  Py_DECREF(items);
  return status;
}

static int put_sequence(packed *p, PyObject *value, int depth) {
  PyObject *items = PySequence_Tuple(value); /* of a tuple itself */
  if (items == NULL) return -1;
  Py_ssize_t n = PyTuple_GET_SIZE(items);
  int status = put_length(p, n, 0x90, 16, 0, 0xdc, 0xdd);
  for (Py_ssize_t i = 0; status == 0 && i < n; i++) status = put_value(p, PyTuple_GET_ITEM(items, i), depth);
  Py_DECREF(items);
  return status;
}

/* put_other: what is a number, an array or a mapping without being of a class of Python's own. */
static int put_other(packed *p, PyObject *value, int depth) {
  if (PyIndex_Check(value)) {
    PyObject *number = PyNumber_Index(value);
    int status = number == NULL ? -1 : put_int(p, number);
    Py_XDECREF(number);
    return status;
  }
  if (Py_TYPE(value)->tp_as_number != NULL && Py_TYPE(value)->tp_as_number->nb_float != NULL) {
    double number = PyFloat_AsDouble(value);
    return number == -1.0 && PyErr_Occurred() ? -1 : put_float(p, number);
  }
  if (PyMapping_Check(value) && PyObject_HasAttrString(value, "items")) return put_mapping(p, value, depth);
  PyObject *list = PyObject_HasAttrString(value, "tolist") ? PyObject_CallMethod(value, "tolist", NULL) : NULL; /* numpy, array */
  if (list != NULL) {
    int status = put_value(p, list, depth);
    Py_DECREF(list);
    return status;
  }
  PyErr_Clear();
  if (PySequence_Check(value)) return put_sequence(p, value, depth);
  PyErr_Format(PyExc_TypeError, "%.80s cannot be sent: expected None, bool, int, float, str, bytes, or a list or dict of those",
               Py_TYPE(value)->tp_name);
  return -1;
}

static int put_value(packed *p, PyObject *value, int depth) {
  if (depth >= MOST_DEPTH) {
    PyErr_Format(PyExc_ValueError, "a value nested more than %d deep cannot be sent", MOST_DEPTH);
    return -1;
  }
  if (value == Py_None) return put_head(p, 0xc0, 0, 0);
  if (value == Py_False) return put_head(p, 0xc2, 0, 0);
  if (value == Py_True) return put_head(p, 0xc3, 0, 0);
  if (PyLong_Check(value)) return put_int(p, value);
  if (PyUnicode_Check(value)) return put_text(p, value);
  if (PyFloat_Check(value)) return put_float(p, PyFloat_AS_DOUBLE(value));
  if (PyDict_Check(value)) return put_mapping(p, value, depth + 1);
  if (PyList_Check(value) || PyTuple_Check(value)) return put_sequence(p, value, depth + 1);
  if (PyBytes_Check(value) || PyByteArray_Check(value)) {
    char *data = PyBytes_Check(value) ? PyBytes_AS_STRING(value) : PyByteArray_AS_STRING(value);
    Py_ssize_t n = Py_SIZE(value);
    return put_length(p, n, 0, 0, 0xc4, 0xc5, 0xc6) < 0 ? -1 : put(p, data, (size_t)n);
  }
  return put_other(p, value, depth + 1);
}

int pack(PyObject *value, packed *p) {
  memset(p, 0, sizeof *p);
  if (put_value(p, value, 0) == 0) return 0;
  pack_release(p);
  return -1;
}

void pack_release(packed *p) { PyMem_Free(p->data); }

/* ---- decoding ---- */

static PyObject *cut_short(void) {
  PyErr_SetString(PyExc_ValueError, "malformed MessagePack");
  return NULL;
}

/* number: the next n bytes, the highest first. 0, or -1 with an exception. */
static int number(packed_view *v, int n, uint64_t *result) {
  if (v->end - v->at < n) return cut_short(), -1;
  *result = 0;
  for (int i = 0; i < n; i++) *result = *result << 8 | *v->at++;
  return 0;
}

static PyObject *text(packed_view *v, uint64_t n) {
  if ((uint64_t)(v->end - v->at) < n) return cut_short();
  PyObject *result = PyUnicode_DecodeUTF8((const char *)v->at, (Py_ssize_t)n, "replace");
  v->at += n;
  return result;
}

static PyObject *value_at(packed_view *v, int depth);

static PyObject *list_at(packed_view *v, uint64_t n, int depth) {
  if ((uint64_t)(v->end - v->at) < n) return cut_short(); /* an element has a byte, at least */
  PyObject *list = PyList_New((Py_ssize_t)n);
  for (uint64_t i = 0; list != NULL && i < n; i++) {
    PyObject *item = value_at(v, depth);
    if (item == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, (Py_ssize_t)i, item);
  }
  return list;
}

static PyObject *dict_at(packed_view *v, uint64_t n, int depth) {
  if ((uint64_t)(v->end - v->at) / 2 < n) return cut_short();
  PyObject *dict = PyDict_New();
  for (uint64_t i = 0; dict != NULL && i < n; i++) {
    PyObject *key = value_at(v, depth), *value = key == NULL ? NULL : value_at(v, depth);
    if (value == NULL || PyDict_SetItem(dict, key, value) < 0) Py_CLEAR(dict);
    Py_XDECREF(key);
    Py_XDECREF(value);
  }
  return dict;
}

static PyObject *float_at(packed_view *v, int n) {
  uint64_t bits;
  if (number(v, n, &bits) < 0) return NULL;
  if (n == 4) {
    uint32_t half = (uint32_t)bits;
    float value;
    memcpy(&value, &half, sizeof value);
    return PyFloat_FromDouble((double)value);
  }
  double value;
  memcpy(&value, &bits, sizeof value);
  return PyFloat_FromDouble(value);
}

static PyObject *bytes_at(packed_view *v, uint64_t n) {
  if ((uint64_t)(v->end - v->at) < n) return cut_short();
  PyObject *result = PyBytes_FromStringAndSize((const char *)v->at, (Py_ssize_t)n);
  v->at += n;
  return result;
}

static PyObject *value_at(packed_view *v, int depth) {
  uint64_t n;
  if (depth > MOST_DEPTH || v->at >= v->end) return cut_short();
  unsigned code = *v->at++;
  if (code < 0x80) return PyLong_FromLong((long)code);
  if (code >= 0xe0) return PyLong_FromLong((long)code - 256);
  if (code < 0x90) return dict_at(v, code & 0x0f, depth + 1);
  if (code < 0xa0) return list_at(v, code & 0x0f, depth + 1);
  if (code < 0xc0) return text(v, code & 0x1f);
  switch (code) {
    case 0xc0: Py_RETURN_NONE;
    case 0xc2: Py_RETURN_FALSE;
    case 0xc3: Py_RETURN_TRUE;
    case 0xca: return float_at(v, 4);
    case 0xcb: return float_at(v, 8);
    case 0xc4: case 0xc5: case 0xc6: return number(v, 1 << (code - 0xc4), &n) < 0 ? NULL : bytes_at(v, n);
    case 0xcc: case 0xcd: case 0xce: case 0xcf:
      return number(v, 1 << (code - 0xcc), &n) < 0 ? NULL : PyLong_FromUnsignedLongLong(n);
    case 0xd0: return number(v, 1, &n) < 0 ? NULL : PyLong_FromLong((int8_t)n);
    case 0xd1: return number(v, 2, &n) < 0 ? NULL : PyLong_FromLong((int16_t)n);
    case 0xd2: return number(v, 4, &n) < 0 ? NULL : PyLong_FromLong((int32_t)n);
    case 0xd3: return number(v, 8, &n) < 0 ? NULL : PyLong_FromLongLong((int64_t)n);
    case 0xd9: case 0xda: case 0xdb: return number(v, 1 << (code - 0xd9), &n) < 0 ? NULL : text(v, n);
    case 0xdc: case 0xdd: return number(v, 2 << (code - 0xdc), &n) < 0 ? NULL : list_at(v, n, depth + 1);
    case 0xde: case 0xdf: return number(v, 2 << (code - 0xde), &n) < 0 ? NULL : dict_at(v, n, depth + 1);
  }
  return cut_short();
}

PyObject *unpack(packed_view *v) { return value_at(v, 0); }
