// Expectations of a program under memory management, apart from its bytes. Its descriptors have the usual numbers, and
// it
// may close and replace any of them. Its signals reach its own threads, its children may start threads, it may fork
// without a free descriptor, and its mutexes of every kind work.
//
//   tier_manners SECONDS
//
// Ends with 0, or prints the first error and ends with 1.
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

// Writes a number into every word of every page.
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

// The library takes none of the program's descriptor numbers. Whatever the program does to descriptors, the pages keep
// their contents.
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
            if (pread(n, read_back, sizeof read_back, 0) != sizeof read_back || memcmp(text, read_back, sizeof text))
                FAIL("the file at %d", n);
        if (lseek(high, 0, SEEK_CUR) != sizeof text) FAIL("somebody has read a file of ours");
    } while (now() < until);
    syscall(SYS_close_range, 3u, ~0u, 0u);
}

static void handle(int signal) {
    (void)signal;
    int before = errno;
    // Only this program's main thread takes signals here.
    if ((pid_t)syscall(SYS_gettid) != getpid()) _exit(7);
    // A handler may access any memory.
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
    // The signal is blocked in all threads of the program, so it stays pending.
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    for (int i = 0; i < 100; i++) {
        kill(getpid(), SIGUSR1);
        sched_yield();
        if (sigpending(&pending) || !sigismember(&pending, SIGUSR1))
            FAIL("a signal that is blocked was taken by another thread");
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
            if (thrd_create(&other, add_one_too, &ran) != thrd_success || thrd_join(other, NULL) != thrd_success)
                _exit(3);
            check();
            _exit(ran == 2 ? 0 : 4);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) FAIL("a child ended with %x", status);
    } while (now() < until);
}

// Forks by the C library, and by a bare system call, which the library does not see.
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

// Mutexes that the kernel itself writes to, each in its own page: it hands one on by priority, and one whose owner
// ended.
#define MUTEXES 16
static pthread_mutex_t *inherits[MUTEXES], *robusts[MUTEXES];
static atomic_ulong handed_on, inherited;

static void *lock_by_priority(void *arg) {
    for (unsigned turn = (unsigned)(uintptr_t)arg; !atomic_load(&stop); turn++) {
        pthread_mutex_t *mutex = inherits[turn % MUTEXES];
        int error = pthread_mutex_lock(mutex);
        if (error) FAIL("a mutex with priority inheritance is not locked: %s", strerror(error));
        // Keep the mutex some of the time, so that the other thread waits.
        if (turn % 4 == 0) usleep(50);
        error = pthread_mutex_unlock(mutex);
        if (error) FAIL("a mutex with priority inheritance is not unlocked: %s", strerror(error));
        atomic_fetch_add(&inherited, 1);
    }
    return NULL;
}

static void *end_with_it_locked(void *mutex) {
    if (pthread_mutex_lock(mutex)) FAIL("a robust mutex is not locked");
    return NULL;
}

static void mutexes(double until, double (*now)(void)) {
    char *pages = mmap(NULL, (2 * MUTEXES + 512) * 4096ul, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) FAIL("mmap: %s", strerror(errno));
    memset(pages, 0x5a, (2 * MUTEXES + 512) * 4096ul);
    // After this time the memory is managed.
    usleep(200 * 1000);
    for (int i = 0; i < MUTEXES; i++) {
        pthread_mutexattr_t inherit, robust;
        pthread_mutexattr_init(&inherit);
        pthread_mutexattr_init(&robust);
        if (pthread_mutexattr_setprotocol(&inherit, PTHREAD_PRIO_INHERIT)) FAIL("no priority inheritance");
        if (pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST)) FAIL("no robust mutexes");
        inherits[i] = (pthread_mutex_t *)(pages + (100 + i) * 4096ul);
        robusts[i] = (pthread_mutex_t *)(pages + (200 + i) * 4096ul);
        if (pthread_mutex_init(inherits[i], &inherit) || pthread_mutex_init(robusts[i], &robust))
            FAIL("pthread_mutex_init");
    }
    pthread_t lockers[2], holder;
    for (uintptr_t i = 0; i < 2; i++)
        if (pthread_create(&lockers[i], NULL, lock_by_priority, (void *)i)) FAIL("pthread_create");
    do {
        for (int i = 0; i < MUTEXES; i++) {
            if (pthread_create(&holder, NULL, end_with_it_locked, robusts[i])) FAIL("pthread_create");
            struct timespec end;
            clock_gettime(CLOCK_REALTIME, &end);
            end.tv_sec += 20;
            while (!atomic_load(&stop) && pthread_tryjoin_np(holder, NULL)) sched_yield();
            int error = pthread_mutex_timedlock(robusts[i], &end);
            if (error != EOWNERDEAD)
                FAIL("who waits for a mutex of a thread that has ended is told: %s", strerror(error));
            if (pthread_mutex_consistent(robusts[i]) || pthread_mutex_unlock(robusts[i]))
                FAIL("pthread_mutex_consistent");
            atomic_fetch_add(&handed_on, 1);
        }
    } while (now() < until);
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(lockers[i], NULL);
    for (unsigned long at = 0; at < 99 * 4096ul; at++)
        if (pages[at] != 0x5a) FAIL("a byte beside mutexes");
    munmap(pages, (2 * MUTEXES + 512) * 4096ul);
}

// MADV_FREE: memory that the system may free later may be freed at once. Otherwise the library does not learn of the
// free,
// and the memory would stay where it is.
static void frees(double until, double (*now)(void)) {
    const unsigned long bytes = 64 * 4096;
    char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) FAIL("mmap: %s", strerror(errno));
    do {
        memset(pages, 0x5a, bytes);
        if (madvise(pages, bytes, MADV_FREE)) FAIL("madvise: %s", strerror(errno));
        for (unsigned long at = 0; at < bytes; at++)
            if (pages[at] && (getenv("TELPHER_TIER") || pages[at] != 0x5a))
                FAIL("a byte that was freed is %x", pages[at]);
    } while (now() < until);
    munmap(pages, bytes);
    char *file = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, open("/proc/self/exe", O_RDONLY), 0);
    if (file == MAP_FAILED) FAIL("mmap: %s", strerror(errno));
    if (!madvise(file, 4096, MADV_FREE) || errno != EINVAL) FAIL("a file is no memory that may be freed");
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    // The part that uses up all descriptors is the last.
    void (*parts[])(double, double (*)(void)) = {descriptors, signals, mutexes, frees, children,
                                                         forks_without_descriptors};
    const int count = sizeof parts / sizeof *parts;
    double each = (argc > 1 ? atof(argv[1]) : 2) / count;
    number();
    pthread_t thread;
    for (int part = 0; part < count; part++) {
        atomic_store(&stop, 0);
        // Signals are for this thread alone.
        int beside = parts[part] != signals;
        if (beside && pthread_create(&thread, NULL, checker, NULL)) FAIL("pthread_create");
        parts[part](now() + each, now);
        atomic_store(&stop, 1);
        if (beside) pthread_join(thread, NULL);
        check();
    }
    printf("%lu checks, %lu signals, %lu and %lu mutexes\n", atomic_load(&checks), atomic_load(&ticks),
           atomic_load(&inherited), atomic_load(&handed_on));
    return 0;
}
