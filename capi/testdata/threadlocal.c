/* A library with thread-local storage. */
static __thread int touched[16];

int touch(void);
int touch(void) { return ++touched[3]; }
