/* _native.Answer: a future whose result was there from the start.
 *
 * KvRouter gives one where asyncio.Future would cost as much as a small decision. Awaiting it neither suspends nor makes
 * an iterator. asyncio takes any object with _asyncio_future_blocking for a future, so wait, gather, wait_for, shield and
 * run_until_complete work; callbacks come by the loop's call_soon, as those of asyncio.Future do.
 *
 * An answer to a booking that is cancelled before anybody has read it frees the booking: who cancels does not know whether
 * the choice had come. */
#include "native.h"

typedef struct {
  PyObject_HEAD
  PyObject *loop;
  PyObject *value;
  PyObject *router;     /* NULL once read, and for what books nothing */
  PyObject *request_id; /* NULL with router */
} answer_object;

static PyTypeObject *type_of_answers; /* for as long as the process: the module is never unloaded */

PyObject *answer_make(PyObject *loop, PyObject *value, PyObject *router, PyObject *request_id) {
  answer_object *self = PyObject_GC_New(answer_object, type_of_answers);
  if (self == NULL) return NULL;
  self->loop = Py_NewRef(loop);
  self->value = Py_NewRef(value);
  self->router = Py_XNewRef(router);
  self->request_id = Py_XNewRef(request_id);
  PyObject_GC_Track(self);
  return (PyObject *)self;
}

static void was_read(answer_object *self) {
  if (self->router == NULL) return;
  Py_CLEAR(self->router);
  Py_CLEAR(self->request_id);
}

/* Answer(loop, value) */
static PyObject *answer_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *keywords) {
  PyObject *loop, *value;
  if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0) {
    PyErr_SetString(PyExc_TypeError, "Answer takes no keyword arguments");
    return NULL;
  }
  if (!PyArg_ParseTuple(args, "OO:Answer", &loop, &value)) return NULL;
  return answer_make(loop, value, NULL, NULL);
}

static int answer_traverse(answer_object *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self->loop);
  Py_VISIT(self->value);
  Py_VISIT(self->router);
  return 0;
}

static int answer_clear(answer_object *self) {
  Py_CLEAR(self->loop);
  Py_CLEAR(self->value);
  was_read(self);
  return 0;
}

static void answer_dealloc(answer_object *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  (void)answer_clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

static PyObject *answer_result(answer_object *self, PyObject *Py_UNUSED(unused)) {
  was_read(self);
  return Py_NewRef(self->value);
}

static PyObject *answer_exception(answer_object *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) { Py_RETURN_NONE; }
static PyObject *answer_done(answer_object *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) { Py_RETURN_TRUE; }
static PyObject *answer_cancelled(answer_object *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) { Py_RETURN_FALSE; }
static PyObject *answer_get_loop(answer_object *self, PyObject *Py_UNUSED(unused)) { return Py_NewRef(self->loop); }

/* cancel(msg=None): too late, as for every future that is done; but nobody knows of the booking. */
static PyObject *answer_cancel(answer_object *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords)) {
  if (self->router != NULL) {
    router_give_up(self->router, self->request_id);
    was_read(self);
  }
  Py_RETURN_FALSE;
}

/* add_done_callback(function, *, context=None) */
static PyObject *answer_add_done_callback(answer_object *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"function", "context", NULL};
  PyObject *function, *context = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$O:add_done_callback", names, &function, &context)) return NULL;
  PyObject *call_soon = PyObject_GetAttrString(self->loop, "call_soon");
  if (call_soon == NULL) return NULL;
  PyObject *positional = PyTuple_Pack(2, function, self);
  PyObject *named = PyDict_New();
  PyObject *handle = NULL;
  if (positional != NULL && named != NULL &&
      (context == Py_None || PyDict_SetItemString(named, "context", context) == 0))
    handle = PyObject_Call(call_soon, positional, named);
  Py_DECREF(call_soon);
  Py_XDECREF(positional);
  Py_XDECREF(named);
  if (handle == NULL) return NULL;
  Py_DECREF(handle);
  Py_RETURN_NONE;
}

/* remove_done_callback(function): how many were removed; those that were added are on their way. */
static PyObject *answer_remove_done_callback(answer_object *Py_UNUSED(self), PyObject *Py_UNUSED(function)) {
  return PyLong_FromLong(0);
}

static PyObject *answer_await(answer_object *self) { return Py_NewRef((PyObject *)self); }

static PyObject *answer_next(answer_object *self) {
  was_read(self);
  PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, self->value);
  if (stop == NULL) return NULL;
  PyErr_SetObject(PyExc_StopIteration, stop);
  Py_DECREF(stop);
  return NULL;
}

static PySendResult answer_send(answer_object *self, PyObject *Py_UNUSED(sent), PyObject **result) {
  *result = answer_result(self, NULL);
  return PYGEN_RETURN;
}

static PyObject *answer_repr(answer_object *self) {
  return PyUnicode_FromFormat("<Answer finished result=%R>", self->value);
}

static PyObject *answer_blocking(answer_object *Py_UNUSED(self), void *Py_UNUSED(unused)) { Py_RETURN_FALSE; }

static PyGetSetDef answer_attributes[] = {
    {"_asyncio_future_blocking", (getter)answer_blocking, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define METHOD(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef answer_methods[] = {
    {"result", METHOD(answer_result), METH_NOARGS, NULL},
    {"exception", METHOD(answer_exception), METH_NOARGS, NULL},
    {"done", METHOD(answer_done), METH_NOARGS, NULL},
    {"cancelled", METHOD(answer_cancelled), METH_NOARGS, NULL},
    {"cancel", METHOD(answer_cancel), METH_VARARGS | METH_KEYWORDS, NULL},
    {"get_loop", METHOD(answer_get_loop), METH_NOARGS, NULL},
    {"add_done_callback", METHOD(answer_add_done_callback), METH_VARARGS | METH_KEYWORDS, NULL},
    {"remove_done_callback", METHOD(answer_remove_done_callback), METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot answer_slots[] = {
    {Py_tp_new, (void *)answer_new},
    {Py_tp_dealloc, (void *)answer_dealloc},
    {Py_tp_traverse, (void *)answer_traverse},
    {Py_tp_clear, (void *)answer_clear},
    {Py_tp_repr, (void *)answer_repr},
    {Py_tp_methods, answer_methods},
    {Py_tp_getset, answer_attributes},
    {Py_tp_iter, (void *)answer_await},
    {Py_tp_iternext, (void *)answer_next},
    {Py_am_await, (void *)answer_await},
    {Py_am_send, (void *)answer_send},
    {Py_tp_doc, (void *)"A future whose result was there from the start."},
    {0, NULL},
};

static PyType_Spec answer_spec = {
    .name = "dynamo_go._native.Answer",
    .basicsize = sizeof(answer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = answer_slots,
};

PyTypeObject *answer_type(void) {
  type_of_answers = (PyTypeObject *)PyType_FromSpec(&answer_spec);
  return (PyTypeObject *)Py_XNewRef((PyObject *)type_of_answers);
}
