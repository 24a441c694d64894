/* Calls the memory functions where a program has changed what surrounds a call: the stack, the processor's state, the
 * version of the function, and the last calls of a process. It knows nothing of telpher, and also passes without it.
 * Prints "ok" at the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define CHECK(condition) ((condition) ? (void)0 : FAIL("line %d: %s", __LINE__, #condition))

enum { LEN = 64 << 10, STACK = 16 << 10 };
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static unsigned char from[LEN], to[LEN];

static unsigned char byte(size_t at, unsigned seed) { return (unsigned char)(at * 31 + at / 251 + seed * 7); }

static void fill(unsigned char *bytes, size_t len, unsigned seed)
{
    for (size_t at = 0; at < len; at++) bytes[at] = byte(at, seed);
}

static void check(const unsigned char *bytes, size_t len, unsigned seed)
{
    for (size_t at = 0; at < len; at++) CHECK(bytes[at] == byte(at, seed));
}

static ucontext_t outer, inner;

static void coroutine(void)
{
    for (unsigned call = 0;; call++) {
        copy(to, from, LEN);
        swapcontext(&inner, &outer);
    }
}

static void small_coroutines(void) /* as Go and many languages give to a routine that calls C */
{
    static _Alignas(64) unsigned char stack[STACK];
    CHECK(getcontext(&inner) == 0);
    inner.uc_stack.ss_sp = stack;
    inner.uc_stack.ss_size = sizeof stack;
    makecontext(&inner, coroutine, 0);
    for (unsigned call = 0; call < 20; call++) {
        fill(from, LEN, call);
        CHECK(swapcontext(&outer, &inner) == 0);
        check(to, LEN, call);
    }
}

static void processor_state(void)
{
    unsigned control = 0x7fa0 /* other rounding, denormals as zero */, before, after;
    unsigned short word = 0x0c7f, word_before, word_after;
    unsigned long flags;
    __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(before), "=m"(word_before));
    __asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(control), "m"(word));
    errno = 4711;
    fill(from, LEN, 30);
    copy(to, from, LEN);
    __asm__ volatile("stmxcsr %0\n\tfnstcw %1\n\tpushfq\n\tpopq %2" : "=m"(after), "=m"(word_after), "=r"(flags));
    __asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(before), "m"(word_before));
    CHECK(errno == 4711);
    CHECK((after & ~0x3fU) == (control & ~0x3fU) && word_after == word && (flags & 0x400) == 0);
    check(to, LEN, 30);
}

extern void *old_memcpy(void *, const void *, size_t);
__asm__(".symver old_memcpy, memcpy@GLIBC_2.2.5");
static void *(*volatile old)(void *, const void *, size_t) = old_memcpy;

static void old_version(void) /* programs from before glibc 2.14 rely on copies between overlapping ranges */
{
    static unsigned char both[LEN + 100];
    fill(both + 100, LEN, 31);
    CHECK(old(both, both + 100, LEN) == both);
    check(both, LEN, 31);
    CHECK(old(both + 100, both, LEN) == both + 100);
    check(both + 100, LEN, 31);
}

static void last_copy(void)
{
    copy(to, from, LEN);
    check(to, LEN, 33);
    _exit(42);
}

static int status_of(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static void ends(void)
{
    fill(from, LEN, 33);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        at_quick_exit(last_copy);
        quick_exit(1);
    }
    int status = status_of(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    child = fork();
    if (child == 0) {
        extern void *__memcpy_chk(void *, const void *, size_t, size_t);
        void *(*volatile checked)(void *, const void *, size_t, size_t) = __memcpy_chk;
        close(STDERR_FILENO); /* glibc's message about the overflow */
        checked(to, from, LEN, LEN - 1);
        _exit(0);
    }
    status = status_of(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK(system("exit 9") == 9 << 8);
}

int main(void)
{
    small_coroutines();
    processor_state();
    old_version();
    ends();
    puts("ok");
    return 0;
}
