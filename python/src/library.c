/* Loads libdynamo_go.so from the directory of this extension, on first use: importing the package starts nothing. */
#include "native.h" /* first: Python.h asks for the GNU functions, of which dladdr is one */

#include <dlfcn.h>
#include <string.h>

library_api dgo;
static int loaded; /* guarded by the GIL */

/* library_path: the library beside this extension, wherever that is installed. */
static PyObject *library_path(void) {
  Dl_info self;
  if (dladdr((void *)&dgo, &self) == 0 || self.dli_fname == NULL) {
    PyErr_SetString(PyExc_ImportError, "dynamo_go: cannot tell where its extension is installed");
    return NULL;
  }
  const char *slash = strrchr(self.dli_fname, '/');
  Py_ssize_t directory = slash == NULL ? 0 : slash - self.dli_fname + 1;
  PyObject *path = PyBytes_FromStringAndSize(self.dli_fname, directory);
  if (path != NULL) PyBytes_ConcatAndDel(&path, PyBytes_FromString("libdynamo_go.so"));
  return path;
}

/* resolve: find one function. POSIX lets a data pointer hold a function; C does not, hence memcpy. */
static int resolve(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  if (symbol == NULL) {
    PyErr_Format(PyExc_ImportError, "libdynamo_go.so has no %s: it is of another version", name);
    return -1;
  }
  memcpy(function, &symbol, sizeof symbol);
  return 0;
}

int library_load(void) {
  if (loaded) return 0;
  PyObject *path = library_path();
  if (path == NULL) return -1;
  /* RTLD_LOCAL: cgo's own symbols must not meet those of another Go library. */
  void *library = dlopen(PyBytes_AS_STRING(path), RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *reason = dlerror();
    PyErr_Format(PyExc_ImportError, "cannot load %s: %s", PyBytes_AS_STRING(path), reason == NULL ? "unknown" : reason);
  }
  Py_DECREF(path);
  if (library == NULL) return -1;
  library_api api;
#define X(name) \
  if (resolve(library, "dgo_" #name, &api.name) < 0) return -1;
  DGO_FUNCTIONS(X)
#undef X
  if (api.abi_version() != DGO_ABI_VERSION) {
    PyErr_Format(PyExc_ImportError, "libdynamo_go.so has ABI %u, the extension was built for %u", (unsigned)api.abi_version(),
                 (unsigned)DGO_ABI_VERSION);
    return -1;
  }
  dgo = api;
  loaded = 1;
  return 0;
}
