/* Makes calls whose numbers and sizes are known, for the test of `telpher record`. The first argument says which. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 1000, THREADS = 4, MEMORY = 1 << 20 };

/* Through pointers, so that the compiler replaces no call. */
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;
static void *(*volatile copy_to_end)(void *, const void *, size_t) = mempcpy;
static void *(*volatile fill)(void *, int, size_t) = memset;
static int (*volatile compare)(const void *, const void *, size_t) = memcmp;
extern void *__memcpy_chk(void *, const void *, size_t, size_t);

static unsigned char *from, *to;

static void check(int holds, const char *what) {
    if (!holds) {
        printf("wrong: %s\n", what);
        exit(1);
    }
}

/* Every function, with a size of its own that nothing else in the process has. */
static __attribute__((noinline)) void all_functions(void) {
    for (int i = 0; i < MANY; i++) {
        copy(to, from, 3001);
        move(to, from, 5003);
        check(copy_to_end(to, from, 6007) == to + 6007, "mempcpy");
        fill(to, 1, 9001);
        check(compare(to, to + 1, 9000) == 0, "memcmp");
        __memcpy_chk(to, from, 13001, MEMORY);
        bcopy(from, to, 20011);
    }
    /* Downwards over itself, by 44 bytes. */
    for (int i = 0; i < MANY; i++)
        move(to, to + 44, 65537);
    for (int i = 0; i < 100 * MANY; i++)
        copy(to, from, 123);
}

static void *copies_in_thread(void *unused) {
    (void)unused;
    unsigned char *mine = malloc(MEMORY);
    for (int i = 0; i < MANY; i++)
        copy(mine, from, 17011);
    free(mine);
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        check(pthread_create(&thread[i], NULL, copies_in_thread, NULL) == 0, "pthread_create");
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

/* Every use has a call site of its own. */
static inline __attribute__((always_inline)) void many_copies(size_t len) {
    for (int i = 0; i < MANY; i++)
        copy(to, from, len);
}

static void wait_for(pid_t child, const char *what) {
    int status;
    check(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, what);
}

static void copy_in_handler(int number) {
    (void)number;
    many_copies(30059);
}

/* The first long call of a child is in a handler on a stack of 8 KiB. */
static void handler_on_small_stack(void) {
    static char small[8192];
    stack_t stack = {.ss_sp = small, .ss_size = sizeof small};
    struct sigaction action = {.sa_handler = copy_in_handler, .sa_flags = SA_ONSTACK};
    check(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0, "sigaltstack");
    raise(SIGUSR1);
}

/* Children of all kinds, each with a size of its own. The parent copies before and after. */
static void children(const char *self) {
    many_copies(10007);
    pid_t child = fork();
    if (child == 0) {
        many_copies(30011);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            many_copies(30013);
            _exit(0);
        }
        wait_for(grandchild, "the child of a child");
        _exit(0);
    }
    wait_for(child, "fork");
    child = fork();
    if (child == 0) {
        handler_on_small_stack();
        _exit(0);
    }
    wait_for(child, "fork, then a signal handler");
    /* Without the C library, so that no fork handler runs. */
    child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        many_copies(30017);
        _exit(0);
    }
    wait_for(child, "clone");
    child = vfork();
    if (child == 0) {
        char *arguments[] = {(char *)self, "small", NULL};
        char *environment[] = {NULL};
        copy(to, from, 30029);
        execve(self, arguments, environment);
        _exit(1);
    }
    wait_for(child, "vfork");
    many_copies(10007);
}

static volatile int handled;

static void on_signal(int number) {
    (void)number;
    static unsigned char mine[40000], other[40000];
    copy(mine, other, 33013);
    copy(mine, other, 77);
    handled++;
}

/* Handlers copy in the middle of copies. */
static void signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    ualarm(500, 500);
    while (handled < 100) {
        copy(to, from, 40009);
        copy(to, from, 79);
        check(to[40008] == from[40008] && to[78] == from[78], "a copy that was interrupted");
    }
    ualarm(0, 0);
    printf("%d\n", handled);
}

enum { LENGTHS = 81 };

static void on_signal_short(int number) {
    (void)number;
    static unsigned char mine[64], other[64];
    copy(mine, other, 5);
    move(mine, other, 40);
    handled++;
}

/* Checks a short copy against a loop over bytes, and that nothing around it changed. */
static void check_short(unsigned char *destination, const unsigned char *source, size_t len, int kind) {
    /* Volatile, so that the compiler makes no calls of memcpy from the loops. */
    static volatile unsigned char before[256], expected[256];
    unsigned char *area = to + 1000;
    for (int i = 0; i < 256; i++)
        before[i] = expected[i] = area[i];
    for (size_t i = 0; i < len; i++)
        expected[destination - area + i] = before[source - area + i];
    void *result = kind == 0   ? copy(destination, source, len)
                   : kind == 1 ? move(destination, source, len)
                               : copy_to_end(destination, source, len);
    check(result == (kind == 2 ? destination + len : destination), "the result of a short copy");
    for (int i = 0; i < 256; i++)
        check(area[i] == expected[i], "a short copy");
}

/* Every short length with every function and every overlap, while handlers make short copies, too. */
static void lengths(int rounds) {
    struct sigaction action = {.sa_handler = on_signal_short, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    ualarm(200, 200);
    for (int round = 0; round < rounds; round++)
        for (size_t len = 0; len < LENGTHS; len++) {
            unsigned char *area = to + 1000;
            for (int i = 0; i < 256; i++)
                area[i] = (unsigned char)(i * 7 + round);
            size_t other = (size_t)round % 160;
            for (int kind = 0; kind < 3; kind++)
                check_short(area + 80, area + other, len, kind);
            fill(to, 1, len);
            check(compare(to, from, 0) == 0 && compare(to, to, len) == 0, "memcmp");
        }
    ualarm(0, 0);
    printf("%d\n", handled);
}

/* A library that is loaded when the recording has long begun. */
static void loaded_library(const char *path) {
    many_copies(10007);
    void *library = dlopen(path, RTLD_NOW);
    check(library != NULL, "dlopen");
    int (*copy_there)(void *, const void *, size_t) = (int (*)(void *, const void *, size_t))dlsym(library, "copy_there");
    check(copy_there != NULL, "dlsym");
    for (int i = 0; i < MANY; i++)
        copy_there(to, from, 50021);
}

int main(int count, char **arguments) {
    from = malloc(MEMORY);
    to = malloc(MEMORY);
    for (int i = 0; i < MEMORY; i++)
        from[i] = (unsigned char)(i * 7);
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "all") == 0)
        all_functions();
    else if (strcmp(what, "threads") == 0)
        threads();
    else if (strcmp(what, "children") == 0)
        children(arguments[0]);
    else if (strcmp(what, "signals") == 0)
        signals();
    else if (strcmp(what, "lengths") == 0)
        lengths(atoi(arguments[2]));
    else if (strcmp(what, "library") == 0)
        loaded_library(arguments[2]);
    else if (strcmp(what, "small") == 0)
        many_copies(30031);
    else if (strcmp(what, "until-killed") == 0)
        for (;;)
            many_copies(30047);
    puts("ok");
    return 0;
}
