/* Threads that are cancelled at any moment, most of them within a long copy. Each thread is joined, its cleanup
 * function has run, and nothing is written into its memory any more. It knows nothing of telpher, and also passes
 * without it. Prints "ok", or what is wrong. With an argument, it cancels so many threads instead of 400. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), _exit(1))
#define CHECK(condition) ((condition) ? (void)0 : FAIL("line %d: %s", __LINE__, #condition))

static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;
static void *(*volatile fill)(void *, int, size_t) = memset;
static int (*volatile compare)(const void *, const void *, size_t) = memcmp;

enum { PAGE = 4096, LONG = (2 << 20) + (128 << 10), THREADS = 8 };

static unsigned random_state = 23;
static unsigned random_number(void) { return random_state = random_state * 1103515245 + 12345, random_state >> 8; }

/* What a thread copies, and how far it is. */
struct work {
    unsigned char *from, *to;
    int type, shape;
    atomic_int begun, cleaned;
};

static unsigned char *pages(size_t len)
{
    unsigned char *all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(all != MAP_FAILED);
    return all;
}

static void clean_up(void *word)
{
    struct work *work = word;
    sigset_t mask;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGUSR1));
    /* A cleanup function may copy, too. */
    static _Thread_local unsigned char bytes[PAGE * 4], others[PAGE * 4];
    fill(bytes, 7, sizeof bytes);
    copy(others, bytes, sizeof bytes);
    CHECK(others[0] == 7 && others[sizeof others - 1] == 7);
    work->cleaned = 1;
}

static void *copies(void *word)
{
    struct work *work = word;
    pthread_cleanup_push(clean_up, work);
    CHECK(pthread_setcanceltype(work->type, NULL) == 0);
    work->begun = 1;
    for (;;) {
        switch (work->shape) {
        case 0: copy(work->to, work->from, LONG); break;
        case 1: move(work->to + 44, work->to, LONG - 44); break;
        case 2: fill(work->to, 3, LONG); break;
        default: work->begun = 1 + (compare(work->from, work->from + LONG / 2, LONG / 2) != 0); break;
        }
        /* Only a thread with deferred cancellation is cancelled here alone. */
        if (work->type == PTHREAD_CANCEL_DEFERRED) pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return NULL;
}

static void expect_cancelled(pthread_t thread, struct work *work)
{
    void *result;
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(work->cleaned);
}

/* Nothing is written after the thread has ended. */
static void expect_untouched(struct work *work)
{
    volatile unsigned char *bytes = work->to;
    for (size_t at = 0; at < LONG; at++) bytes[at] = 2;
    for (int look = 0; look < 2; look++)
        for (size_t at = 0; at < LONG; at++)
            if (bytes[at] != 2) FAIL("written after the thread was cancelled, at %zu", at);
}

static void cancellations(int count)
{
    static struct work all[THREADS];
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) {
        all[at].from = pages(LONG), all[at].to = pages(LONG);
        memset(all[at].from, 1, LONG);
    }
    for (int round = 0; round * THREADS < count; round++) {
        for (int at = 0; at < THREADS; at++) {
            struct work *work = &all[at];
            work->begun = work->cleaned = 0;
            work->shape = (round + at) % 4;
            work->type = at == 0 ? PTHREAD_CANCEL_DEFERRED : PTHREAD_CANCEL_ASYNCHRONOUS;
            CHECK(pthread_create(&threads[at], NULL, copies, work) == 0);
        }
        for (int at = 0; at < THREADS; at++) {
            while (!all[at].begun) sched_yield();
            for (unsigned spin = random_number() % 20000; spin > 0; spin--) atomic_signal_fence(memory_order_seq_cst);
            CHECK(pthread_cancel(threads[at]) == 0);
        }
        for (int at = 0; at < THREADS; at++) expect_cancelled(threads[at], &all[at]);
        expect_untouched(&all[round % THREADS]);
    }
}

/* A cancellation that waits when the copy begins acts once it is allowed, and not before. */
static void *waits_while_disabled(void *word)
{
    struct work *work = word;
    pthread_cleanup_push(clean_up, work);
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
    work->begun = 1;
    while (work->begun == 1) sched_yield();
    copy(work->to, work->from, LONG);
    work->begun = 3;
    CHECK(memcmp(work->to, work->from, LONG) == 0);
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
    for (;;) copy(work->to, work->from, LONG);
    pthread_cleanup_pop(0);
    return NULL;
}

static void disabled(void)
{
    struct work work = {.from = pages(LONG), .to = pages(LONG)};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits_while_disabled, &work) == 0);
    while (!work.begun) sched_yield();
    CHECK(pthread_cancel(thread) == 0);
    work.begun = 2;
    expect_cancelled(thread, &work);
    CHECK(work.begun == 3);
}

static _Thread_local sigjmp_buf out;
static void leave(int signal) { (void)signal; siglongjmp(out, 1); }

/* A handler leaves a copy: at a page without access, and at a moment that another thread chooses. Then the thread has
 * the type and state that it has set. */
static void *leaves(void *word)
{
    struct work *work = word;
    pthread_cleanup_push(clean_up, work);
    for (volatile int kind = 0; kind < 2; kind++) {
        volatile int type = kind == 0 ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED;
        for (volatile int round = 0; round < 40; round++) {
            int old_type, old_state;
            CHECK(pthread_setcanceltype(type, NULL) == 0);
            if (sigsetjmp(out, 1) == 0) {
                if (round % 2) {
                    CHECK(mprotect(work->to + 64 * PAGE, PAGE, PROT_NONE) == 0);
                } else {
                    work->begun = 1;
                }
                for (;;) copy(work->to, work->from, LONG);
            }
            work->begun = 2;
            CHECK(mprotect(work->to, LONG / PAGE * PAGE, PROT_READ | PROT_WRITE) == 0);
            CHECK(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old_type) == 0);
            CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old_state) == 0);
            if (old_type != type || old_state != PTHREAD_CANCEL_ENABLE)
                FAIL("round %d: type %d instead of %d, state %d", round, old_type, type, old_state);
        }
    }
    expect_untouched(work);
    /* It can still be cancelled. */
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    work->begun = 3;
    for (;;) copy(work->to, work->from, LONG);
    pthread_cleanup_pop(0);
    return NULL;
}

static void jumps(void)
{
    struct sigaction action = {.sa_handler = leave};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    struct work work = {.from = pages(LONG), .to = pages(LONG)};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, leaves, &work) == 0);
    while (work.begun != 3) {
        int expected = 1;
        if (atomic_compare_exchange_strong(&work.begun, &expected, 0)) {
            for (unsigned spin = random_number() % 20000; spin > 0; spin--) atomic_signal_fence(memory_order_seq_cst);
            CHECK(pthread_kill(thread, SIGUSR1) == 0);
        }
        sched_yield();
    }
    CHECK(pthread_cancel(thread) == 0);
    expect_cancelled(thread, &work);
}

/* As many long copies as a test can tell from those before, each with its own record. */
static void copies_afterwards(void)
{
    unsigned char *from = pages(LONG), *to = pages(LONG);
    for (int round = 0; round < 300; round++) {
        memset(from, round, PAGE);
        copy(to, from, LONG);
        CHECK(memcmp(to, from, PAGE) == 0);
    }
}

int main(int count, char **words)
{
    cancellations(count > 1 ? atoi(words[1]) : 400);
    disabled();
    jumps();
    copies_afterwards();
    CHECK(write(1, "ok\n", 3) == 3);
    return 0;
}
