/* One function for each defect of Intel's DTO that a program can meet: dto_defects NAME. Each compares what the C
 * library's functions promise with what they do. It knows nothing of telpher, and also passes without it. Prints "ok",
 * by system call, or what is wrong. The device of the tests has a transfer limit of 2 MiB. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), _exit(1))
#define CHECK(condition) ((condition) ? (void)0 : FAIL("line %d: %s", __LINE__, #condition))

static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;
static void *(*volatile fill)(void *, int, size_t) = memset;
static int (*volatile compare)(const void *, const void *, size_t) = memcmp;

enum { LIMIT = 2 << 20, LONG = 128 << 10 };

/* len bytes, a multiple of a page, between two pages without access. */
static unsigned char *pages(size_t len)
{
    unsigned char *all = mmap(NULL, len + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED && mprotect(all + 4096, len, PROT_READ | PROT_WRITE) == 0);
    return all + 4096;
}

static unsigned char byte(size_t at) { return (unsigned char)((at * 31 + at / 251) % 253); }
static void number(unsigned char *bytes, size_t len) { for (size_t at = 0; at < len; at++) bytes[at] = byte(at); }

static int sign(int value) { return (value > 0) - (value < 0); }

/* Ranges that end at the last accessible byte differ in one byte, at and around the ends of both pieces. */
static void comparisons(void)
{
    size_t len = LIMIT + LONG, places[] = {0, 1, 100, LIMIT - 1, LIMIT, LIMIT + 1, len - 2, len - 1};
    unsigned char *a = pages(len), *b = pages(len);
    fill(a, 100, len), fill(b, 100, len);
    CHECK(compare(a, b, len) == 0);
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        b[places[p]] = 200;
        if (sign(compare(a, b, len)) != -1 || sign(compare(b, a, len)) != 1) FAIL("different at %zu", places[p]);
        b[places[p]] = 100;
    }
    /* What lies behind the end does not count. */
    a[LONG] = 9, b[LONG] = 3, b[100] = 200;
    CHECK(sign(compare(a, b, LONG)) == -1);
    b[100] = 100;
    CHECK(compare(a, b, LONG) == 0);
}

static unsigned char *hole;
static void open_hole(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    if ((unsigned char *)info->si_addr < hole || (unsigned char *)info->si_addr >= hole + 4096) _exit(7);
    mprotect(hole, 4096, PROT_READ | PROT_WRITE);
}

/* Ranges of three pieces that overlap, up and down; with a page that becomes accessible when it is needed. */
static void moves(int with_hole)
{
    size_t len = 3 * LIMIT, distance = 4096;
    unsigned char *bytes = pages(len + distance);
    struct sigaction action = {.sa_sigaction = open_hole, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    for (int up = 0; up < 2; up++)
        /* In the first, second and third piece of the order in which they are done. */
        for (size_t piece = 0; piece < (with_hole ? 3 : 1); piece++) {
            size_t from = up ? 0 : distance, to = up ? distance : 0;
            number(bytes, len + distance);
            if (with_hole) {
                hole = bytes + piece * LIMIT + LIMIT / 2;
                CHECK(mprotect(hole, 4096, PROT_NONE) == 0);
            }
            CHECK(move(bytes + to, bytes + from, len) == bytes + to);
            size_t wrong = 0;
            for (size_t at = 0; at < len; at++) wrong += bytes[to + at] != byte(from + at);
            if (wrong) FAIL("%zu bytes of a move %s are wrong", wrong, up ? "up" : "down");
        }
}

/* A file for each free number; their last buffers are written when the process has ended. */
static void files(const char *folder)
{
    static unsigned char from[LONG], to[LONG];
    copy(to, from, LONG);
    for (int at = 0; at < 64; at++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", folder, at);
        FILE *file = fopen(path, "w");
        CHECK(file && fprintf(file, "fourteen bytes") == 14);
    }
}

static unsigned char handler_from[LONG], handler_to[LONG];
static volatile sig_atomic_t alarms;
static sigjmp_buf out;
static volatile int leaves;
static void on_alarm(int signal)
{
    (void)signal;
    fill(handler_from, ++alarms, LONG);
    copy(handler_to, handler_from, LONG);
    for (size_t at = 0; at < LONG; at++)
        if (handler_to[at] != (unsigned char)alarms) _exit(8);
    if (leaves) siglongjmp(out, 1);
}

static void alarms_every_half_millisecond(int on)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, on ? &often : &never, NULL);
}

/* A handler copies while the thread copies. */
static void handlers(void)
{
    static unsigned char from[LIMIT + LONG], to[LIMIT + LONG];
    alarms_every_half_millisecond(1);
    for (int round = 1; alarms < 300; round++) {
        fill(from, round, sizeof from);
        copy(to, from, sizeof to);
        for (size_t at = 0; at < sizeof to; at += 61) CHECK(to[at] == (unsigned char)round);
    }
    alarms_every_half_millisecond(0);
}

/* A handler leaves a copy for good. Nothing may be written to its destination after that. */
static void left_copies(void)
{
    static unsigned char from[LIMIT + LONG], to[LIMIT + LONG];
    fill(from, 1, sizeof from);
    leaves = 1;
    for (volatile int round = 0; round < 100; round++) {
        volatile int entered = alarms;
        if (sigsetjmp(out, 1) == 0) {
            alarms_every_half_millisecond(1);
            while (alarms == entered) copy(to, from, sizeof to);
        }
        alarms_every_half_millisecond(0);
        for (size_t at = 0; at < sizeof to; at++) ((volatile unsigned char *)to)[at] = 2;
        for (int look = 0; look < 3; look++)
            for (size_t at = 0; at < sizeof to; at++)
                if (((volatile unsigned char *)to)[at] != 2) FAIL("written after it was left, at %zu", at);
    }
}

/* memcpy between ranges that overlap. */
static void copies_of_overlapping_ranges(void)
{
    unsigned char *bytes = pages(2 * LONG);
    for (int up = 0; up < 2; up++) {
        size_t from = up ? 0 : 4096, to = up ? 4096 : 0;
        number(bytes, 2 * LONG);
        copy(bytes + to, bytes + from, LONG);
        for (size_t at = 0; at < LONG; at++) CHECK(bytes[to + at] == byte(from + at));
    }
}

static unsigned char early_from[LONG], early_to[LONG];
static volatile int early, in_child;
static int works(int value)
{
    fill(early_from, value, LONG);
    copy(early_to, early_from, LONG);
    return compare(early_to, early_from, LONG) == 0 && early_to[LONG - 1] == (unsigned char)value;
}
__attribute__((constructor(101))) static void first(void) { early = works(11); }
static void fork_handler(void) { in_child = works(12); }

/* Calls before all other constructors, and in a fork handler. */
static void early_calls(void)
{
    CHECK(early && pthread_atfork(NULL, NULL, fork_handler) == 0);
    pid_t child = fork();
    if (child == 0) _exit(in_child ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static volatile int late;
static void *still_running(void *unused)
{
    (void)unused;
    static unsigned char from[LONG], to[LONG];
    while (late) copy(to, from, LONG);
    return NULL;
}
__attribute__((destructor(101))) static void last(void)
{
    if (!late) return;
    errno = 4711;
    if (!works(13) || errno != 4711) _exit(5);
    errno = 4711;
    move(early_to, early_to + 64, LONG - 64);
    if (errno != 4711) _exit(6);
}
/* Calls after all other destructors while another thread copies. All free numbers are files, which must stay empty. */
static void late_calls(const char *folder)
{
    pthread_t thread;
    late = 1;
    CHECK(works(14) && pthread_create(&thread, NULL, still_running, NULL) == 0);
    for (int at = 0; at < 64; at++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", folder, at);
        CHECK(open(path, O_RDWR | O_CREAT, 0600) >= 0);
    }
}

static void *copies_of_thread(void *which)
{
    size_t len = LONG + 4096 * (size_t)which;
    unsigned char *from = pages(len), *to = pages(len);
    for (size_t round = 0; round < 400; round++) {
        fill(from, (int)(round + (size_t)which), len);
        errno = (int)round;
        copy(to, from, len);
        CHECK(errno == (int)round);
        for (size_t at = 0; at < len; at += 97) CHECK(to[at] == (unsigned char)(round + (size_t)which));
    }
    return NULL;
}

/* Many threads copy at once; errno stays as it is. */
static void threads(void)
{
    pthread_t all[8];
    for (size_t at = 0; at < 8; at++) CHECK(pthread_create(&all[at], NULL, copies_of_thread, (void *)at) == 0);
    for (size_t at = 0; at < 8; at++) pthread_join(all[at], NULL);
}

/* The program has the descriptors that every program has, and those of its devices. */
static void descriptors(void)
{
    CHECK(works(15));
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    if (count > 40) FAIL("%d descriptors", count);
}

static void one_copy_of_64_mib(void)
{
    size_t len = 64 << 20;
    unsigned char *from = pages(len), *to = pages(len);
    for (size_t at = 0; at < len; at += 4096) from[at] = to[at] = byte(at);
    copy(to, from, len);
    for (size_t at = 0; at < len; at += 4096) CHECK(to[at] == byte(at));
}

/* A thousand short copies, copies of nothing, and ten long ones. */
static void short_copies(void)
{
    static unsigned char from[100000], to[100000];
    for (size_t at = 0; at < sizeof from; at++) from[at] = to[at] = 1;
    for (int call = 0; call < 1000; call++) copy(to, from, 1000), copy(NULL, NULL, 0), move(to, to, 0);
    for (int call = 0; call < 10; call++) copy(to, from, sizeof to);
}

/* Copies into memory that no one has touched. */
static void fresh_destinations(void)
{
    static unsigned char from[LIMIT];
    number(from, LIMIT);
    for (int round = 0; round < 20; round++) {
        unsigned char *to = pages(LIMIT);
        copy(to, from, LIMIT);
        for (size_t at = 0; at < LIMIT; at++) CHECK(to[at] == byte(at));
    }
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
static __thread volatile int copies;
static void outside(void) { if (copies) _exit(9); }
void *malloc(size_t size) { return outside(), __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return outside(), __libc_calloc(count, size); }
static void *first_copy(void *unused)
{
    static unsigned char from[LONG], to[LONG];
    copies = 1;
    copy(to, from, LONG);
    copies = 0;
    return unused;
}
/* The first copy of a thread calls no allocator. */
static void first_copies_of_threads(void)
{
    for (int round = 0; round < 50; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, first_copy, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
}

int main(int count, char **words)
{
    CHECK(count > 1);
    const char *name = words[1];
#define CASE(text, call) else if (strcmp(name, text) == 0) call
    if (strcmp(name, "comparisons") == 0) comparisons();
    CASE("moves", moves(0));
    CASE("moves-with-faults", moves(1));
    CASE("files", files(words[2]));
    CASE("handlers", handlers());
    CASE("overlapping-copies", copies_of_overlapping_ranges());
    CASE("early-calls", early_calls());
    CASE("late-calls", late_calls(words[2]));
    CASE("threads", threads());
    CASE("descriptors", descriptors());
    CASE("64-mib", one_copy_of_64_mib());
    CASE("short-copies", short_copies());
    CASE("fresh", fresh_destinations());
    CASE("left-copies", left_copies());
    CASE("first-copies", first_copies_of_threads());
    else FAIL("no case %s", name);
    CHECK(write(1, "ok\n", 3) == 3);
    return 0;
}
