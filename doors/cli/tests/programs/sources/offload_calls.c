/* Calls the memory functions in every way in which a program may, and compares the results with loops over bytes. It
 * knows nothing of telpher, and also passes without it. The functions are called through pointers, so that the
 * compiler replaces none of them. With an argument, copies of more than 65,538 bytes are left out, which take most of
 * the time. Prints "ok" at the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define CHECK(condition) ((condition) ? (void)0 : FAIL("line %d: %s", __LINE__, #condition))

extern void *__memcpy_chk(void *, const void *, size_t, size_t);
extern void *__memmove_chk(void *, const void *, size_t, size_t);
extern void *__mempcpy_chk(void *, const void *, size_t, size_t);
extern void *__memset_chk(void *, int, size_t, size_t);

typedef void *(*move)(void *, const void *, size_t);
static void *copy_back(void *to, const void *from, size_t len) { bcopy(from, to, len); return to; }
static void *copy_checked(void *to, const void *from, size_t len) { return __memcpy_chk(to, from, len, len); }
static void *move_checked(void *to, const void *from, size_t len) { return __memmove_chk(to, from, len, len); }
static void *end_checked(void *to, const void *from, size_t len) { return (char *)__mempcpy_chk(to, from, len, len) - len; }
static void *end(void *to, const void *from, size_t len) { return (char *)mempcpy(to, from, len) - len; }
static move volatile moves[] = {memcpy, memmove, end, copy_back, copy_checked, move_checked, end_checked};
#define MOVES (sizeof moves / sizeof *moves)
static void *fill_checked(void *to, int byte, size_t len) { return __memset_chk(to, byte, len, len); }
static void *(*volatile fills[])(void *, int, size_t) = {memset, fill_checked};
static int (*volatile compares[])(const void *, const void *, size_t) = {memcmp, bcmp};
static move volatile copy = memcpy;

/* The threshold with which the test starts the program, and the transfer limit of the modelled device. */
enum { THRESHOLD = 4096, LIMIT = 2 << 20 };
static size_t longest = 3 * LIMIT;

static unsigned char *pages(size_t len) /* len bytes, with a page without access before and after them */
{
    size_t whole = (len + 4095) / 4096 * 4096;
    unsigned char *all = mmap(NULL, whole + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED && mprotect(all + 4096, whole, PROT_READ | PROT_WRITE) == 0);
    return all + 4096;
}

static unsigned char byte(size_t at, size_t seed) { return (unsigned char)((at * 31 + at / 251 + seed * 7) % 253); }

/* Copies of these lengths at these offsets; the ranges end at the last accessible byte in every second case. */
static void separate_ranges(void)
{
    static const size_t lengths[] = {0, 1, 63, THRESHOLD - 1, THRESHOLD, THRESHOLD + 1, 12288, 65538, LIMIT, LIMIT + 1, 3 * LIMIT - 1};
    static const size_t offsets[] = {0, 1, 63};
    size_t room = 3 * LIMIT + 4096;
    unsigned char *from = pages(room), *to = pages(room);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths && lengths[l] <= longest; l++)
        for (size_t o = 0; o < 6; o++) {
            size_t len = lengths[l], a = offsets[o % 3], b = offsets[(o + 1) % 3];
            if (o >= 3) a = b = room - len;
            for (size_t m = 0; m < (len > 65538 ? 2 : MOVES); m++) {
                for (size_t at = 0; at < len; at++) from[a + at] = byte(at, l + m);
                memset(to, 0xee, room < b + len + 64 ? room : b + len + 64);
                CHECK(moves[m](to + b, from + a, len) == to + b);
                for (size_t at = 0; at < len; at++)
                    if (to[b + at] != byte(at, l + m)) FAIL("move %zu: %zu bytes differ at %zu", m, len, at);
                CHECK(b == 0 || to[b - 1] == 0xee);
                CHECK(b + len >= room || to[b + len] == 0xee);
            }
        }
}

static void overlapping_ranges(void)
{
    static const size_t lengths[] = {THRESHOLD - 1, THRESHOLD, 65538, LIMIT + 5, 2 * LIMIT + 3};
    size_t room = 5 * LIMIT;
    unsigned char *bytes = pages(room), *expected = malloc(room);
    for (size_t l = 0; l < 5 && lengths[l] <= longest; l++) {
        size_t len = lengths[l], distances[] = {0, 1, 44, 63, 4095, 4096, len - 1, len};
        for (size_t d = 0; d < 8; d++)
            for (int up = 0; up < 2; up++) {
                size_t from = up ? 100 : 100 + distances[d], to = up ? 100 + distances[d] : 100, whole = 2 * len + 200;
                for (size_t at = 0; at < whole; at++) expected[at] = bytes[at] = byte(at, l + d);
                for (size_t at = 0; at < len; at++) expected[to + at] = byte(from + at, l + d);
                moves[(d + up) % MOVES](bytes + to, bytes + from, len);
                for (size_t at = 0; at < whole; at++)
                    if (bytes[at] != expected[at]) FAIL("%zu bytes by %zu %s: wrong at %zu", len, distances[d], up ? "up" : "down", at);
            }
    }
    free(expected);
}

static void fills_and_comparisons(void)
{
    static const size_t lengths[] = {0, 1, THRESHOLD - 1, THRESHOLD, THRESHOLD + 1, 65538, LIMIT + 1};
    unsigned char *a = pages(LIMIT + 4096), *b = pages(LIMIT + 4096);
    for (size_t l = 0; l < 7; l++)
        for (int f = 0; f < 2; f++) {
            size_t len = lengths[l];
            memset(a, 0x11, len + 2);
            CHECK(fills[f](a + 1, 0x7b5a, len) == a + 1 && a[0] == 0x11 && a[len + 1] == 0x11);
            for (size_t at = 0; at < len; at++)
                if (a[1 + at] != 0x5a) FAIL("fill of %zu bytes: wrong at %zu", len, at);
            memset(b, 0x5a, len + 1);
            for (int c = 0; c < 2; c++) {
                CHECK(compares[c](a + 1, b, len) == 0);
                /* The byte behind the end does not count. */
                a[1 + len] = 0;
                CHECK(compares[c](a + 1, b, len) == 0);
                size_t places[] = {0, 1, len / 2, LIMIT - 1, LIMIT, len - 2, len - 1};
                for (size_t p = 0; p < 7; p++) {
                    size_t at = places[p];
                    if (at >= len) continue;
                    b[at] = 0xc8;
                    if (at + 1 < len) b[at + 1] = 0;
                    int less = compares[c](a + 1, b, len), more = compares[c](b, a + 1, len);
                    if (c == 0 ? !(less < 0 && more > 0) : !(less && more)) FAIL("comparison of %zu bytes, different at %zu: %d, %d", len, at, less, more);
                    b[at] = 0x5a;
                    if (at + 1 < len) b[at + 1] = 0x5a;
                }
            }
        }
}

static sigjmp_buf out;
static void *volatile fault;
static volatile sig_atomic_t alarms, wrong, jumps;
static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    fault = info->si_addr;
    siglongjmp(out, 1);
}

/* A page without access in the middle: the fault has its address, everything before it is copied, and the program goes on. */
static void faults(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    sigaction(SIGSEGV, &action, &before);
    size_t len = 1 << 20;
    unsigned char *from = pages(len), *to = pages(len);
    memset(from, 0x33, len);
    for (int of_source = 0; of_source < 2; of_source++)
        for (size_t page = 1; page < 256; page += 85) {
            unsigned char *hole = (of_source ? from : to) + page * 4096;
            CHECK(mprotect(hole, 4096, PROT_NONE) == 0);
            if (sigsetjmp(out, 1) == 0) {
                copy(to, from, len);
                FAIL("no fault");
            }
            CHECK((unsigned char *)fault >= hole && (unsigned char *)fault < hole + 4096);
            CHECK(mprotect(hole, 4096, PROT_READ | PROT_WRITE) == 0);
            memset(hole, 0x33, 4096);
            copy(to, from, len);
            CHECK(memcmp(to, from, len) == 0);
        }
    /* Fresh pages on both sides. */
    unsigned char *fresh = pages(len), *zeros = pages(len);
    copy(fresh, zeros, len);
    for (size_t at = 0; at < len; at++) CHECK(fresh[at] == 0);
    sigaction(SIGSEGV, &before, NULL);
}

static unsigned char handler_from[65536], handler_to[65536];
static void on_alarm(int signal)
{
    (void)signal;
    memset(handler_from, ++alarms, sizeof handler_from);
    copy(handler_to, handler_from, sizeof handler_to);
    for (size_t at = 0; at < sizeof handler_to; at++)
        if (handler_to[at] != (unsigned char)alarms) wrong = 1;
    if (jumps) siglongjmp(out, 1);
}

/* A timer interrupts copies, and its handler copies; with `leave` the handler leaves the interrupted copy for good. */
static void signals(int leave)
{
    static unsigned char from[1 << 20], to[1 << 20];
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    alarms = 0;
    jumps = leave;
    volatile unsigned round = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    while (alarms < 200) {
        if (sigsetjmp(out, 1)) continue;
        round++;
        memset(from, (int)round, sizeof from);
        errno = 4711;
        copy(to, from, sizeof to);
        CHECK(errno == 4711);
        for (size_t at = 0; at < sizeof to; at += 509)
            if (to[at] != (unsigned char)round && !leave) FAIL("round %u: wrong at %zu", round, at);
    }
    jumps = 0;
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(!wrong);
    sigset_t mask;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGUSR1));
}

static void on_user(int signal) { on_alarm(signal); }

/* A handler on an alternate stack that has little more than the system asks for. */
static void small_stacks(void)
{
    /* Under telpher run the device's work is done on the stack of the handler that submits. */
    size_t own = access("/dev/dsa/wq0.0", F_OK) == 0 ? 32768 : 8192;
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = (size_t)sysconf(_SC_MINSIGSTKSZ) + own};
    CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = on_user, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < 20; i++) raise(SIGUSR1);
    CHECK(!wrong);
}

static void *thread(void *number)
{
    size_t len = 70000 + 1000 * (size_t)number;
    unsigned char *from = malloc(len), *to = malloc(len);
    for (size_t round = 0; round < 300; round++) {
        memset(from, (int)(round + (size_t)number), len);
        moves[round % MOVES](to, from, len);
        for (size_t at = 0; at < len; at += 97)
            if (to[at] != (unsigned char)(round + (size_t)number)) FAIL("thread %zu, round %zu: wrong at %zu", (size_t)number, round, at);
    }
    free(from), free(to);
    return NULL;
}

static void threads(void)
{
    pthread_t all[4];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (size_t i = 0; i < 4; i++) CHECK(pthread_create(&all[i], &small, thread, (void *)i) == 0);
    for (size_t i = 0; i < 4; i++) pthread_join(all[i], NULL);
}

/* A child of each kind copies and exits; its parent copies before, meanwhile and afterwards. */
static void children(void)
{
    static unsigned char from[1 << 17], to[1 << 17];
    for (volatile int round = 0; round < 12; round++) {
        memset(from, round + 1, sizeof from);
        copy(to, from, sizeof to);
        pid_t child = round % 3 == 0 ? fork() : round % 3 == 1 ? vfork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        CHECK(child >= 0);
        if (child == 0) {
            unsigned char *own = round % 3 == 1 ? handler_to : malloc(sizeof handler_to);
            copy(own, from, sizeof handler_to);
            _exit(own[0] == round + 1 && own[sizeof handler_to - 1] == round + 1 ? 0 : 1);
        }
        memset(from, round + 2, sizeof from);
        copy(to, from, sizeof to);
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        /* The child of vfork has ended before its parent goes on, and sees the first value. */
        if (round % 3 != 1 || status != 0) CHECK(status == 0);
        CHECK(to[0] == round + 2 && to[sizeof to - 1] == round + 2);
    }
}

static unsigned char early_from[65536], early_to[65536];
static int early;
__attribute__((constructor)) static void constructor(void)
{
    memset(early_from, 0x42, sizeof early_from);
    copy(early_to, early_from, sizeof early_to);
    early = early_to[65535] == 0x42;
}
__attribute__((destructor)) static void destructor(void)
{
    memset(early_from, 0x43, sizeof early_from);
    copy(early_to, early_from, sizeof early_to);
    if (early_to[0] != 0x43 || early_to[65535] != 0x43) _exit(3);
}
static void at_exit(void)
{
    memset(early_from, 0x44, sizeof early_from);
    copy(early_to, early_from, sizeof early_to);
    if (early_to[0] != 0x44 || early_to[65535] != 0x44) _exit(4);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) longest = 65538;
    CHECK(early);
    atexit(at_exit);
    separate_ranges();
    overlapping_ranges();
    fills_and_comparisons();
    faults();
    signals(0);
    signals(1);
    small_stacks();
    threads();
    children();
    separate_ranges();
    /* Not flushed: the C library writes it at the end, after all destructors. */
    printf("ok\n");
    return 0;
}
