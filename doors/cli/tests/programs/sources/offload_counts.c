/* Makes known numbers of calls of each memory function: offload_counts COPIES MOVES [FILLS COMPARISONS SHORT FAULTS].
 * Copies have 100,000 bytes, moves 200,000 bytes and overlap by all but 44, fills 300,000, comparisons 50,000, short
 * copies 1,000. Faulting copies have 400,000; behind their first 49 pages is one without access, which the handler of
 * SIGSEGV opens. The functions are called through pointers, so that the compiler replaces none. Prints "ok". */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;
static void *(*volatile fill)(void *, int, size_t) = memset;
static int (*volatile compare)(const void *, const void *, size_t) = memcmp;
static char from[400000], to[400000];

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    mprotect((void *)((uintptr_t)info->si_addr / 4096 * 4096), 4096, PROT_READ | PROT_WRITE);
}

int main(int count, char **numbers)
{
    int calls[6] = {0};
    for (int at = 1; at < count && at <= 6; at++) calls[at - 1] = atoi(numbers[at]);
    /* Every page is touched before, so that no call meets an absent one. */
    for (size_t at = 0; at < sizeof from; at++) from[at] = to[at] = (char)at;
    for (int call = 0; call < calls[0]; call++) copy(to, from, 100000);
    for (int call = 0; call < calls[1]; call++) move(to + 44, to, 200000);
    for (int call = 0; call < calls[2]; call++) fill(to, call, 300000);
    for (int call = 0; call < calls[3]; call++)
        if (compare(from, from + 200000, 50000) == 0) return 1;
    for (int call = 0; call < calls[4]; call++) copy(to, from, 1000);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    for (int call = 0; call < calls[5]; call++) {
        char *into = mmap(NULL, sizeof from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (into == MAP_FAILED || mprotect(into + 49 * 4096, 4096, PROT_NONE) != 0) return 1;
        copy(into, from, sizeof from);
        for (size_t at = 0; at < sizeof from; at++)
            if (into[at] != from[at]) return 1;
    }
    /* By system call: stdio copies. */
    return write(1, "ok\n", 3) == 3 ? 0 : 1;
}
