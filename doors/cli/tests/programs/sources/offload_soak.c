/* Copies, fills and compares at random for SECONDS, and checks every byte: offload_soak SECONDS SEED.
 *
 * Each of four threads applies the same operations to a buffer, with the C library's functions, and to a shadow of it,
 * byte by byte. Three in ten operations meet pages that were dropped before, at which hardware stops. Two in ten meet
 * a page without access, at which a modelled device stops too, and which the handler of SIGSEGV opens. A timer's
 * handler copies in between. The first thread forks children that do the same for a while, and executes other programs.
 * Prints its process number, and at the end "ok" and the number of operations; or what differs. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, BYTES = 1 << 20, LONGEST = 300000, THREADS = 4, HANDLED = 20000 };

/* Through pointers, so that the compiler replaces no call. */
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;
static void *(*volatile fill)(void *, int, size_t) = memset;
static int (*volatile compare)(const void *, const void *, size_t) = memcmp;

struct worker {
    unsigned char *bytes, *shadow;
    uint64_t random;
    unsigned long operations;
};

static uint64_t seed, end_ns;
static volatile sig_atomic_t is_wrong;

static void fail(const char *what)
{
    char text[100];
    int len = snprintf(text, sizeof text, "wrong: %s, seed %llu\n", what, (unsigned long long)seed);
    if (write(1, text, (size_t)len) < 0) { }
    _exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Source: Marsaglia, Xorshift RNGs (2003). */
static uint64_t below(struct worker *worker, uint64_t limit)
{
    uint64_t x = worker->random;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    worker->random = x;
    return (x >> 11) % limit;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    /* Fails for an address of no buffer; then the fault is raised for ever, and the test ends by its time limit. */
    mprotect((void *)((uintptr_t)info->si_addr / PAGE * PAGE), PAGE, PROT_READ | PROT_WRITE);
}

static void on_timer(int signal)
{
    static __thread unsigned char from[HANDLED], to[HANDLED];
    static __thread unsigned char turn;
    (void)signal;
    turn++;
    for (size_t at = 0; at < HANDLED; at += 500) from[at] = (unsigned char)(turn + at);
    copy(to, from, HANDLED);
    for (size_t at = 0; at < HANDLED; at += 500)
        if (to[at] != from[at]) is_wrong = 1;
}

/* Drops the pages of a range: they read as zero, and are absent until then. */
static void drop(struct worker *worker, size_t at, size_t len)
{
    size_t first = (at + PAGE - 1) / PAGE * PAGE, last = (at + len) / PAGE * PAGE;
    if (first >= last) return;
    if (madvise(worker->bytes + first, last - first, MADV_DONTNEED) != 0) fail("madvise");
    for (size_t byte = first; byte < last; byte++) worker->shadow[byte] = 0;
}

static void operate(struct worker *worker)
{
    size_t len = below(worker, 8) == 0 ? below(worker, 100) : below(worker, LONGEST);
    size_t to = below(worker, BYTES - LONGEST), from = below(worker, BYTES - LONGEST);
    if (below(worker, 4) == 0) {
        /* Near ranges, which overlap. */
        size_t distance = below(worker, 9000);
        from = to > distance ? to - distance : to + distance;
        if (from > BYTES - LONGEST) from = BYTES - LONGEST;
    }
    uint64_t kind = below(worker, 8), injected = below(worker, 10);
    unsigned char value = (unsigned char)below(worker, 256);
    if (injected < 3) drop(worker, injected == 0 ? from : to, len);
    if ((injected == 3 || injected == 4) && len > 3 * PAGE) {
        size_t page = (to + len / 2) / PAGE * PAGE;
        if (mprotect(worker->bytes + page, PAGE, PROT_NONE) != 0) fail("mprotect");
    }
    unsigned char *bytes = worker->bytes, *shadow = worker->shadow;
    if (kind < 6) {
        int overlaps = to < from + len && from < to + len;
        if ((kind < 3 && !overlaps ? copy : move)(bytes + to, bytes + from, len) != bytes + to) fail("its result");
        if (to < from)
            for (size_t at = 0; at < len; at++) shadow[to + at] = shadow[from + at];
        else
            for (size_t at = len; at-- > 0;) shadow[to + at] = shadow[from + at];
    } else if (kind == 6) {
        fill(bytes + to, value, len);
        for (size_t at = 0; at < len; at++) shadow[to + at] = value;
    } else {
        int sign = 0;
        for (size_t at = 0; at < len && sign == 0; at++) sign = shadow[to + at] - shadow[from + at];
        int found = compare(bytes + to, bytes + from, len);
        if ((found > 0) != (sign > 0) || (found < 0) != (sign < 0)) fail("a comparison");
    }
    mprotect(bytes, BYTES, PROT_READ | PROT_WRITE);
    /* All bytes now and then; else those of the destination. */
    size_t first = to, last = to + len;
    if (++worker->operations % 64 == 0) first = 0, last = BYTES;
    for (size_t at = first; at < last; at++)
        if (bytes[at] != shadow[at]) fail("a byte");
    if (is_wrong) fail("a copy in a handler");
}

static void operate_until(struct worker *worker, uint64_t end)
{
    do operate(worker); while (now_ns() < end);
}

static void begin(struct worker *worker, uint64_t number)
{
    worker->bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    worker->shadow = calloc(1, BYTES);
    if (worker->bytes == MAP_FAILED || worker->shadow == NULL) fail("memory");
    worker->random = seed * 0x9e3779b97f4a7c15 + number * 2 + 1;
    for (size_t at = 0; at < BYTES; at++) worker->bytes[at] = worker->shadow[at] = (unsigned char)below(worker, 256);
}

static void *work(void *number)
{
    struct worker *worker = calloc(1, sizeof *worker);
    begin(worker, (uintptr_t)number);
    operate_until(worker, end_ns);
    return (void *)worker->operations;
}

static void expect_end(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0) { }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail("a child");
}

int main(int count, char **words)
{
    if (count != 3) return 2;
    end_ns = now_ns() + strtoull(words[1], NULL, 10) * 1000000000;
    seed = strtoull(words[2], NULL, 10);
    printf("%d\n", (int)getpid());
    fflush(stdout);
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    struct sigaction timer = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    sigaction(SIGSEGV, &fault, NULL);
    sigaction(SIGALRM, &timer, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 5000}, {0, 5000}}, NULL);
    pthread_t threads[THREADS];
    for (uintptr_t at = 1; at < THREADS; at++)
        if (pthread_create(&threads[at], NULL, work, (void *)at) != 0) fail("a thread");
    struct worker worker = {0};
    begin(&worker, 0);
    do {
        pid_t child = fork();
        if (child == 0) {
            /* Longer than a child stays with the CPU, so that it opens a device of its own. */
            operate_until(&worker, now_ns() + 200000000);
            _exit(0);
        }
        operate_until(&worker, now_ns() + 100000000);
        expect_end(child);
        child = vfork();
        if (child == 0) {
            execlp("true", "true", (char *)NULL);
            _exit(1);
        }
        expect_end(child);
    } while (now_ns() < end_ns);
    unsigned long operations = worker.operations;
    for (int at = 1; at < THREADS; at++) {
        void *of_thread;
        pthread_join(threads[at], &of_thread);
        operations += (unsigned long)of_thread;
    }
    printf("ok %lu\n", operations);
    return 0;
}
