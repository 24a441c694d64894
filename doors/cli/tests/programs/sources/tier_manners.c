// What a program may expect of memory management inside it, beside its bytes: its descriptors have the numbers they would have, it may close and replace
// any of them, its signals come to its own threads, its children may begin threads, and it may fork with no descriptor left.
//
//   tier_manners SECONDS
//
// Ends with 0, or says what was wrong and ends with 1.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define PAGES 2048ul

#define FAIL(...) do { fprintf(stderr, "tier_manners: " __VA_ARGS__); fprintf(stderr, "\n"); _exit(1); } while (0)

static uint64_t *memory;
static atomic_int stop;
static atomic_ulong checks, ticks;

// Each page says which it is.
static void number(void) {
    memory = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) FAIL("mmap: %s", strerror(errno));
    for (uint64_t word = 0; word < PAGES * 512; word++) memory[word] = word ^ 0x5eed;
}

static void check(void) {
    for (uint64_t word = 0; word < PAGES * 512; word += 8)
        if (memory[word] != (word ^ 0x5eed)) FAIL("word %lu is %lx", word, memory[word]);
    atomic_fetch_add(&checks, 1);
}

static void *checker(void *arg) {
    while (!atomic_load(&stop)) check();
    return arg;
}

// It takes no number of ours, and whatever we do to numbers, pages stay what they are.
static void descriptors(double until, double (*now)(void)) {
    int first = open("/dev/null", O_RDONLY);
    if (first != 3) FAIL("the first descriptor that is opened is %d, not 3", first);
    char name[] = "/tmp/tier_manners.XXXXXX", text[4096], read_back[4096];
    int file = mkstemp(name);
    if (file < 0) FAIL("mkstemp: %s", strerror(errno));
    unlink(name);
    memset(text, 'x', sizeof text);
    if (write(file, text, sizeof text) != sizeof text) FAIL("write: %s", strerror(errno));
    int high = fcntl(file, F_DUPFD, 100);
    do {
        if (syscall(SYS_close_range, 3u, 99u, 0u)) FAIL("close_range: %s", strerror(errno));
        for (int n = 3; n < 32; n++)
            if (dup2(high, n) != n) FAIL("dup2: %s", strerror(errno));
        for (int n = 3; n < 32; n++)
            if (pread(n, read_back, sizeof read_back, 0) != sizeof read_back || memcmp(text, read_back, sizeof text)) FAIL("the file at %d", n);
        if (lseek(high, 0, SEEK_CUR) != sizeof text) FAIL("somebody has read a file of ours");
    } while (now() < until);
    syscall(SYS_close_range, 3u, ~0u, 0u);
}

static void handle(int signal) {
    (void)signal;
    int before = errno;
    // Only this program's main thread takes signals here.
    if ((pid_t)syscall(SYS_gettid) != getpid()) _exit(7);
    // A handler may touch what it likes.
    uint64_t word = atomic_load(&ticks) * 512 % (PAGES * 512);
    if (memory[word] != (word ^ 0x5eed)) _exit(8);
    atomic_fetch_add(&ticks, 1);
    errno = before;
}

static void signals(double until, double (*now)(void)) {
    sigset_t one, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigaddset(&one, SIGALRM);
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    if (sigaction(SIGUSR1, &action, NULL) || sigaction(SIGALRM, &action, NULL)) FAIL("sigaction: %s", strerror(errno));
    // Blocked in all threads there are, it waits for us.
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    for (int i = 0; i < 100; i++) {
        kill(getpid(), SIGUSR1);
        sched_yield();
        if (sigpending(&pending) || !sigismember(&pending, SIGUSR1)) FAIL("a signal that is blocked was taken by another thread");
        int which = 0;
        if (sigwait(&one, &which) || which != SIGUSR1) FAIL("sigwait: %d", which);
    }
    if (atomic_load(&ticks)) FAIL("a handler ran of a signal that is blocked");
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    struct itimerval every = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &every, NULL);
    do check(); while (now() < until);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    if (!atomic_load(&ticks)) FAIL("no signal came");
}

static void *add_one(void *arg) {
    ++*(int *)arg;
    return arg;
}

static int add_one_too(void *arg) { return *(int *)add_one(arg); }

// A child is a process like any other.
static void children(double until, double (*now)(void)) {
    do {
        pid_t child = fork();
        if (child < 0) FAIL("fork: %s", strerror(errno));
        if (!child) {
            alarm(20);
            int ran = 0;
            pthread_t thread;
            thrd_t other;
            if (pthread_create(&thread, NULL, add_one, &ran) || pthread_join(thread, NULL)) _exit(2);
            if (thrd_create(&other, add_one_too, &ran) != thrd_success || thrd_join(other, NULL) != thrd_success) _exit(3);
            check();
            _exit(ran == 2 ? 0 : 4);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) FAIL("a child ended with %x", status);
    } while (now() < until);
}

// By the C library, and by the kernel's call, of which nobody in here hears.
static void forks_without_descriptors(double until, double (*now)(void)) {
    struct rlimit limit = {64, 64};
    if (setrlimit(RLIMIT_NOFILE, &limit)) FAIL("setrlimit: %s", strerror(errno));
    while (open("/dev/null", O_RDONLY) >= 0) continue;
    if (errno != EMFILE) FAIL("open: %s", strerror(errno));
    do {
        for (int bare = 0; bare < 2; bare++) {
            pid_t child = bare ? (pid_t)syscall(SYS_fork) : fork();
            if (child < 0) FAIL("fork: %s", strerror(errno));
            if (!child) {
                check();
                _exit(0);
            }
            int status;
            if (waitpid(child, &status, 0) != child || status) FAIL("a child ended with %x", status);
        }
    } while (now() < until);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    void (*parts[])(double, double (*)(void)) = {descriptors, signals, children, forks_without_descriptors};
    double each = (argc > 1 ? atof(argv[1]) : 2) / 4;
    number();
    pthread_t thread;
    for (int part = 0; part < 4; part++) {
        atomic_store(&stop, 0);
        // Signals are for this thread alone.
        int beside = parts[part] != signals;
        if (beside && pthread_create(&thread, NULL, checker, NULL)) FAIL("pthread_create");
        parts[part](now() + each, now);
        atomic_store(&stop, 1);
        if (beside) pthread_join(thread, NULL);
        check();
    }
    printf("%lu checks, %lu signals\n", atomic_load(&checks), atomic_load(&ticks));
    return 0;
}
