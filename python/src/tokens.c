/* Prompts from Python to uint32. Converting a list costs more than the decision it is for, so:
 *
 *   buffer of uint32 (array('I'), numpy.uint32, memoryview)   used in place
 *   buffer of other integers, bytes                           copied by a C loop; of bytes, each byte is a token
 *   list, tuple                                               a C loop that reads small ints in place
 *   range                                                     computed
 *   any other sequence                                        by its items, through __index__
 *
 * A value out of range is InvalidArgument, a wrong type TypeError; both name the position. */
#include <string.h>

#include "native.h"

/* small_u32: the value of an int that CPython stores in one digit, read in place.
 * CPython 3.12 moved sign and digit count into a tag that only its unstable API reads; before, Py_SIZE is the signed
 * number of 30-bit digits. */
static inline int small_u32(PyObject *item, uint32_t *value) {
  if (!PyLong_CheckExact(item)) return 0;
#if PY_VERSION_HEX >= 0x030C0000
  if (!PyUnstable_Long_IsCompact((PyLongObject *)item)) return 0;
  Py_ssize_t v = PyUnstable_Long_CompactValue((PyLongObject *)item);
  if (v < 0) return 0;
  *value = (uint32_t)v;
  return 1;
#else
  Py_ssize_t digits = Py_SIZE(item);
  if (digits == 1) {
    *value = (uint32_t)((PyLongObject *)item)->ob_digit[0];
    return 1;
  }
  *value = 0;
  return digits == 0;
#endif
}

static int bad_token(PyObject *item, Py_ssize_t i) {
  PyErr_Clear();
  PyObject *text = describe(item);
  if (text == NULL) return -1;
  raise_invalid("token_ids[%zd]=%U, expected an int in 0 .. 2**32-1", i, text);
  Py_DECREF(text);
  return -1;
}

/* any_u32: an item that is not a small int: a larger one, or anything with __index__ (which may run any code). */
static int any_u32(PyObject *item, Py_ssize_t i, uint32_t *value) {
  if (!PyIndex_Check(item)) {
    PyErr_Format(PyExc_TypeError, "token_ids[%zd]: expected int, got %.80s", i, Py_TYPE(item)->tp_name);
    return -1;
  }
  PyObject *number = PyNumber_Index(item);
  if (number == NULL) return -1;
  unsigned long v = PyLong_AsUnsignedLong(number);
  int failed = 0;
  if ((v == (unsigned long)-1 && PyErr_Occurred()) || v > UINT32_MAX) failed = bad_token(number, i);
  Py_DECREF(number);
  *value = (uint32_t)v;
  return failed;
}

static int too_many(Py_ssize_t n) {
  if (n >= 0 && (size_t)n <= DGO_TOKENS_MAX) return 0;
  raise_invalid("token_ids has more than %zd tokens", (Py_ssize_t)DGO_TOKENS_MAX);
  return -1;
}

/* reserve: memory for n converted tokens. */
static uint32_t *reserve(prompt_tokens *tokens, Py_ssize_t n) {
  if (too_many(n) < 0) return NULL;
  tokens->owned = PyMem_RawMalloc(n == 0 ? 1 : (size_t)n * sizeof(uint32_t));
  if (tokens->owned == NULL) {
    PyErr_NoMemory();
    return NULL;
  }
  tokens->data = tokens->owned;
  tokens->count = (size_t)n;
  return tokens->owned;
}

static int from_list(PyObject *list, prompt_tokens *tokens) {
  Py_ssize_t n = PyList_GET_SIZE(list);
  uint32_t *values = reserve(tokens, n);
  if (values == NULL) return -1;
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject *item = PyList_GET_ITEM(list, i);
    if (small_u32(item, &values[i])) continue;
    Py_INCREF(item); /* its __index__ may take it out of the list */
    int failed = any_u32(item, i, &values[i]);
    Py_DECREF(item);
    if (failed) return -1;
    if (PyList_GET_SIZE(list) != n) {
      PyErr_SetString(PyExc_RuntimeError, "token_ids changed its size while it was read");
      return -1;
    }
  }
  return 0;
}

static int from_tuple(PyObject *tuple, prompt_tokens *tokens) {
  Py_ssize_t n = PyTuple_GET_SIZE(tuple);
  uint32_t *values = reserve(tokens, n);
  if (values == NULL) return -1;
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject *item = PyTuple_GET_ITEM(tuple, i);
    if (!small_u32(item, &values[i]) && any_u32(item, i, &values[i]) < 0) return -1;
  }
  return 0;
}

/* range_value: an attribute of a range, as far as it fits; the ends are checked, so a step beyond 2^62 is never used. */
static int range_value(PyObject *range, const char *name, long long *value) {
  PyObject *number = PyObject_GetAttrString(range, name);
  if (number == NULL) return -1;
  int overflow;
  *value = PyLong_AsLongLongAndOverflow(number, &overflow);
  Py_DECREF(number);
  if (overflow != 0) *value = overflow < 0 ? -(1LL << 62) : 1LL << 62;
  return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static int from_range(PyObject *range, prompt_tokens *tokens) {
  Py_ssize_t n = PyObject_Size(range);
  if (n < 0) {
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
    PyErr_Clear();
    n = -1; /* more than there can be */
  }
  uint32_t *values = reserve(tokens, n);
  if (values == NULL) return -1;
  if (n == 0) return 0;
  for (Py_ssize_t end = 0; end < n; end += n > 1 ? n - 1 : 1) { /* the first and the last bound all between */
    PyObject *item = PySequence_GetItem(range, end);
    if (item == NULL) return -1;
    uint32_t ignored;
    int failed = any_u32(item, end, &ignored);
    Py_DECREF(item);
    if (failed) return -1;
  }
  long long start, step;
  if (range_value(range, "start", &start) < 0 || range_value(range, "step", &step) < 0) return -1;
  for (Py_ssize_t i = 0; i < n; i++) values[i] = (uint32_t)(start + i * (n > 1 ? step : 0));
  return 0;
}

static int from_items(PyObject *sequence, prompt_tokens *tokens) {
  PyObject *list = items_of(sequence, "token_ids", DGO_TOKENS_MAX);
  if (list == NULL) return -1;
  int failed = from_list(list, tokens);
  Py_DECREF(list);
  return failed;
}

/* A buffer's element: how many bytes, and whether it has a sign. */
static int integer_format(const Py_buffer *view, int *is_signed) {
  const char *format = view->format == NULL ? "B" : view->format;
  if (*format == '@' || *format == '=' || *format == (PY_LITTLE_ENDIAN ? '<' : '>')) format++;
  if (format[0] == '\0' || format[1] != '\0') return 0;
  *is_signed = strchr("bhilqn", format[0]) != NULL;
  return *is_signed || strchr("BHILQN", format[0]) != NULL;
}

static int element_out_of_range(const Py_buffer *view, int is_signed, const unsigned char *at, Py_ssize_t i) {
  int64_t s = 0;
  uint64_t u = 0;
  if (view->itemsize == 8) {
    memcpy(&u, at, 8);
    memcpy(&s, at, 8);
  } else {
    int32_t narrow = 0; /* only a negative one comes here */
    if (view->itemsize == 4) memcpy(&narrow, at, 4);
    if (view->itemsize == 2) {
      int16_t half;
      memcpy(&half, at, 2);
      narrow = half;
    }
    if (view->itemsize == 1) narrow = (signed char)*at;
    s = narrow;
  }
  if (is_signed)
    raise_invalid("token_ids[%zd]=%lld, expected an int in 0 .. 2**32-1", i, (long long)s);
  else
    raise_invalid("token_ids[%zd]=%llu, expected an int in 0 .. 2**32-1", i, (unsigned long long)u);
  return -1;
}

/* copy_elements: each element widened to 64 bits; as unsigned, a negative one is above 2^32-1. */
static int copy_elements(const Py_buffer *view, int is_signed, uint32_t *values, Py_ssize_t n) {
  const unsigned char *at = view->buf;
  for (Py_ssize_t i = 0; i < n; i++, at += view->itemsize) {
    uint64_t wide;
    switch (view->itemsize) {
      case 1: wide = is_signed ? (uint64_t)(int64_t)(signed char)*at : *at; break;
      case 2: {
        uint16_t v;
        memcpy(&v, at, 2);
        wide = is_signed ? (uint64_t)(int64_t)(int16_t)v : v;
        break;
      }
      case 4: {
        uint32_t v;
        memcpy(&v, at, 4);
        wide = is_signed ? (uint64_t)(int64_t)(int32_t)v : v;
        break;
      }
      default: memcpy(&wide, at, 8); break;
    }
    if (wide > UINT32_MAX) return element_out_of_range(view, is_signed, at, i);
    values[i] = (uint32_t)wide;
  }
  return 0;
}

/* from_view: 1 if the buffer is none of integers in a row (its items may still be), 0, or -1 with an exception. */
static int from_view(prompt_tokens *tokens) {
  const Py_buffer *view = &tokens->view;
  int is_signed;
  if (view->ndim != 1) {
    PyErr_Format(PyExc_TypeError, "token_ids: expected one dimension, got %d", view->ndim);
    return -1;
  }
  if (!integer_format(view, &is_signed)) return 1;
  if (view->itemsize != 1 && view->itemsize != 2 && view->itemsize != 4 && view->itemsize != 8) return 1;
  Py_ssize_t n = view->len / view->itemsize;
  if (view->itemsize == 4 && !is_signed && (uintptr_t)view->buf % sizeof(uint32_t) == 0) {
    if (too_many(n) < 0) return -1;
    tokens->data = view->buf;
    tokens->count = (size_t)n;
    return 0;
  }
  uint32_t *values = reserve(tokens, n);
  return values == NULL ? -1 : copy_elements(view, is_signed, values, n);
}

static int from_buffer(PyObject *value, prompt_tokens *tokens) {
  if (PyObject_GetBuffer(value, &tokens->view, PyBUF_FORMAT | PyBUF_ND) < 0) {
    PyErr_Clear(); /* not in one piece: by its items */
    return PySequence_Check(value) ? from_items(value, tokens) : 1;
  }
  tokens->has_view = 1;
  int result = from_view(tokens);
  if (result == 0 && tokens->owned == NULL) return 0;
  PyBuffer_Release(&tokens->view);
  tokens->has_view = 0;
  return result == 1 && PySequence_Check(value) ? from_items(value, tokens) : result;
}

int tokens_get(PyObject *value, prompt_tokens *tokens) {
  tokens->data = NULL;
  tokens->count = 0;
  tokens->owned = NULL;
  tokens->has_view = 0;
  int result = 1; /* 1: not a kind of value that is taken */
  if (PyList_Check(value))
    result = from_list(value, tokens);
  else if (PyTuple_Check(value))
    result = from_tuple(value, tokens);
  else if (PyRange_Check(value))
    result = from_range(value, tokens);
  else if (PyObject_CheckBuffer(value))
    result = from_buffer(value, tokens);
  else if (PySequence_Check(value) && !PyUnicode_Check(value))
    result = from_items(value, tokens);
  if (result == 0) return 0;
  if (result == 1)
    PyErr_Format(PyExc_TypeError, "token_ids: expected a sequence of ints or a buffer of uint32, got %.80s",
                 Py_TYPE(value)->tp_name);
  tokens_release(tokens);
  return -1;
}

void tokens_release(prompt_tokens *tokens) {
  PyMem_RawFree(tokens->owned);
  tokens->owned = NULL;
  if (tokens->has_view) PyBuffer_Release(&tokens->view);
  tokens->has_view = 0;
}
