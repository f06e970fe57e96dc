/* Statuses as Python exceptions. The classes are those of dynamo_go._errors, looked up when one is raised. */
#include <stdarg.h>

#include "native.h"

/* The class of each status. NULL is the builtin NotImplementedError. */
static const struct {
  dgo_status status;
  const char *class_name;
} classes[] = {
    {DGO_INTERNAL, "DynamoError"},
    {DGO_BAD_HANDLE, "DynamoError"},
    {DGO_INVALID_ARGUMENT, "InvalidArgument"},
    {DGO_NOT_IMPLEMENTED, NULL},
    {DGO_REQUEST_NOT_FOUND, "RequestNotFound"},
    {DGO_DUPLICATE_REQUEST, "DuplicateRequest"},
    {DGO_WORKER_NOT_FOUND, "WorkerNotFound"},
    {DGO_DUPLICATE_WORKER, "DuplicateWorker"},
    {DGO_NO_WORKERS, "NoWorkers"},
    {DGO_OVERLOADED, "Overloaded"},
    {DGO_QUEUE_LIMIT_EXCEEDED, "QueueLimitExceeded"},
    {DGO_TIMEOUT, "Timeout"},
    {DGO_CLOSED, "Closed"},
    {DGO_FORKED, "ForkError"},
    {DGO_EVENT_REFUSED, "EventRefused"},
    {DGO_CANNOT_CONNECT, "CannotConnect"},
    {DGO_DISCONNECTED, "Disconnected"},
    {DGO_CANCELLED, "Cancelled"},
    {DGO_WORKER_ERROR, "WorkerError"},
    {DGO_FILE_ERROR, "FileError"},
    {DGO_SNAPSHOT_REFUSED, "SnapshotRefused"},
    {DGO_SESSION_MOVED, "SessionMoved"},
    {DGO_ENDED, "DynamoError"}, /* never raised: a stream's end is no error */
};

/* error_class: new reference to a class of dynamo_go._errors, or NULL with an exception. */
static PyObject *error_class(const char *name) {
  PyObject *module = PyImport_ImportModule("dynamo_go._errors");
  if (module == NULL) return NULL;
  PyObject *result = PyObject_GetAttrString(module, name);
  Py_DECREF(module);
  return result;
}

/* status_class: new reference to the class of a status. */
static PyObject *status_class(dgo_status status) {
  for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
    if (classes[i].status != status) continue;
    if (classes[i].class_name != NULL) return error_class(classes[i].class_name);
    Py_INCREF(PyExc_NotImplementedError);
    return PyExc_NotImplementedError;
  }
  return error_class("DynamoError");
}

PyObject *raise_status(dgo_status status, const dgo_error *error) {
  PyObject *type = status_class(status);
  if (type == NULL) return NULL;
  const char *text = error->message;
  if (text[0] == '\0') text = dgo.status_name(status);
  if (text == NULL) text = "unknown status";
  PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
  if (message != NULL) {
    PyErr_SetObject(type, message);
    Py_DECREF(message);
  }
  Py_DECREF(type);
  return NULL;
}

PyObject *raise_invalid(const char *format, ...) {
  PyObject *type = error_class("InvalidArgument");
  if (type == NULL) return NULL;
  va_list values;
  va_start(values, format);
  PyErr_FormatV(type, format, values);
  va_end(values);
  Py_DECREF(type);
  return NULL;
}

PyObject *describe(PyObject *value) {
  PyObject *text = PyObject_Repr(value);
  if (text == NULL) {
    /* Python refuses to print ints of more than 4,300 digits; other values may fail as they like. */
    PyErr_Clear();
    return PyUnicode_FromFormat("<%s that cannot be shown>", Py_TYPE(value)->tp_name);
  }
  if (PyUnicode_GET_LENGTH(text) <= 80) return text;
  PyObject *head = PyUnicode_Substring(text, 0, 77);
  Py_DECREF(text);
  if (head == NULL) return NULL;
  PyObject *cut = PyUnicode_FromFormat("%U...", head);
  Py_DECREF(head);
  return cut;
}

PyObject *statuses(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  if (library_load() < 0) return NULL;
  PyObject *result = PyDict_New();
  if (result == NULL) return NULL;
  for (dgo_status status = DGO_OK + 1; dgo.status_name(status) != NULL; status++) {
    PyObject *type = status_class(status);
    PyObject *row = type == NULL ? NULL : Py_BuildValue("(sN)", dgo.status_name(status), type);
    PyObject *key = row == NULL ? NULL : PyLong_FromLong(status);
    int failed = key == NULL || PyDict_SetItem(result, key, row) < 0;
    Py_XDECREF(key);
    Py_XDECREF(row);
    if (failed) {
      Py_DECREF(result);
      return NULL;
    }
  }
  return result;
}
