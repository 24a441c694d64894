/* Makes known numbers of calls of each memory function: offload_counts COPIES MOVES [FILLS COMPARISONS SHORT]. Copies
 * have 100,000 bytes, moves 200,000 bytes and overlap by all but 44, fills 300,000, comparisons 50,000, and short
 * copies 1,000. The functions are called through pointers, so that the compiler replaces none. Prints "ok". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;
static void *(*volatile fill)(void *, int, size_t) = memset;
static int (*volatile compare)(const void *, const void *, size_t) = memcmp;
static char from[400000], to[400000];

int main(int count, char **numbers)
{
    int calls[5] = {0};
    for (int at = 1; at < count && at <= 5; at++) calls[at - 1] = atoi(numbers[at]);
    /* Every page is touched before, so that no call meets an absent one. */
    for (size_t at = 0; at < sizeof from; at++) from[at] = to[at] = (char)at;
    for (int call = 0; call < calls[0]; call++) copy(to, from, 100000);
    for (int call = 0; call < calls[1]; call++) move(to + 44, to, 200000);
    for (int call = 0; call < calls[2]; call++) fill(to, call, 300000);
    for (int call = 0; call < calls[3]; call++)
        if (compare(from, from + 200000, 50000) == 0) return 1;
    for (int call = 0; call < calls[4]; call++) copy(to, from, 1000);
    /* By system call: stdio copies. */
    return write(1, "ok\n", 3) == 3 ? 0 : 1;
}
