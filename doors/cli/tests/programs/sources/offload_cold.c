/* Copies 64 KiB from memory, CALLS times, from one call site: offload_cold CALLS [absent | kill].
 *
 * Both ranges are flushed from the caches before each copy. With "absent", each destination is a new mapping, and the
 * handler of SIGSEGV opens its sixth page. With "kill", the program ends by SIGKILL; otherwise it prints "ok". */
#include <emmintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 65536, PAGE = 4096 };

/* Through a pointer, so that the compiler replaces no call. */
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static char from[SIZE] __attribute__((aligned(4096))), to[SIZE] __attribute__((aligned(4096)));
static volatile int copies;

__attribute__((noinline)) void copy_from_memory(char *into)
{
    copy(into, from, SIZE);
    /* The call is not the function's last action, so that it returns here. */
    copies++;
}

static void flush(const char *bytes)
{
    for (size_t at = 0; at < SIZE; at += 64) _mm_clflush(bytes + at);
    _mm_mfence();
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    mprotect((void *)((uintptr_t)info->si_addr / PAGE * PAGE), PAGE, PROT_READ | PROT_WRITE);
}

int main(int count, char **words)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    int calls = atoi(words[1]);
    const char *how = count > 2 ? words[2] : "";
    for (int call = 0; call < calls; call++) {
        for (size_t at = 0; at < SIZE; at++) from[at] = (char)(at * 7 + (size_t)call);
        char *into = to;
        if (strcmp(how, "absent") == 0) {
            into = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (into == MAP_FAILED || mprotect(into + 5 * PAGE, PAGE, PROT_NONE) != 0) return 1;
        } else {
            flush(to);
        }
        flush(from);
        copy_from_memory(into);
        for (size_t at = 0; at < SIZE; at++)
            if (into[at] != from[at]) return 1;
        if (into != to) munmap(into, SIZE);
    }
    if (strcmp(how, "kill") == 0) raise(SIGKILL);
    /* By system call: stdio copies. */
    return write(1, "ok\n", 3) == 3 ? 0 : 1;
}
