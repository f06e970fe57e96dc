/* What the C tests share: CHECK ends the program with the line that failed. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_go.h"

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
      exit(1);                                                              \
    }                                                                       \
  } while (0)

/* STATUS: a call gives a status. */
#define STATUS(want, call)                                                                            \
  do {                                                                                                \
    dgo_status got_ = (call);                                                                         \
    if (got_ != (want)) {                                                                             \
      fprintf(stderr, "%s:%d: %s: %s, expected %s\n", __FILE__, __LINE__, #call, dgo_status_name(got_), \
              dgo_status_name(want));                                                                 \
      exit(1);                                                                                        \
    }                                                                                                 \
  } while (0)

#endif
