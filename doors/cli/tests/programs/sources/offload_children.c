/* Makes children in every way, in which copies of 100,000 bytes have their effect, and parents that copy meanwhile. Each
 * child prints its kind and its number. It knows nothing of telpher, and also passes without it. Its malloc ends the
 * process if a copy calls it. Prints "ok" at the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), _exit(1))
#define CHECK(condition) ((condition) ? (void)0 : FAIL("line %d: %s", __LINE__, #condition))

enum { LEN = 100000 };
static void *(*volatile copy_bytes)(void *, const void *, size_t) = memcpy;
static __thread volatile int copies;

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
static void outside(void)
{
    static const char text[] = "a copy calls the program's allocator\n";
    if (copies && write(2, text, sizeof text - 1)) _exit(9);
}
void *malloc(size_t size) { return outside(), __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return outside(), __libc_calloc(count, size); }
void *realloc(void *block, size_t size) { return outside(), __libc_realloc(block, size); }
void free(void *block) { outside(), __libc_free(block); }

static void copy(unsigned char *to, const unsigned char *from)
{
    errno = 4711;
    copies = 1;
    copy_bytes(to, from, LEN);
    copies = 0;
    CHECK(errno == 4711);
}

static unsigned char source[4][LEN], target[4][LEN];

/* Copies once, into buffers of its own. */
static void copy_once(int which, int value)
{
    for (size_t at = 0; at < LEN; at++) source[which][at] = (unsigned char)(value + at / 977);
    copy(target[which], source[which]);
    for (size_t at = 0; at < LEN; at++) CHECK(target[which][at] == (unsigned char)(value + at / 977));
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Copies for so long that a child is no longer young, and some times more. */
static void copy_long(int which)
{
    double end = now() + 0.2;
    int value = 0;
    while (now() < end) copy_once(which, value++);
    for (int more = 0; more < 10; more++) copy_once(which, value++);
}

static void report(const char *kind)
{
    char line[100];
    int len = snprintf(line, sizeof line, "%s %d\n", kind, (int)getpid());
    CHECK(write(1, line, (size_t)len) == len);
}

static void wait_for(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (status != 0) FAIL("a child ended with status %d", status);
}

static void by_fork(void)
{
    pid_t child = fork();
    if (child == 0) {
        report("fork");
        copy_long(0);
        pid_t inner = fork();
        if (inner == 0) {
            report("grandchild");
            copy_long(0);
            _exit(0);
        }
        copy_long(0);
        wait_for(inner);
        /* Through the destructors. */
        exit(0);
    }
    copy_long(0);
    wait_for(child);
}

/* A child that never opened a device makes one that shares its memory: neither may open one for the other. */
static void by_vfork(void)
{
    pid_t child = fork();
    if (child == 0) {
        double end = now() + 0.2;
        while (now() < end) {}
        pid_t inner = vfork();
        if (inner == 0) {
            copy_once(0, 1);
            _exit(0);
        }
        wait_for(inner);
        report("vforked");
        copy_long(0);
        _exit(0);
    }
    wait_for(child);
    pid_t own = vfork();
    if (own == 0) {
        copy_once(0, 2);
        _exit(0);
    }
    wait_for(own);
    copy_once(0, 3);
}

/* Children of system calls: no fork handler runs in them. */
static void by_system_call(void)
{
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        report("clone");
        copy_long(0);
        _exit(0);
    }
    wait_for(child);
    child = _Fork();
    if (child == 0) {
        report("_Fork");
        copy_long(0);
        _exit(0);
    }
    wait_for(child);
}

static int in_clone(void *unused)
{
    (void)unused;
    copy_long(1);
    _exit(0);
}

/* A child that shares memory, while its parent copies. */
static void by_shared_memory(void)
{
    size_t len = 1 << 20;
    char *stack = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    pid_t child = fork();
    if (child == 0) {
        double end = now() + 0.2;
        while (now() < end) {}
        pid_t inner = clone(in_clone, stack + len, CLONE_VM | SIGCHLD, NULL);
        wait_for(inner);
        report("shared");
        copy_long(0);
        _exit(0);
    }
    wait_for(child);
}

static void by_spawn(const char *program)
{
    char *words[] = {(char *)program, "spawned", NULL};
    pid_t child;
    CHECK(posix_spawn(&child, program, NULL, NULL, words, environ) == 0);
    copy_long(0);
    wait_for(child);
}

static void by_daemon(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(daemon(1, 1) == 0);
        report("daemon");
        copy_long(0);
        CHECK(write(ends[1], "x", 1) == 1);
        _exit(0);
    }
    wait_for(child);
    char byte;
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
}

static volatile int stop;
static void *meanwhile(void *which)
{
    while (!stop) {
        copy_once((int)(size_t)which, 5);
        free(malloc(5000));
    }
    return NULL;
}
static void *in_child(void *which) { return copy_long((int)(size_t)which), NULL; }

/* Threads copy and allocate while children are made; in each child several threads come first at once. */
static void with_threads(void)
{
    pthread_t threads[2], others[3];
    for (size_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, meanwhile, (void *)(i + 1)) == 0);
    for (int round = 0; round < 8; round++) {
        pid_t child = fork();
        if (child == 0) {
            report("threads");
            for (size_t i = 0; i < 3; i++) CHECK(pthread_create(&others[i], NULL, in_child, (void *)(i + 1)) == 0);
            copy_long(0);
            for (size_t i = 0; i < 3; i++) pthread_join(others[i], NULL);
            _exit(0);
        }
        wait_for(child);
    }
    stop = 1;
    for (size_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static volatile sig_atomic_t handled;
static void on_signal(int signal)
{
    (void)signal;
    copy_once(0, handled++);
}

/* The first copies of a child are made by a handler on a small stack. */
static void in_handler(void)
{
    pid_t child = fork();
    if (child == 0) {
        report("handler");
        /* Under telpher run the device's work is done on the stack of the handler that submits. */
        size_t own = access("/dev/dsa/wq0.0", F_OK) == 0 ? 32768 : 8192;
        stack_t stack = {.ss_sp = malloc(65536), .ss_size = (size_t)sysconf(_SC_MINSIGSTKSZ) + own};
        CHECK(sigaltstack(&stack, NULL) == 0);
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
        sigaction(SIGUSR1, &action, NULL);
        double end = now() + 0.3;
        while (now() < end || handled < 20) raise(SIGUSR1);
        _exit(0);
    }
    wait_for(child);
}

/* A child whose thread has a pending cancellation: a copy is no place where a thread is cancelled. */
static void *cancelled(void *unused)
{
    (void)unused;
    pthread_cancel(pthread_self());
    copy_long(0);
    stop = 2;
    pthread_testcancel();
    return NULL;
}
static void in_cancelled_thread(void)
{
    pid_t child = fork();
    if (child == 0) {
        report("cancelled");
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, cancelled, NULL) == 0 && pthread_join(thread, &result) == 0);
        CHECK(stop == 2 && result == PTHREAD_CANCELED);
        _exit(0);
    }
    wait_for(child);
}

/* Three copies of a parent; ten of its child that shares its memory, and ten of that one's. */
static void only_by_vfork(void)
{
    pid_t child = vfork();
    if (child == 0) {
        for (int value = 0; value < 10; value++) copy_once(0, value);
        pid_t inner = vfork();
        if (inner == 0) {
            for (int value = 0; value < 10; value++) copy_once(0, value);
            _exit(0);
        }
        wait_for(inner);
        _exit(0);
    }
    wait_for(child);
    for (int value = 0; value < 3; value++) copy_once(0, value);
}

int main(int count, char **words)
{
    (void)count;
    if (words[1] && strcmp(words[1], "vfork") == 0) return only_by_vfork(), 0;
    if (words[1]) {
        report(words[1]);
        copy_long(0);
        return 0;
    }
    report("parent");
    copy_once(0, 0);
    by_fork();
    by_vfork();
    by_system_call();
    by_shared_memory();
    by_spawn(words[0]);
    by_daemon();
    in_handler();
    in_cancelled_thread();
    with_threads();
    copy_once(0, 1);
    CHECK(write(1, "ok\n", 3) == 3);
    return 0;
}
