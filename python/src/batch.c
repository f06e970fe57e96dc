/* Router.submit_many: many decisions in one call, with the GIL released once. */
#include "native.h"

enum { MOST_PROMPTS = 1 << 16 };

/* One prompt of a batch: what is asked, then what came of it. */
typedef struct {
  prompt_tokens tokens;
  dgo_string request_id;
  PyObject *failure; /* why it was not asked; owned */
  dgo_status status;
  dgo_choice choice;
  uint64_t ticket;
  dgo_error error;
} batch_item;

/* caught: the exception that is set, as an object, and no longer set. NULL, and it stays, if it is not for the item alone. */
static PyObject *caught(void) {
  if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
#if PY_VERSION_HEX >= 0x030C0000
  return PyErr_GetRaisedException();
#else
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return value;
#endif
}

/* prepare: what is wrong with one prompt is its own affair. -1 for everything else. */
static int prepare(batch_item *item, PyObject *prompt, PyObject *request_id) {
  if (tokens_get(prompt, &item->tokens) == 0 && to_string(request_id, "request_id", &item->request_id) == 0) return 0;
  item->failure = caught();
  return item->failure == NULL ? -1 : 0;
}

static void ask_all(dgo_router router, batch_item *items, Py_ssize_t n, const dgo_request *common) {
  dgo_request request = *common;
  for (Py_ssize_t i = 0; i < n; i++) {
    batch_item *item = &items[i];
    if (item->failure != NULL) continue;
    request.request_id = item->request_id;
    item->choice.struct_size = sizeof item->choice;
    item->error.struct_size = sizeof item->error;
    item->status = dgo.router_submit(router, item->tokens.data, item->tokens.count, &request, &item->choice, &item->ticket,
                                     &item->error);
  }
}

/* What a router that is closed, or not this process's, says is for the whole call. */
static int of_the_router(dgo_status status) {
  return status == DGO_CLOSED || status == DGO_FORKED || status == DGO_BAD_HANDLE;
}

static PyObject *outcome(batch_item *item) {
  if (item->failure != NULL) return Py_NewRef(item->failure);
  if (item->status != DGO_OK) {
    raise_status(item->status, &item->error);
    return of_the_router(item->status) ? NULL : caught();
  }
  return item->ticket == 0 ? choice_tuple(&item->choice) : PyLong_FromUnsignedLongLong(item->ticket);
}

static PyObject *outcomes(batch_item *items, Py_ssize_t n) {
  PyObject *list = PyList_New(n);
  for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
    PyObject *one = outcome(&items[i]);
    if (one == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, i, one);
  }
  return list;
}

PyObject *batch_submit(dgo_router router, PyObject *prompts, PyObject *request_ids, const dgo_request *common) {
  Py_ssize_t n = PyTuple_GET_SIZE(prompts);
  if (n > MOST_PROMPTS) return raise_invalid("prompts has more than %d elements", MOST_PROMPTS);
  if (PyTuple_GET_SIZE(request_ids) != n)
    return raise_invalid("request_ids has %zd elements, prompts has %zd", PyTuple_GET_SIZE(request_ids), n);
  batch_item *items = PyMem_RawCalloc(n == 0 ? 1 : (size_t)n, sizeof *items);
  if (items == NULL) return PyErr_NoMemory();
  PyObject *result = NULL;
  Py_ssize_t ready = 0;
  while (ready < n && prepare(&items[ready], PyTuple_GET_ITEM(prompts, ready), PyTuple_GET_ITEM(request_ids, ready)) == 0)
    ready++;
  if (ready == n) {
    Py_BEGIN_ALLOW_THREADS
    ask_all(router, items, n, common);
    Py_END_ALLOW_THREADS
    result = outcomes(items, n);
  }
  for (Py_ssize_t i = 0; i < n; i++) {
    tokens_release(&items[i].tokens);
    Py_XDECREF(items[i].failure);
  }
  PyMem_RawFree(items);
  return result;
}
