/* Heaps and arenas as documented: pages that move under writing threads, orders of freeing, adopted memory, a
 * forked child, and wrong arguments. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 1024
#define MIB (1024 * 1024)

static telpher_mover *mover;

static telpher_tier_heap *heap_of(const char *options) {
    telpher_tier_options tiers[2] = {{.name = "fast", .size = 4 * MIB}, {0}};
    telpher_tier_heap *heap;
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, options) == 0);
    if (heap == NULL)
        exit(1);
    return heap;
}

static telpher_tier_arena *arena_of(telpher_tier_heap *heap, size_t size, uint32_t flags, unsigned char **bytes) {
    telpher_tier_arena *arena;
    size_t is = 0;
    CHECK(telpher_tier_arena_new(&arena, heap, size, flags) == 0);
    *bytes = telpher_tier_arena_memory(arena, &is);
    CHECK(*bytes != NULL && is >= size && is % (2 * MIB) == 0 && (uintptr_t)*bytes % (2 * MIB) == 0);
    if (*bytes == NULL)
        exit(1);
    return arena;
}

static uint64_t pages_on(telpher_tier_heap *heap, const void *start, size_t len, uint32_t tier) {
    uint64_t on[2] = {7, 7};
    CHECK(telpher_tier_residency(heap, start, len, on, 2) == 2);
    return on[tier];
}

static void number(unsigned char *bytes, size_t pages) {
    for (size_t page = 0; page < pages; page++)
        memset(bytes + page * PAGE, (int)(page % 251 + 1), PAGE);
}

static int is_numbered(const unsigned char *bytes, size_t pages) {
    for (size_t page = 0; page < pages; page++)
        for (size_t byte = 0; byte < PAGE; byte++)
            if (bytes[page * PAGE + byte] != page % 251 + 1)
                return 0;
    return 1;
}

static void pages_move_both_ways_and_keep_their_bytes(uint32_t flags, size_t step) {
    telpher_tier_heap *heap = heap_of("batch=64 spare=16m");
    unsigned char *bytes;
    telpher_tier_arena *arena = arena_of(heap, PAGES * PAGE, flags, &bytes);
    number(bytes, PAGES);
    CHECK(pages_on(heap, bytes, PAGES * PAGE, 1) == PAGES && pages_on(heap, bytes, PAGES * PAGE, 0) == 0);
    telpher_tier_moved moved;
    memset(&moved, 0xff, sizeof moved);
    CHECK(telpher_tier_migrate(heap, bytes, step, 0, &moved) == 0);
    CHECK(moved.pages == step / PAGE && moved.already == 0 && moved.no_room == 0 && moved.reserved[2] == 0);
    CHECK(is_numbered(bytes, PAGES) && pages_on(heap, bytes, PAGES * PAGE, 0) == step / PAGE);
    CHECK(telpher_tier_migrate(heap, bytes, step, 0, &moved) == 0 && moved.pages == 0 && moved.already == step / PAGE);
    CHECK(telpher_tier_migrate(heap, bytes, PAGES * PAGE, 1, NULL) == 0 && is_numbered(bytes, PAGES));
    CHECK(pages_on(heap, bytes, PAGES * PAGE, 1) == PAGES);
    /* The range covers one page completely and two in part; those two stay. */
    if (flags == 0) {
        CHECK(telpher_tier_migrate(heap, bytes + 1, 2 * PAGE, 0, &moved) == 0 && moved.pages == 1);
        CHECK(pages_on(heap, bytes + PAGE, PAGE, 0) == 1 && pages_on(heap, bytes, PAGE, 0) == 0);
    }
    telpher_tier_stats stats;
    memset(&stats, 0xff, sizeof stats);
    CHECK(telpher_tier_stats_of(heap, &stats) == 0 && stats.lost == 0 && stats.reserved[3] == 0);
    /* Times do not include shared arenas. */
    CHECK((stats.moving_ns > 0) == (flags != TELPHER_TIER_ARENA_SHARED) && stats.copying_ns <= stats.moving_ns);
    CHECK(stats.moved.pages == 2 * step / PAGE + (flags == 0) && stats.moved.already >= step / PAGE);
    telpher_tier_arena_free(arena);
    telpher_tier_heap_free(heap);
}

static void a_tier_accepts_pages_up_to_its_size_and_reports_its_state(void) {
    telpher_tier_heap *heap = heap_of("spare=0 shadow=1m");
    unsigned char *bytes;
    telpher_tier_arena *arena = arena_of(heap, 6 * MIB, 0, &bytes);
    number(bytes, 1536);
    telpher_tier_moved moved;
    CHECK(telpher_tier_migrate(heap, bytes, 6 * MIB, 0, &moved) == 0 && moved.pages == 1024 && moved.no_room == 512);
    telpher_tier_info info;
    memset(&info, 0xff, sizeof info);
    CHECK(telpher_tier_info_of(heap, 0, &info) == 0 && strcmp(info.name, "fast") == 0 && info.node == -1);
    CHECK(info.size == 4 * MIB && info.home == 0 && info.reserved[3] == 0);
    CHECK(telpher_tier_info_of(heap, 1, &info) == 0 && strcmp(info.name, "1") == 0 && info.home == 1);
    /* Old copies of pages that moved to the faster tier are kept, up to the limit. */
    CHECK(info.old_copies == 256);
    char name[3];
    CHECK(telpher_tier_name(heap, 0, name, sizeof name) == 4 && strcmp(name, "fa") == 0);
    CHECK(telpher_tier_mechanism_of(heap) == TELPHER_TIER_EXCHANGE);
    /* Discarded pages are on no tier, and free memory. */
    CHECK(telpher_tier_arena_discard(arena, 0, 100 * PAGE) == 0 && pages_on(heap, bytes, 100 * PAGE, 0) == 0);
    CHECK(bytes[0] == 0 && bytes[100 * PAGE - 1] == 0 && bytes[100 * PAGE] == 101);
    CHECK(telpher_tier_migrate(heap, bytes + 4 * MIB, 2 * MIB, 0, &moved) == 0 && moved.pages == 100);
    telpher_tier_arena_free(arena);
    telpher_tier_heap_free(heap);
}

static atomic_int over;

/* Writes one word of a random page at a time. Only this thread writes these words, so it can check their values. */
static void *writer(void *memory) {
    uint64_t *words = memory, own[PAGES] = {0}, lost = 0, state = 88172645463325252;
    for (uint64_t count = 1; !over; count++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        const size_t page = state % PAGES;
        volatile uint64_t *word = &words[page * (PAGE / 8) + 5];
        lost += *word != own[page];
        *word = own[page] = count;
    }
    return (void *)(uintptr_t)lost;
}

/* The kernel writes half of a page repeatedly, while it is moved and while not. */
static void *reader(void *memory) {
    unsigned char *half = (unsigned char *)memory + 17 * PAGE + 2048, head[2048];
    FILE *source = fopen("/proc/self/exe", "rb");
    uint64_t lost = source == NULL || fread(head, 1, sizeof head, source) != sizeof head;
    while (!over && !lost) {
        memset(half, 0, 2048);
        lost += pread(fileno(source), half, 2048, 0) != 2048 || memcmp(half, head, 2048) != 0;
    }
    if (source != NULL)
        fclose(source);
    return (void *)(uintptr_t)lost;
}

static void no_write_is_lost_while_pages_move(uint32_t flags, size_t step) {
    telpher_tier_heap *heap = heap_of(NULL);
    unsigned char *bytes;
    telpher_tier_arena *arena = arena_of(heap, PAGES * PAGE, flags, &bytes);
    pthread_t threads[2];
    void *lost[2];
    over = 0;
    CHECK(pthread_create(&threads[0], NULL, writer, bytes) == 0 && pthread_create(&threads[1], NULL, reader, bytes) == 0);
    telpher_tier_stats stats = {0};
    for (uint32_t round = 0; round < 400 || (stats.moved.pages < 2000 && round < 100000); round++) {
        const size_t at = (size_t)round * step % (PAGES * PAGE);
        CHECK(telpher_tier_migrate(heap, bytes + at, step, round / 7 % 2, NULL) == 0);
        CHECK(telpher_tier_stats_of(heap, &stats) == 0);
    }
    over = 1;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], &lost[i]) == 0 && lost[i] == NULL);
    CHECK(stats.moved.pages >= 2000 && stats.lost == 0);
    telpher_tier_arena_free(arena);
    telpher_tier_heap_free(heap);
}

static void existing_mappings_are_adopted_and_released(void) {
    telpher_tier_heap *heap = heap_of(NULL);
    const size_t size = 512 * PAGE;
    unsigned char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(bytes != MAP_FAILED);
    number(bytes, 512);
    telpher_tier_moved moved;
    CHECK(telpher_tier_migrate(heap, bytes, size, 0, &moved) == 0 && moved.pages == 0);
    CHECK(telpher_tier_adopt(heap, bytes, size) == 0 && telpher_tier_adopt(heap, bytes, PAGE) == -EEXIST);
    CHECK(telpher_tier_migrate(heap, bytes, size, 0, &moved) == 0 && moved.pages == 512 && is_numbered(bytes, 512));
    CHECK(telpher_tier_release(heap, bytes, 100 * PAGE) == 0);
    CHECK(telpher_tier_migrate(heap, bytes, size, 1, &moved) == 0 && moved.pages == 412 && is_numbered(bytes, 512));
    CHECK(telpher_tier_adopt(heap, bytes + 1, PAGE) == -EINVAL && telpher_tier_release(heap, bytes, 1) == -EINVAL);
    CHECK(telpher_tier_release(heap, bytes, size) == 0 && is_numbered(bytes, 512));
    telpher_tier_heap_free(heap);
    CHECK(munmap(bytes, size) == 0);
}

/* Pinned pages move to their tier, pages advised as hot are promoted, and the advice is reported. */
static void a_manager_moves_hot_and_pinned_pages(void) {
    telpher_tier_heap *heap = heap_of(NULL);
    unsigned char *bytes;
    telpher_tier_arena *arena = arena_of(heap, PAGES * PAGE, 0, &bytes);
    number(bytes, PAGES);
    CHECK(telpher_tier_advise(heap, bytes, 100 * PAGE, TELPHER_TIER_PIN, 0) == 0);
    CHECK(telpher_tier_advise(heap, bytes + 50 * PAGE, 50 * PAGE, TELPHER_TIER_UNPIN, 77) == 0);
    CHECK(telpher_tier_advise(heap, bytes + 50 * PAGE, 50 * PAGE, TELPHER_TIER_COLD, 0) == 0);
    CHECK(pages_on(heap, bytes, PAGES * PAGE, 0) == 0);
    telpher_tier_manager *manager;
    CHECK(telpher_tier_manager_new(&manager, heap, "pass=10ms window=2ms residence=1ms") == 0);
    telpher_tier_report report;
    for (int tries = 0; tries < 3000 && pages_on(heap, bytes, 50 * PAGE, 0) < 50; tries++)
        usleep(10000);
    CHECK(pages_on(heap, bytes, 50 * PAGE, 0) == 50 && pages_on(heap, bytes + 50 * PAGE, 50 * PAGE, 0) == 0);
    /* Moves are reported a moment later. */
    for (int tries = 0; tries < 3000; tries++) {
        memset(&report, 0xff, sizeof report);
        CHECK(telpher_tier_report_of(manager, &report) == 0 && report.failed == 0 && report.reserved[7] == 0);
        if (report.promoted >= 50 && report.pages[0] >= 50)
            break;
        usleep(10000);
    }
    CHECK(report.promoted >= 50 && report.time_ns > 0 && report.pages[0] >= 50 && report.pages[2] == 0 && report.looking_ns > 0);
    telpher_tier_manager_free(manager);
    /* Without moves: advice is accepted, and no page moves. */
    CHECK(telpher_tier_migrate(heap, bytes, PAGES * PAGE, 1, NULL) == 0);
    CHECK(telpher_tier_advise(heap, bytes + 200 * PAGE, 300 * PAGE, TELPHER_TIER_HOT, 0) == 0);
    CHECK(telpher_tier_manager_new(&manager, heap, "moves=off pass=10ms") == 0);
    for (int tries = 0; tries < 3000; tries++) {
        CHECK(telpher_tier_report_of(manager, &report) == 0);
        if (report.hot[1] >= 300)
            break;
        usleep(10000);
    }
    CHECK(report.hot[1] >= 300 && report.hot[1] < PAGES && report.pages[1] == PAGES && report.promoted == 0 && pages_on(heap, bytes, PAGES * PAGE, 1) == PAGES);
    CHECK(is_numbered(bytes, PAGES));
    telpher_tier_heap_free(heap);
    telpher_tier_manager_free(manager);
    telpher_tier_arena_free(arena);
}

/* Shared arenas over an existing file. */
static void a_tier_uses_the_file_of_its_options(void) {
    char path[] = "/tmp/telpher-tier-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0 && ftruncate(file, 4 * MIB) == 0);
    telpher_tier_options tiers[2] = {{.name = "file", .size = 4 * MIB, .path = path}, {.name = "ddr"}};
    telpher_tier_heap *heap;
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, NULL) == 0);
    unsigned char *bytes, byte = 0;
    telpher_tier_arena *arena = arena_of(heap, 6 * MIB, TELPHER_TIER_ARENA_SHARED, &bytes), *second;
    number(bytes, 1536);
    telpher_tier_moved moved;
    CHECK(telpher_tier_migrate(heap, bytes, 6 * MIB, 0, &moved) == 0 && moved.pages == 1024 && moved.no_room == 512);
    CHECK(is_numbered(bytes, 1536) && pread(file, &byte, 1, 5 * PAGE) == 1 && byte != 0);
    CHECK(telpher_tier_arena_new(&second, heap, MIB, TELPHER_TIER_ARENA_SHARED) == -EWOULDBLOCK && says("another process uses it"));
    telpher_tier_arena_free(arena);
    telpher_tier_heap_free(heap);
    tiers[0].path = "/no/such/file";
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, NULL) == 0);
    CHECK(telpher_tier_arena_new(&second, heap, MIB, TELPHER_TIER_ARENA_SHARED) == -ENOENT && second == NULL);
    telpher_tier_heap_free(heap);
    tiers[0].flags = TELPHER_TIER_HUGE_PAGES;
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, NULL) == -EINVAL && says("path"));
    tiers[0].path = NULL, tiers[0].size = (uint64_t)1 << 40;
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, NULL) == 0);
    CHECK(telpher_tier_arena_new(&second, heap, (size_t)1 << 37, TELPHER_TIER_ARENA_SHARED) < 0 && says("vm.nr_hugepages"));
    telpher_tier_heap_free(heap);
    close(file);
    unlink(path);
}

static void an_arena_outlives_its_heap_and_a_child_has_its_bytes(void) {
    telpher_tier_heap *heap = heap_of(NULL);
    unsigned char *bytes;
    telpher_tier_arena *arena = arena_of(heap, PAGES * PAGE, 0, &bytes);
    number(bytes, PAGES);
    CHECK(telpher_tier_migrate(heap, bytes, MIB, 0, NULL) == 0);
    const pid_t child = fork();
    if (child == 0) {
        const int good = is_numbered(bytes, PAGES) && telpher_tier_migrate(heap, bytes, MIB, 1, NULL) == -ECHILD;
        telpher_tier_arena_free(arena);
        telpher_tier_heap_free(heap);
        _exit(!good);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    telpher_tier_heap_free(heap);
    CHECK(is_numbered(bytes, PAGES));
    bytes[0] = 7;
    CHECK(telpher_tier_arena_discard(arena, 0, PAGE) == 0 && bytes[0] == 0);
    telpher_tier_arena_free(arena);
}

static void wrong_arguments_return_an_errno(void) {
    telpher_tier_options tiers[9] = {{.size = MIB}};
    telpher_tier_heap *heap = (telpher_tier_heap *)1;
    CHECK(telpher_tier_heap_new(NULL, mover, tiers, 2, NULL) == -EFAULT);
    CHECK(telpher_tier_heap_new(&heap, mover, NULL, 2, NULL) == -EFAULT && heap == NULL && says("tiers is NULL"));
    CHECK(telpher_tier_heap_new(&heap, mover, NULL, 0, NULL) == -EINVAL && says("2 to 8 tiers"));
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 1, NULL) == -EINVAL);
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 9, NULL) == -EINVAL);
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, "home=2") == -EINVAL);
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, "batch=0") == -EINVAL && says("from 1 to 65536"));
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, "mechanism=move-pages") == -EINVAL && says("NUMA node"));
    tiers[1].flags = TELPHER_TIER_NEAR;
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, NULL) == -EINVAL && says("TELPHER_TIER_ON_NODE"));
    tiers[1].flags = TELPHER_TIER_ON_NODE, tiers[1].node = 4711;
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, NULL) < 0 && heap == NULL);
    tiers[1].flags = 0, tiers[1].reserved[3] = 1;
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, NULL) == -EINVAL && says("reserved"));
    tiers[1].reserved[3] = 0, tiers[1].name = "\xff";
    CHECK(telpher_tier_heap_new(&heap, mover, tiers, 2, NULL) == -EINVAL && says("UTF-8"));

    heap = heap_of(NULL);
    telpher_tier_arena *arena = (telpher_tier_arena *)1;
    CHECK(telpher_tier_arena_new(NULL, heap, MIB, 0) == -EFAULT);
    CHECK(telpher_tier_arena_new(&arena, NULL, MIB, 0) == -EFAULT && arena == NULL);
    CHECK(telpher_tier_arena_new(&arena, heap, 0, 0) == -EINVAL && telpher_tier_arena_new(&arena, heap, MIB, 3) == -EINVAL);
    CHECK(telpher_tier_arena_new(&arena, heap, MIB, 4) == -EINVAL && says("telpher_tier_arena_flag"));
    CHECK(telpher_tier_arena_new(&arena, heap, SIZE_MAX / 2, 0) < 0 && arena == NULL);
    size_t size = 7;
    CHECK(telpher_tier_arena_memory(NULL, &size) == NULL && size == 7);
    unsigned char *bytes;
    arena = arena_of(heap, MIB, 0, &bytes);
    CHECK(telpher_tier_arena_discard(arena, 2 * MIB, 1) == -EINVAL && says("are not inside"));
    CHECK(telpher_tier_arena_discard(arena, SIZE_MAX, 2) == -EINVAL && telpher_tier_arena_discard(arena, 2 * MIB, 0) == 0);
    CHECK(telpher_tier_arena_discard(NULL, 0, 1) == -EFAULT);
    CHECK(telpher_tier_migrate(heap, bytes, PAGE, 2, NULL) == -EINVAL && says("there are 2"));
    CHECK(telpher_tier_migrate(heap, bytes, PAGE, 256, NULL) == -EINVAL);
    CHECK(telpher_tier_migrate(heap, bytes, 0, 0, NULL) == -EINVAL && telpher_tier_migrate(heap, NULL, 1, 0, NULL) == -EFAULT);
    CHECK(telpher_tier_migrate(heap, bytes, SIZE_MAX, 0, NULL) == -EOVERFLOW);
    CHECK(telpher_tier_migrate(NULL, bytes, PAGE, 0, NULL) == -EFAULT);
    CHECK(telpher_tier_residency(heap, bytes, PAGE, NULL, 2) == -EFAULT && telpher_tier_residency(heap, bytes, PAGE, NULL, 0) == 2);
    CHECK(telpher_tier_stats_of(heap, NULL) == -EFAULT && telpher_tier_info_of(heap, 0, NULL) == -EFAULT);
    telpher_tier_info info;
    CHECK(telpher_tier_info_of(heap, 2, &info) == -EINVAL && telpher_tier_name(heap, 2, NULL, 0) == -EINVAL);
    CHECK(telpher_tier_name(heap, 0, NULL, 0) == 4 && telpher_tier_name(heap, 0, NULL, 1) == -EFAULT);
    CHECK(telpher_tier_mechanism_of(NULL) == -EFAULT && telpher_tier_adopt(NULL, bytes, PAGE) == -EFAULT);
    CHECK(telpher_tier_adopt(heap, NULL, PAGE) == -EFAULT && telpher_tier_release(heap, bytes, 0) == -EINVAL);
    CHECK(telpher_tier_advise(heap, bytes, PAGE, 0, 0) == -EINVAL && says("telpher_tier_advice"));
    CHECK(telpher_tier_advise(heap, bytes, PAGE, 5, 0) == -EINVAL && telpher_tier_advise(heap, bytes, 0, 1, 0) == -EINVAL);
    CHECK(telpher_tier_advise(heap, bytes, PAGE, TELPHER_TIER_PIN, 2) == -EINVAL && telpher_tier_advise(NULL, bytes, 1, 1, 0) == -EFAULT);
    telpher_tier_manager *manager = (telpher_tier_manager *)1;
    CHECK(telpher_tier_manager_new(NULL, heap, NULL) == -EFAULT && telpher_tier_manager_new(&manager, NULL, NULL) == -EFAULT);
    CHECK(manager == NULL && telpher_tier_manager_new(&manager, heap, "home=1") == -EINVAL && says("a manager has"));
    CHECK(telpher_tier_report_of(NULL, NULL) == -EFAULT);
    telpher_tier_manager_free(NULL);
    telpher_tier_arena *shared = arena_of(heap, MIB, TELPHER_TIER_ARENA_SHARED, &bytes);
    CHECK(telpher_tier_arena_discard(shared, 0, PAGE) == -EOPNOTSUPP);
    telpher_tier_arena_free(shared);
    telpher_tier_arena_free(NULL);
    telpher_tier_heap_free(NULL);
    telpher_tier_arena_free(arena);
    telpher_tier_heap_free(heap);
}

int main(int argc, char **argv) {
    telpher_device *device;
    CHECK(telpher_device_open(&device, argc > 1 ? argv[1] : "model:spr", NULL) == 0);
    CHECK(telpher_mover_new(&mover, device, "threshold=16k") == 0 && telpher_has("tier") == 1);
    pages_move_both_ways_and_keep_their_bytes(0, 700 * PAGE);
    pages_move_both_ways_and_keep_their_bytes(TELPHER_TIER_ARENA_HUGE_PAGES, 2 * MIB);
    pages_move_both_ways_and_keep_their_bytes(TELPHER_TIER_ARENA_SHARED, 2 * MIB);
    a_tier_accepts_pages_up_to_its_size_and_reports_its_state();
    no_write_is_lost_while_pages_move(0, 64 * PAGE);
    no_write_is_lost_while_pages_move(TELPHER_TIER_ARENA_SHARED, 2 * MIB);
    existing_mappings_are_adopted_and_released();
    a_manager_moves_hot_and_pinned_pages();
    a_tier_uses_the_file_of_its_options();
    an_arena_outlives_its_heap_and_a_child_has_its_bytes();
    wrong_arguments_return_an_errno();
    CHECK(telpher_mover_free(mover) == 0);
    telpher_device_close(device);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
