/* Checks for C programs: each failed check is printed with the library's last reason, and counted. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#include <dml/detail/telpher.h>
#include <dml/dml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;

#define CHECK_IN(line, condition, ...)                                              \
    do {                                                                            \
        checks++;                                                                   \
        if (!(condition) && failures++ < 40) {                                      \
            printf("line %d: %s: ", line, #condition);                              \
            printf(__VA_ARGS__);                                                    \
            printf(" (%s)\n", telpher_dml_last_error());                            \
        }                                                                           \
    } while (0)
#define CHECK(condition) CHECK_IN(__LINE__, condition, "false")
#define IS(expression, expected) is(__LINE__, (expression), (expected))

/* A status is the expected one. */
static inline void is(int line, unsigned status, unsigned expected) {
    CHECK_IN(line, status == expected, "%u instead of %u", status, expected);
}

static inline dml_path_t path_of(const char *name) {
    return !strcmp(name, "hw") ? DML_PATH_HW : !strcmp(name, "sw") ? DML_PATH_SW : DML_PATH_AUTO;
}

/* A job in new memory, at an address that is a multiple of 8 and of nothing more. */
static inline dml_job_t *new_job(dml_path_t path) {
    uint32_t size = 0;
    IS(dml_get_job_size(path, &size), DML_STATUS_OK);
    char *memory = malloc(size + 72);
    memset(memory, 0xa5, size + 72);
    dml_job_t *job = (dml_job_t *)(((uintptr_t)memory + 63) / 64 * 64 + 8);
    IS(dml_init_job(path, job), DML_STATUS_OK);
    return job;
}

static inline int summary(void) {
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}

/* Bytes that depend on their seed. */
static inline void scatter(uint8_t *bytes, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1103515245u + 12345u;
        bytes[i] = (uint8_t)(seed >> 16);
    }
}

#endif
