/* Hashes and configuration: functions without a router. */
#include "native.h"

/* number_list: a list of ints. */
static PyObject *number_list(const uint64_t *values, size_t count) {
  PyObject *list = PyList_New((Py_ssize_t)count);
  for (size_t i = 0; list != NULL && i < count; i++) {
    PyObject *value = PyLong_FromUnsignedLongLong(values[i]);
    if (value == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, (Py_ssize_t)i, value);
  }
  return list;
}

static dgo_status hash(const prompt_tokens *tokens, int64_t block_size, const dgo_request *request, int eagle,
                       uint64_t *hashes, size_t capacity, size_t *count, dgo_error *error) {
  dgo_status status;
  if (tokens->count < RELEASE_GIL_TOKENS)
    return dgo.compute_block_hashes(tokens->data, tokens->count, block_size, request, eagle, hashes, capacity, count, error);
  Py_BEGIN_ALLOW_THREADS
  status = dgo.compute_block_hashes(tokens->data, tokens->count, block_size, request, eagle, hashes, capacity, count, error);
  Py_END_ALLOW_THREADS
  return status;
}

/* block_hashes(token_ids, block_size, lora_name, cache_namespace, block_mm_infos, eagle): list of int. */
PyObject *block_hashes(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n) {
  dgo_request request = {.struct_size = sizeof request};
  int64_t block_size;
  prompt_tokens tokens;
  if (check_count("block_hashes", n, 6) < 0 || library_load() < 0) return NULL;
  if (to_i64(args[1], "kv_block_size", &block_size) < 0 || to_string(args[2], "lora_name", &request.lora_name) < 0 ||
      to_string(args[3], "cache_namespace", &request.cache_namespace) < 0 ||
      to_string(args[4], "block_mm_infos", &request.block_mm_infos) < 0)
    return NULL;
  int eagle;
  if (to_bool(args[5], "is_eagle", &eagle) < 0 || tokens_get(args[0], &tokens) < 0) return NULL;

  size_t capacity = block_size < 1 ? 0 : tokens.count / (size_t)block_size, count = 0;
  uint64_t *hashes = PyMem_RawMalloc(capacity == 0 ? 1 : capacity * sizeof *hashes);
  PyObject *result = NULL;
  if (hashes == NULL) {
    PyErr_NoMemory();
  } else {
    NEW_ERROR(error);
    dgo_status status = hash(&tokens, block_size, &request, eagle, hashes, capacity, &count, &error);
    result = status == DGO_OK ? number_list(hashes, count) : raise_status(status, &error);
  }
  PyMem_RawFree(hashes);
  tokens_release(&tokens);
  return result;
}

/* sequence_hashes(block_hashes): list of int. */
PyObject *sequence_hashes(PyObject *Py_UNUSED(module), PyObject *value) {
  uint64_t *hashes;
  size_t count;
  if (library_load() < 0 || to_u64_array(value, "block_hashes", DGO_TOKENS_MAX, &hashes, &count) < 0) return NULL;
  NEW_ERROR(error);
  dgo_status status;
  Py_BEGIN_ALLOW_THREADS
  status = dgo.compute_sequence_hashes(hashes, count, hashes, &error);
  Py_END_ALLOW_THREADS
  PyObject *result = status == DGO_OK ? number_list(hashes, count) : raise_status(status, &error);
  PyMem_RawFree(hashes);
  return result;
}

/* config_check(config: str): the complete configuration as JSON. */
PyObject *config_check(PyObject *Py_UNUSED(module), PyObject *config) {
  dgo_string text;
  if (to_string(config, "config", &text) < 0 || library_load() < 0) return NULL;
  NEW_BUFFER(buffer);
  NEW_ERROR(error);
  dgo_status status = dgo.config_check(text.data, text.size, &buffer, &error);
  return status == DGO_OK ? take_buffer(&buffer) : raise_status(status, &error);
}
