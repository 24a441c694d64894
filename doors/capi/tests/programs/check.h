/* What C programs check with: each check that fails is told of, with what the library last said, and counted. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <string.h>
#include <telpher.h>

static int failures, checks;

static void fail(int line, const char *what) {
    printf("line %d: %s (%s)\n", line, what, telpher_last_error());
    failures++;
}
#define CHECK(condition) (checks++, (condition) ? (void)0 : fail(__LINE__, #condition))

/* The last error has these words in it. */
static inline int says(const char *words) {
    return strstr(telpher_last_error(), words) != NULL;
}

#endif
