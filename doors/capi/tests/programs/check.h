/* Checks for C programs: each failed check is printed with the library's last message, and counted. */
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

/* Returns whether the last error contains these words. */
static inline int says(const char *words) {
    return strstr(telpher_last_error(), words) != NULL;
}

#endif
