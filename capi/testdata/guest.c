/* The library as a guest in a process that was there before: guest LIBRARY WHAT [...]. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load.h"

static volatile sig_atomic_t caught[65];
static sigjmp_buf out_of_fault;

static void count(int signal_number) { caught[signal_number]++; }

static void escape(int signal_number) {
  caught[signal_number]++;
  siglongjmp(out_of_fault, 1);
}

static void handle(int signal_number, void (*handler)(int), int flags) {
  struct sigaction action = {0};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  CHECK(sigaction(signal_number, &action, NULL) == 0);
}

static const int asynchronous[] = {SIGHUP, SIGINT, SIGQUIT, SIGALRM, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD, SIGPROF, SIGVTALRM, SIGWINCH, SIGPIPE};
enum { ASYNCHRONOUS = sizeof asynchronous / sizeof asynchronous[0] };

/* quiet_threads: all threads but this one have these signals blocked; this one has none. */
static void quiet_threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  int others = 0;
  for (struct dirent *d; (d = readdir(tasks)) != NULL;) {
    char name[300], line[256];
    snprintf(name, sizeof name, "/proc/self/task/%s/status", d->d_name);
    FILE *f = d->d_name[0] == '.' ? NULL : fopen(name, "r");
    if (f == NULL) continue;
    unsigned long long blocked = 0;
    while (fgets(line, sizeof line, f) != NULL) sscanf(line, "SigBlk: %llx", &blocked);
    fclose(f);
    int own = atoi(d->d_name) == getpid();
    others += !own;
    for (size_t i = 0; i < ASYNCHRONOUS; i++)
      if (asynchronous[i] != SIGCHLD && asynchronous[i] != SIGPROF) /* which the Go runtime never blocks */
        CHECK((blocked >> (asynchronous[i] - 1) & 1) == (own ? 0 : 1));
  }
  closedir(tasks);
  CHECK(others > 0);
}

/* handlers: what the host installed is called as before, for what comes from outside and for faults of its own. */
static void handlers(const char *library) {
  for (size_t i = 0; i < ASYNCHRONOUS; i++) handle(asynchronous[i], count, SA_RESTART);
  handle(SIGSEGV, escape, 0);
  handle(SIGBUS, escape, 0);
  handle(SIGFPE, escape, 0);
  load(library);
  routes();
  for (size_t i = 0; i < ASYNCHRONOUS; i++) {
    struct sigaction now;
    CHECK(sigaction(asynchronous[i], NULL, &now) == 0);
    CHECK(asynchronous[i] == SIGPIPE || (now.sa_handler == count && (now.sa_flags & SA_RESTART) != 0));
    CHECK(raise(asynchronous[i]) == 0 && caught[asynchronous[i]] == 1);
  }
  quiet_threads();
  volatile int *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (sigsetjmp(out_of_fault, 1) == 0) *nowhere = 1;
  CHECK(caught[SIGSEGV] == 1);
  FILE *empty = tmpfile();
  volatile char *beyond = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fileno(empty), 0);
  if (sigsetjmp(out_of_fault, 1) == 0) (void)*beyond;
  CHECK(caught[SIGBUS] == 1);
  volatile int seven = 7, zero = 0;
  if (sigsetjmp(out_of_fault, 1) == 0) zero = seven / zero;
  CHECK(caught[SIGFPE] == 1);
  routes();
}

/* broken_pipe: write where nobody reads. */
static int broken_pipe(void) {
  int ends[2];
  CHECK(pipe(ends) == 0 && close(ends[0]) == 0);
  int written = (int)write(ends[1], "x", 1);
  return written < 0 ? errno : 0;
}

static void *broken_pipe_thread(void *unused) {
  (void)unused;
  broken_pipe();
  return NULL;
}

/* pipes: SIGPIPE kills a process that did nothing about it, whichever thread it comes to; ignored it stays. */
static void pipes(const char *library) {
  for (int threads = 0; threads < 2; threads++) {
    pid_t child = fork();
    if (child == 0) {
      load(library);
      routes();
      pthread_t thread;
      if (threads == 0) broken_pipe();
      else CHECK(pthread_create(&thread, NULL, broken_pipe_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
  }
  handle(SIGPIPE, SIG_IGN, 0);
  load(library);
  routes();
  CHECK(broken_pipe() == EPIPE);
}

/* profiled: a profiling timer's handler runs while the library works, as does an interval timer's. */
static void profiled(const char *library) {
  load(library);
  handle(SIGPROF, count, SA_RESTART | SA_ONSTACK); /* the header says why */
  handle(SIGALRM, count, SA_RESTART | SA_ONSTACK);
  struct itimerval every = {{0, 1000}, {0, 1000}};
  CHECK(setitimer(ITIMER_PROF, &every, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
  while (caught[SIGPROF] < 100 || caught[SIGALRM] < 100) routes();
}

/* unloaded: dlclose leaves the library where it is, and what was made with it. */
static void unloaded(const char *library) {
  void *first = load(library);
  dgo_router router;
  CHECK(dgo.router_new(4, NULL, 0, NULL, &router, NULL) == DGO_OK);
  dgo_worker worker = {.struct_size = sizeof worker};
  CHECK(dgo.router_add_worker(router, &worker, NULL) == DGO_OK);
  for (int i = 0; i < 3; i++) {
    CHECK(dlclose(first) == 0);
    first = load(library);
    const uint32_t tokens[4] = {1, 2, 3, 4};
    dgo_choice choice = {.struct_size = sizeof choice};
    CHECK(dgo.router_best_worker(router, tokens, 4, NULL, &choice, NULL) == DGO_OK);
  }
  CHECK(dgo.router_close(router, NULL) == DGO_OK);
}

/* beside: another Go library in the process, each with its collector. */
static void beside(const char *library, const char *other) {
  void *second = dlopen(other, RTLD_NOW | RTLD_LOCAL);
  if (second == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(second != NULL);
  int (*collect)(int);
  void *symbol = dlsym(second, "Collect");
  CHECK(symbol != NULL);
  memcpy(&collect, &symbol, sizeof symbol);
  CHECK(collect(1) == 2);
  load(library);
  for (int i = 0; i < 200; i++) {
    routes();
    CHECK(collect(i) == i + 1);
  }
}

/* late: loaded after many libraries with thread-local storage of their own. */
static void late(const char *library, char **others, int n) {
  for (int i = 0; i < n; i++) {
    void *other = dlopen(others[i], RTLD_NOW | RTLD_LOCAL);
    CHECK(other != NULL);
    int (*touch)(void);
    void *symbol = dlsym(other, "touch");
    memcpy(&touch, &symbol, sizeof symbol);
    CHECK(touch() == 1);
  }
  load(library);
  routes();
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  if (strcmp(argv[2], "handlers") == 0) handlers(argv[1]);
  else if (strcmp(argv[2], "pipes") == 0) pipes(argv[1]);
  else if (strcmp(argv[2], "profiled") == 0) profiled(argv[1]);
  else if (strcmp(argv[2], "unloaded") == 0) unloaded(argv[1]);
  else if (strcmp(argv[2], "beside") == 0) beside(argv[1], argv[3]);
  else if (strcmp(argv[2], "late") == 0) late(argv[1], argv + 3, argc - 3);
  else CHECK(!"a known name");
  return 0;
}
