// A program that knows nothing of tiers and checks every byte it has: writers with counters of their own, counters that
// all share, system calls that write into memory, threads that start and end, and memory that grows, moves, is
// discarded,
// unmapped, locked, protected, or shared with children.
//
//   tier_stress SECONDS
//
// Ends with 0 and one line, or prints the first error and ends with 1.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 2048ul
#define WRITERS 3

static atomic_int stop;
static atomic_ulong rounds[16];
static _Atomic uint64_t *shared;
static uint64_t added[WRITERS];

#define FAIL(...) do { fprintf(stderr, "tier_stress: " __VA_ARGS__); fprintf(stderr, "\n"); _exit(1); } while (0)

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) FAIL("mmap: %s", strerror(errno));
    return at;
}

// Each word of a page that only this thread writes has the value last written.
static void *writer(void *arg) {
    uint64_t number = (uintptr_t)arg, state = 77 + number;
    uint64_t *memory = map(PAGES * PAGE), *shadow = calloc(PAGES, sizeof *shadow);
    if (number == 0) madvise(memory, PAGES * PAGE, MADV_HUGEPAGE);
    while (!atomic_load(&stop)) {
        for (int i = 0; i < 2000; i++) {
            uint64_t page = next(&state) % PAGES, word = page * 512 + page % 512;
            if (memory[word] != shadow[page])
                FAIL("writer %lu: page %lu has %lx, not %lx", number, page, memory[word], shadow[page]);
            memory[word] = shadow[page] = next(&state);
            atomic_fetch_add(&shared[next(&state) % PAGES * 512], 1);
            added[number]++;
        }
        atomic_fetch_add(&rounds[0], 1);
    }
    free(shadow);
    munmap(memory, PAGES * PAGE);
    return NULL;
}

// read(2) writes into memory, and its bytes are there.
static void *reader(void *arg) {
    (void)arg;
    uint64_t state = 5;
    unsigned char *memory = map(256 * PAGE), out[PAGE];
    int ends[2];
    if (pipe(ends)) FAIL("pipe: %s", strerror(errno));
    while (!atomic_load(&stop)) {
        uint64_t page = next(&state) % 256;
        memset(out, (int)next(&state), sizeof out);
        if (write(ends[1], out, sizeof out) != sizeof out) FAIL("write: %s", strerror(errno));
        ssize_t got = read(ends[0], memory + page * PAGE, PAGE);
        if (got != (ssize_t)PAGE) FAIL("read: %zd, %s", got, strerror(errno));
        if (memcmp(memory + page * PAGE, out, PAGE)) FAIL("read(2) did not write page %lu", page);
        atomic_fetch_add(&rounds[1], 1);
    }
    close(ends[0]);
    close(ends[1]);
    munmap(memory, 256 * PAGE);
    return NULL;
}

// Memory that moves, grows, shrinks, is discarded and unmapped.
static void *mapper(void *arg) {
    (void)arg;
    uint64_t state = 9;
    size_t pages = 128;
    uint64_t *memory = map(pages * PAGE), stamp = 1;
    for (size_t page = 0; page < pages; page++) memory[page * 512] = stamp + page;
    while (!atomic_load(&stop)) {
        for (size_t page = 0; page < pages; page++)
            if (memory[page * 512] != stamp + page)
                FAIL("mapper: page %zu has %lx, not %lx", page, memory[page * 512], stamp + page);
        size_t more = 64 + next(&state) % 512, kept = pages < more ? pages : more;
        switch (next(&state) % 4) {
        case 0:
        case 1:
            memory = mremap(memory, pages * PAGE, more * PAGE, MREMAP_MAYMOVE);
            if (memory == MAP_FAILED) FAIL("mremap: %s", strerror(errno));
            for (size_t page = kept; page < more; page++) {
                if (memory[page * 512]) FAIL("mremap: a new page has %lx", memory[page * 512]);
                memory[page * 512] = stamp + page;
            }
            pages = more;
            break;
        case 2:
            if (madvise(memory, pages * PAGE, MADV_DONTNEED)) FAIL("madvise: %s", strerror(errno));
            stamp = next(&state) | 1;
            for (size_t page = 0; page < pages; page++) {
                if (memory[page * 512]) FAIL("discarded page %zu has %lx", page, memory[page * 512]);
                memory[page * 512] = stamp + page;
            }
            break;
        default:
            munmap(memory, pages * PAGE);
            pages = more;
            memory = map(pages * PAGE);
            for (size_t page = 0; page < pages; page++) {
                if (memory[page * 512]) FAIL("a new mapping has %lx", memory[page * 512]);
                memory[page * 512] = stamp + page;
            }
        }
        atomic_fetch_add(&rounds[2], 1);
        usleep(2000);
    }
    return NULL;
}

// The C library's heap: blocks of all sizes that keep their bytes.
static void *allocator(void *arg) {
    (void)arg;
    enum { BLOCKS = 400 };
    uint64_t state = 13;
    static struct { unsigned char *at; size_t len; unsigned char mark; } blocks[BLOCKS];
    while (!atomic_load(&stop)) {
        for (int i = 0; i < 200; i++) {
            uint64_t at = next(&state) % BLOCKS;
            for (size_t byte = 0; byte < blocks[at].len; byte += 61)
                if (blocks[at].at[byte] != blocks[at].mark)
                    FAIL("block %lu of %zu bytes: byte %zu changed", at, blocks[at].len, byte);
            size_t len = next(&state) % (i % 20 ? 20000 : 400000) + 1;
            blocks[at].at = realloc(blocks[at].at, len);
            if (!blocks[at].at) FAIL("realloc");
            blocks[at].len = len;
            blocks[at].mark = (unsigned char)next(&state);
            memset(blocks[at].at, blocks[at].mark, len);
        }
        atomic_fetch_add(&rounds[3], 1);
    }
    return NULL;
}

// Threads start and end: their stacks are memory like any other.
static void *on_a_stack(void *arg) {
    volatile uint64_t words[8192];
    for (int i = 0; i < 8192; i++) words[i] = (uintptr_t)arg + i;
    usleep(3000);
    for (int i = 0; i < 8192; i++)
        if (words[i] != (uintptr_t)arg + i) FAIL("a thread's stack changed");
    return arg;
}

static void *spawner(void *arg) {
    (void)arg;
    while (!atomic_load(&stop)) {
        pthread_t threads[4];
        for (uintptr_t i = 0; i < 4; i++)
            if (pthread_create(&threads[i], NULL, on_a_stack, (void *)(i + 100))) FAIL("pthread_create");
        for (uintptr_t i = 0; i < 4; i++) {
            void *result;
            pthread_join(threads[i], &result);
            if (result != (void *)(i + 100)) FAIL("a thread returned %p", result);
        }
        atomic_fetch_add(&rounds[4], 1);
    }
    return NULL;
}

// Children have a copy of their parent's memory; both continue with their own.
static void *forker(void *arg) {
    (void)arg;
    uint64_t *memory = map(256 * PAGE);
    for (uint64_t generation = 1; !atomic_load(&stop); generation++) {
        for (uint64_t page = 0; page < 256; page++) memory[page * 512] = generation + page;
        pid_t child = fork();
        if (child < 0) FAIL("fork: %s", strerror(errno));
        if (child == 0) {
            for (uint64_t page = 0; page < 256; page++)
                if (memory[page * 512] != generation + page) _exit(2);
            memory[0] = 0;
            _exit(memory[512] == generation + 1 ? 0 : 3);
        }
        for (uint64_t page = 0; page < 256; page += 3) memory[page * 512] ^= 1;
        int status;
        if (waitpid(child, &status, 0) != child || status) FAIL("a child ended with %x", status);
        for (uint64_t page = 0; page < 256; page++)
            if (memory[page * 512] != ((generation + page) ^ (page % 3 == 0)))
                FAIL("after a fork page %lu changed", page);
        atomic_fetch_add(&rounds[5], 1);
        usleep(10000);
    }
    return NULL;
}

// Locked and protected memory keeps its bytes, whether it is moved or not.
static void *locker(void *arg) {
    (void)arg;
    uint64_t *memory = map(64 * PAGE);
    for (uint64_t generation = 1; !atomic_load(&stop); generation++) {
        for (uint64_t page = 0; page < 64; page++) memory[page * 512] = generation * page;
        if (generation % 2) mlock(memory, 16 * PAGE);
        mprotect(memory + 32 * 512, 16 * PAGE, PROT_READ);
        usleep(3000);
        for (uint64_t page = 0; page < 64; page++)
            if (memory[page * 512] != generation * page) FAIL("locked or protected page %lu changed", page);
        munlock(memory, 16 * PAGE);
        mprotect(memory + 32 * 512, 16 * PAGE, PROT_READ | PROT_WRITE);
        atomic_fetch_add(&rounds[6], 1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    shared = map(PAGES * PAGE);
    void *(*others[])(void *) = {reader, mapper, allocator, spawner, forker, locker};
    enum { OTHERS = sizeof others / sizeof *others };
    pthread_t threads[WRITERS + OTHERS];
    for (uintptr_t i = 0; i < WRITERS; i++)
        if (pthread_create(&threads[i], NULL, writer, (void *)i)) FAIL("pthread_create");
    for (int i = 0; i < OTHERS; i++)
        if (pthread_create(&threads[WRITERS + i], NULL, others[i], NULL)) FAIL("pthread_create");
    struct timespec time = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
    /* On a busy machine a part may begin later. */
    for (int i = 0; i <= OTHERS; i++)
        for (int ms = 0; ms < 60000 && !atomic_load(&rounds[i]); ms++) usleep(1000);
    atomic_store(&stop, 1);
    for (int i = 0; i < WRITERS + OTHERS; i++) pthread_join(threads[i], NULL);
    uint64_t sum = 0, expected = 0;
    for (uint64_t page = 0; page < PAGES; page++) sum += atomic_load(&shared[page * 512]);
    for (int i = 0; i < WRITERS; i++) expected += added[i];
    if (sum != expected) FAIL("the counters have %lu, and %lu were added", sum, expected);
    for (int i = 0; i <= OTHERS; i++)
        if (!atomic_load(&rounds[i])) FAIL("part %d did nothing", i);
    printf("%lu counted; rounds: %lu writes, %lu reads, %lu maps, %lu blocks, %lu threads, %lu forks, %lu locks\n", sum,
           atomic_load(&rounds[0]), atomic_load(&rounds[1]), atomic_load(&rounds[2]), atomic_load(&rounds[3]),
           atomic_load(&rounds[4]), atomic_load(&rounds[5]), atomic_load(&rounds[6]));
    return 0;
}
