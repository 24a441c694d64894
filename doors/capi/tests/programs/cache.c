/* The cache as documented: sharing, weak access, prefetching, the caller's allocators and policies, invalidation,
 * ownership, threads, and wrong arguments. */
#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK (64 * 1024)

static telpher_device *device;
static telpher_mover *mover;

/* Blocks with different bytes. */
static unsigned char *some(size_t blocks) {
    unsigned char *bytes = malloc(blocks * BLOCK);
    for (size_t i = 0; i < blocks * BLOCK; i++)
        bytes[i] = (unsigned char)(i * 13 + i / BLOCK);
    return bytes;
}

static telpher_cache *cache_of(size_t blocks, const char *options) {
    telpher_cache *cache;
    telpher_tier tier = {.size = blocks * BLOCK};
    CHECK(telpher_cache_new(&cache, mover, &tier, 1, NULL, options) == 0);
    return cache;
}

static telpher_entry *access(const telpher_cache *cache, const unsigned char *start, size_t len) {
    telpher_entry *entry;
    CHECK(telpher_cache_access(cache, start, len, &entry) == 0 && entry != NULL);
    return entry;
}

static telpher_stats stats_of(const telpher_cache *cache) {
    telpher_stats stats;
    CHECK(telpher_cache_stats(cache, &stats) == 0);
    return stats;
}

static void a_block_is_copied_once_and_shared(void) {
    unsigned char *source = some(2);
    telpher_cache *cache = cache_of(4, NULL);
    int fast = 7;
    telpher_entry *whole = access(cache, source, BLOCK), *other;
    CHECK(memcmp(telpher_entry_location(whole, NULL), source, BLOCK) == 0); /* in the copy or the source */
    CHECK(telpher_entry_wait(whole, -1) == 1 && telpher_entry_done(whole) == 1 && telpher_entry_stale(whole) == 0);
    const unsigned char *copy = telpher_entry_location(whole, &fast);
    CHECK(fast == 1 && copy != source && (uintptr_t)copy % 64 == 0 && memcmp(copy, source, BLOCK) == 0);
    /* A part of the block uses the same copy. */
    telpher_entry *part = access(cache, source + 100, 200);
    CHECK(telpher_entry_location(part, &fast) == copy + 100 && fast == 1);
    CHECK(telpher_entry_size(part) == 200 && telpher_entry_size(whole) == BLOCK);
    /* A range that extends beyond the entry gets an entry of its own. */
    telpher_entry *further = access(cache, source + BLOCK / 2, BLOCK);
    CHECK(telpher_entry_wait(further, -1) == 1);
    CHECK(memcmp(telpher_entry_location(further, &fast), source + BLOCK / 2, BLOCK) == 0 && fast == 1);
    CHECK(telpher_entry_share(whole, &other) == 0 && telpher_entry_location(other, NULL) == copy);
    telpher_entry_free(whole);
    telpher_stats stats = stats_of(cache);
    CHECK(stats.hits == 1 && stats.misses == 2 && stats.copies == 2 && stats.bytes_copied == 2 * BLOCK);
    CHECK(stats.entries == 2 && stats.in_flight == 0 && stats.bytes == 2 * BLOCK && stats.fallbacks == 0);
    CHECK(telpher_cache_flush(cache) == 0); /* both entries are in use */
    telpher_entry_free(further);
    CHECK(telpher_cache_flush(cache) == 1);
    telpher_entry_free(part);
    /* The entry outlives the cache. */
    CHECK(telpher_cache_free(cache) == 0);
    CHECK(memcmp(copy, source, BLOCK) == 0 && telpher_entry_location(other, NULL) == copy && telpher_entry_stale(other) == 1);
    telpher_entry_free(other);
    free(source);
}

static void weak_accesses_copy_nothing_and_do_not_wait(void) {
    unsigned char *source = some(1);
    telpher_cache *cache = cache_of(1, NULL);
    telpher_entry *entry = (telpher_entry *)1;
    CHECK(telpher_cache_peek(cache, source, BLOCK, &entry) == 0 && entry == NULL);
    telpher_entry *first = access(cache, source, BLOCK);
    CHECK(telpher_cache_peek(cache, source + 5, 10, &entry) == 1 && entry != NULL);
    while (telpher_entry_done(entry) == 0)
        CHECK(telpher_cache_drive(cache) == 0);
    CHECK(telpher_entry_wait(first, 0) == 1);
    telpher_stats stats = stats_of(cache);
    CHECK(stats.hits == 1 && stats.misses == 2 && stats.weak_misses == 1 && stats.copies == 1);
    telpher_entry_free(entry);
    telpher_entry_free(first);
    CHECK(telpher_cache_free(cache) == 0);
    free(source);
}

static void prefetched_blocks_are_found_and_can_be_cancelled(void) {
    unsigned char *source = some(4);
    telpher_cache *cache = cache_of(2, "in-flight=1");
    telpher_prefetch *ahead[3];
    for (uint32_t i = 0; i < 3; i++)
        CHECK(telpher_cache_prefetch(cache, source + i * BLOCK, BLOCK, 3 - i, &ahead[i]) == 0);
    while (telpher_prefetch_done(ahead[0]) == 0 || telpher_prefetch_done(ahead[1]) == 0)
        ;
    /* There is memory for two blocks; a prefetched block does not evict another prefetched block. */
    CHECK(telpher_prefetch_done(ahead[2]) == 0 && stats_of(cache).waiting == 1);
    CHECK(telpher_prefetch_cancel(ahead[2]) == 1 && telpher_prefetch_cancel(ahead[1]) == 0);
    telpher_prefetch_free(ahead[0]);
    telpher_entry *entry = access(cache, source + BLOCK, BLOCK);
    int fast;
    CHECK(memcmp(telpher_entry_location(entry, &fast), source + BLOCK, BLOCK) == 0 && fast == 1);
    telpher_entry_free(entry);
    telpher_stats stats = stats_of(cache);
    CHECK(stats.prefetches == 3 && stats.cancelled == 1 && stats.hits == 1 && stats.misses == 0 && stats.copies == 2);
    /* A prefetch without a handle evicts a used block. */
    CHECK(telpher_cache_prefetch(cache, source + 3 * BLOCK, BLOCK, 255, NULL) == 0);
    entry = access(cache, source + 3 * BLOCK, BLOCK);
    CHECK(telpher_entry_wait(entry, -1) == 1 && stats_of(cache).evictions == 1 && stats_of(cache).hits == 2);
    telpher_entry_free(entry);
    /* A prefetch that is in flight, or not started, when its cache is freed. */
    CHECK(telpher_cache_prefetch(cache, source + 2 * BLOCK, BLOCK, 0, &ahead[0]) == 0);
    CHECK(telpher_cache_free(cache) == 0);
    CHECK(telpher_prefetch_done(ahead[0]) == 0 && telpher_prefetch_cancel(ahead[0]) == 0);
    free(source);
}

/* An allocator with a limited number of blocks that counts, and poisons released memory. */
struct heap {
    pthread_mutex_t lock;
    int left, obtained, released;
};

static void *obtain(void *user, size_t len) {
    struct heap *heap = user;
    pthread_mutex_lock(&heap->lock);
    const int has = heap->left > 0;
    heap->left -= has;
    heap->obtained += has;
    pthread_mutex_unlock(&heap->lock);
    return has ? malloc(len) : NULL;
}

static void release(void *user, void *start, size_t len) {
    struct heap *heap = user;
    memset(start, 0xdd, len);
    free(start);
    pthread_mutex_lock(&heap->lock);
    heap->left++;
    heap->released++;
    pthread_mutex_unlock(&heap->lock);
}

static struct heap heap_of(int blocks) {
    struct heap heap = {PTHREAD_MUTEX_INITIALIZER, blocks, 0, 0};
    return heap;
}

static telpher_tier tier_of(struct heap *heap) {
    telpher_tier tier = {.obtain = obtain, .release = release, .user = heap};
    return tier;
}

static void a_cache_uses_the_callers_allocator(void) {
    unsigned char *source = some(4);
    struct heap heap = heap_of(2);
    telpher_tier tier = tier_of(&heap);
    telpher_cache *cache;
    CHECK(telpher_cache_new(&cache, mover, &tier, 1, NULL, NULL) == 0);
    telpher_entry *entries[3];
    int fast[3];
    for (int i = 0; i < 3; i++) {
        entries[i] = access(cache, source + i * BLOCK, BLOCK);
        CHECK(telpher_entry_wait(entries[i], -1) == 1);
        CHECK(memcmp(telpher_entry_location(entries[i], &fast[i]), source + i * BLOCK, BLOCK) == 0);
    }
    /* All memory is in use: the third block stays in its source. */
    CHECK(fast[0] == 1 && fast[1] == 1 && fast[2] == 0 && stats_of(cache).fallbacks == 1);
    CHECK(telpher_entry_location(entries[2], NULL) == source + 2 * BLOCK);
    /* An unused entry is evicted for another one. */
    telpher_entry_free(entries[0]);
    entries[0] = access(cache, source + 3 * BLOCK, BLOCK);
    CHECK(telpher_entry_wait(entries[0], -1) == 1 && stats_of(cache).evictions == 1 && heap.obtained == 3 && heap.released == 1);
    CHECK(telpher_cache_free(cache) == 0);
    CHECK(heap.obtained - heap.released == 2);
    for (int i = 0; i < 3; i++)
        telpher_entry_free(entries[i]);
    CHECK(heap.obtained == heap.released);
    free(source);
}

/* Unaligned memory, as after an allocator's header. */
static void *obtain_odd(void *user, size_t len) {
    unsigned char *start = obtain(user, len + 3);
    return start == NULL ? NULL : start + 3;
}

static void release_odd(void *user, void *start, size_t len) {
    release(user, (unsigned char *)start - 3, len + 3);
}

static void the_callers_memory_may_be_unaligned_and_run_out(void) {
    unsigned char *source = some(4);
    struct heap heap = heap_of(100);
    telpher_tier tier = {.size = 2 * BLOCK, .obtain = obtain_odd, .release = release_odd, .user = &heap};
    telpher_cache *cache;
    telpher_entry *entry;
    int fast;
    CHECK(telpher_cache_new(&cache, mover, &tier, 1, NULL, NULL) == 0);
    for (size_t i = 0; i < 4; i++) {
        entry = access(cache, source + i * BLOCK, BLOCK);
        CHECK(telpher_entry_wait(entry, -1) == 1);
        const unsigned char *copy = telpher_entry_location(entry, &fast);
        CHECK(fast == 1 && copy != source + i * BLOCK && memcmp(copy, source + i * BLOCK, BLOCK) == 0);
        telpher_entry_free(entry);
    }
    /* There is memory for a hundred blocks, of which the cache may use two. */
    CHECK(heap.obtained == 4 && heap.released == 2 && stats_of(cache).evictions == 2 && stats_of(cache).bytes == 2 * BLOCK);
    CHECK(telpher_cache_apart(cache, source, BLOCK) == -ENODATA);
    telpher_prefetch *ahead;
    CHECK(telpher_cache_clear(cache) == 2 && heap.released == 4);
    heap.left = 0;
    /* No memory at all: no thread waits for it. */
    CHECK(telpher_cache_prefetch(cache, source, BLOCK, 9, &ahead) == 0 && telpher_prefetch_done(ahead) == 0);
    entry = access(cache, source, BLOCK);
    CHECK(telpher_entry_wait(entry, -1) == 1 && telpher_entry_location(entry, &fast) == source && fast == 0);
    CHECK(telpher_prefetch_cancel(ahead) == 0 && stats_of(cache).fallbacks == 2 && stats_of(cache).waiting == 0);
    telpher_entry_free(entry);
    CHECK(telpher_cache_free(cache) == 0 && heap.obtained == heap.released);
    free(source);
}

struct holder {
    telpher_entry *entry;
    const unsigned char *expected;
    unsigned wrong;
};

static void *hold(void *argument) {
    struct holder *holder = argument;
    for (int round = 0; round < 200; round++) {
        telpher_entry *other;
        holder->wrong += telpher_entry_share(holder->entry, &other) != 0;
        telpher_entry_free(holder->entry);
        holder->entry = other;
        holder->wrong += memcmp(telpher_entry_location(other, NULL), holder->expected, BLOCK) != 0;
        holder->wrong += telpher_entry_wait(other, round % 2 ? 1000 : 0) < 0;
    }
    holder->wrong += telpher_entry_wait(holder->entry, -1) != 1 || telpher_entry_stale(holder->entry) < 0;
    holder->wrong += memcmp(telpher_entry_location(holder->entry, NULL), holder->expected, BLOCK) != 0;
    telpher_entry_free(holder->entry);
    return NULL;
}

static void a_cache_can_be_freed_while_its_entries_are_used(void) {
    unsigned char *source = some(8), *expected = some(8);
    for (int round = 0; round < 5; round++) {
        struct heap heap = heap_of(4);
        telpher_tier tier = tier_of(&heap);
        telpher_cache *cache;
        struct holder holders[8];
        pthread_t threads[8];
        CHECK(telpher_cache_new(&cache, mover, &tier, 1, NULL, round % 2 ? "in-flight=2" : NULL) == 0);
        for (size_t i = 0; i < 8; i++)
            holders[i] = (struct holder){access(cache, source + i * BLOCK, BLOCK), expected + i * BLOCK, 0};
        for (int i = 0; i < 8; i++)
            CHECK(pthread_create(&threads[i], NULL, hold, &holders[i]) == 0);
        CHECK(telpher_cache_free(cache) == 0);
        for (int i = 0; i < 8; i++) {
            pthread_join(threads[i], NULL);
            CHECK(holders[i].wrong == 0);
        }
        while (telpher_mover_outstanding(mover) > 0)
            CHECK(telpher_mover_drive(mover) == 0);
        CHECK(heap.obtained == heap.released);
    }
    free(source);
    free(expected);
}

struct policy {
    const unsigned char *source;
    int placed, valued;
};

static uint32_t by_parity(void *user, const void *start, size_t len, int32_t node) {
    struct policy *policy = user;
    policy->placed += node >= -1 && len <= BLOCK;
    const size_t block = (size_t)((const unsigned char *)start - policy->source) / BLOCK;
    return block % 2 ? UINT32_MAX : 0;
}

static uint64_t by_address(void *user, const telpher_resident *entry) {
    struct policy *policy = user;
    policy->valued += entry->size == BLOCK && entry->unread == 0;
    /* A higher address has a higher value. */
    return (uint64_t)((const unsigned char *)entry->address - policy->source);
}

static void a_cache_uses_the_callers_policies(void) {
    unsigned char *source = some(6);
    struct heap heaps[2] = {heap_of(3), heap_of(2)};
    struct policy own = {source, 0, 0};
    telpher_tier tiers[2] = {tier_of(&heaps[0]), tier_of(&heaps[1])};
    telpher_cache_policy policy = {.place = by_parity, .worth = by_address, .user = &own};
    telpher_cache *cache;
    telpher_entry *entry;
    CHECK(telpher_cache_new(&cache, mover, tiers, 2, &policy, NULL) == 0);
    const size_t order[] = {2, 0, 4, 1, 3, 5};
    for (int i = 0; i < 6; i++) {
        entry = access(cache, source + order[i] * BLOCK, BLOCK);
        CHECK(telpher_entry_wait(entry, -1) == 1);
        telpher_entry_free(entry);
    }
    /* Three even blocks fit. Of the odd blocks the one at the lowest address was evicted, regardless of the order of use. */
    CHECK(own.placed == 6 && own.valued == 2 && heaps[0].obtained == 3 && heaps[1].obtained == 3 && heaps[1].released == 1);
    const int there[] = {1, 0, 1, 1, 1, 1};
    for (size_t i = 0; i < 6; i++) {
        CHECK(telpher_cache_peek(cache, source + i * BLOCK, BLOCK, &entry) == there[i]);
        telpher_entry_free(entry);
    }
    /* telpher_cache_access_in overrides the policy. */
    CHECK(telpher_cache_access_in(cache, 1, source, BLOCK, &entry) == 0 && telpher_entry_wait(entry, -1) == 1);
    telpher_entry_free(entry);
    CHECK(telpher_cache_access_in(cache, 2, source, BLOCK, &entry) == -EINVAL && entry == NULL);
    CHECK(telpher_cache_invalidate(cache, source, 1) == 2);
    CHECK(telpher_cache_free(cache) == 0);
    CHECK(heaps[0].obtained == heaps[0].released && heaps[1].obtained == heaps[1].released);
    free(source);
}

static void options_select_placement_and_eviction(void) {
    unsigned char *source = some(4);
    for (int fixed = 0; fixed < 2; fixed++) {
        struct heap heaps[2] = {heap_of(2), heap_of(2)};
        telpher_tier tiers[2] = {tier_of(&heaps[0]), tier_of(&heaps[1])};
        telpher_cache *cache;
        CHECK(telpher_cache_new(&cache, mover, tiers, 2, NULL, fixed ? "placement=fixed:1 eviction=first-come" : "placement=interleaved:64k") == 0);
        for (size_t i = 0; i < 4; i++) {
            telpher_entry *entry = access(cache, source + i * BLOCK, BLOCK);
            CHECK(telpher_entry_wait(entry, -1) == 1);
            telpher_entry_free(entry);
        }
        /* Blocks are in one tier, with two evictions, or alternate between both tiers. */
        CHECK(heaps[0].obtained == (fixed ? 0 : 2) && heaps[1].obtained == (fixed ? 4 : 2));
        CHECK(stats_of(cache).evictions == (fixed ? 2 : 0));
        CHECK(telpher_cache_clear(cache) == (fixed ? 2 : 4));
        CHECK(telpher_cache_free(cache) == 0);
    }
    free(source);
}

static void the_caller_may_write_invalidated_blocks(void) {
    unsigned char *source = some(3), *before = some(3);
    telpher_cache *cache = cache_of(4, "in-flight=1");
    telpher_entry *old = access(cache, source, BLOCK), *untouched = access(cache, source + 2 * BLOCK, BLOCK);
    telpher_entry *wide = access(cache, source + BLOCK / 2, BLOCK);
    CHECK(telpher_entry_wait(old, -1) == 1);
    int fast;
    CHECK(telpher_entry_location(old, &fast) != source && fast == 1);
    /* The byte is in two entries. The copies of the three entries are in flight, complete, or not started. */
    CHECK(telpher_cache_invalidate(cache, source + BLOCK - 1, 1) == 2);
    memset(source, 0x11, 2 * BLOCK);
    CHECK(telpher_entry_stale(old) == 1 && telpher_entry_stale(wide) == 1 && telpher_entry_stale(untouched) == 0);
    CHECK(memcmp(telpher_entry_location(old, NULL), before, BLOCK) == 0);
    CHECK(telpher_entry_done(wide) == 1);
    telpher_entry *anew = access(cache, source, BLOCK);
    CHECK(telpher_entry_wait(anew, -1) == 1 && memcmp(telpher_entry_location(anew, NULL), source, BLOCK) == 0);
    CHECK(telpher_entry_wait(untouched, -1) == 1);
    CHECK(memcmp(telpher_entry_location(untouched, NULL), before + 2 * BLOCK, BLOCK) == 0);
    CHECK(telpher_cache_invalidate(cache, source, 3 * BLOCK) == 2 && telpher_cache_invalidate(cache, source, 3 * BLOCK) == 0);
    /* Handles with a complete copy do not need the source any more. */
    const int has = telpher_entry_location(old, &fast) != NULL && fast;
    telpher_entry_free(anew);
    telpher_entry_free(untouched);
    telpher_entry_free(wide);
    free(source);
    CHECK(has && memcmp(telpher_entry_location(old, NULL), before, BLOCK) == 0);
    telpher_entry_free(old);
    CHECK(telpher_cache_free(cache) == 0);
    free(before);
}

/* Blocks that are allocated, prefetched and freed at once: no copy reads them after telpher_cache_invalidate. */
static void a_block_may_be_freed_right_after_its_invalidation(void) {
    telpher_cache *cache = cache_of(4, "in-flight=2");
    for (int round = 0; round < 50; round++) {
        unsigned char *source = some(6);
        for (uint32_t i = 0; i < 6; i++)
            CHECK(telpher_cache_prefetch(cache, source + i * BLOCK, BLOCK, i, NULL) == 0);
        if (round % 3 == 0)
            CHECK(telpher_cache_clear(cache) >= 0);
        CHECK(telpher_cache_invalidate(cache, source, 6 * BLOCK) >= 0);
        free(source);
        CHECK(telpher_cache_drive(cache) == 0);
    }
    CHECK(stats_of(cache).entries == 0 && stats_of(cache).bytes == 0);
    CHECK(telpher_cache_free(cache) == 0);
}

struct worker {
    const telpher_cache *cache;
    const unsigned char *shared, *expected;
    unsigned seed, wrong;
};

#define SHARED 16

static void *work(void *argument) {
    struct worker *worker = argument;
    unsigned char *own = malloc(BLOCK);
    for (unsigned round = 0; round < 150; round++) {
        worker->seed = worker->seed * 1664525 + 1013904223;
        const size_t at = worker->seed % (SHARED * BLOCK - 1), left = SHARED * BLOCK - at;
        const size_t len = (worker->seed >> 8) % (left < 3 * BLOCK ? left : 3 * BLOCK) + 1;
        telpher_entry *entry, *other;
        worker->wrong += telpher_cache_prefetch(worker->cache, worker->shared + at / 2, len, round % 256, NULL) != 0;
        worker->wrong += telpher_cache_access(worker->cache, worker->shared + at, len, &entry) != 0;
        worker->wrong += memcmp(telpher_entry_location(entry, NULL), worker->expected + at, len) != 0;
        if (round % 4 == 0) {
            worker->wrong += telpher_entry_share(entry, &other) != 0;
            telpher_entry_free(entry);
            entry = other;
        }
        worker->wrong += telpher_entry_wait(entry, round % 2 ? -1 : 10 * 1000) < 0;
        worker->wrong += memcmp(telpher_entry_location(entry, NULL), worker->expected + at, len) != 0;
        telpher_entry_free(entry);
        /* A block that only this thread writes, between invalidations. */
        memset(own, (int)(round % 251), BLOCK);
        worker->wrong += telpher_cache_access(worker->cache, own, BLOCK, &entry) != 0;
        worker->wrong += telpher_entry_wait(entry, -1) != 1;
        const unsigned char *seen = telpher_entry_location(entry, NULL);
        worker->wrong += seen[0] != round % 251 || memcmp(seen, seen + 1, BLOCK - 1) != 0;
        telpher_entry_free(entry);
        worker->wrong += telpher_cache_invalidate(worker->cache, own, BLOCK) < 0;
    }
    free(own);
    return NULL;
}

static void threads_share_a_cache(void) {
    unsigned char *source = some(SHARED), *expected = some(SHARED);
    telpher_cache *cache = cache_of(8, "in-flight=4");
    struct worker workers[4];
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (struct worker){cache, source, expected, i + 1, 0};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK(workers[i].wrong == 0);
    }
    telpher_stats stats = stats_of(cache);
    CHECK(stats.hits + stats.misses == 4 * 150 * 2 && stats.copies > 0 && stats.evictions > 0);
    CHECK(telpher_cache_free(cache) == 0);
    free(source);
    free(expected);
}

static void wrong_arguments_return_an_errno(void) {
    unsigned char *source = some(1);
    telpher_cache *cache = (telpher_cache *)1;
    telpher_entry *entry = (telpher_entry *)1;
    telpher_prefetch *ahead = (telpher_prefetch *)1;
    telpher_stats stats;
    const telpher_tier good = {.size = BLOCK};
    telpher_tier tier = good;
    telpher_cache_policy policy = {.place = NULL};
    struct heap heap = heap_of(1);
    int fast = 7;
#define NEW(wanted, words) \
    CHECK(telpher_cache_new(&cache, mover, &tier, 1, NULL, NULL) == (wanted) && cache == NULL && says(words)); \
    tier = good
    CHECK(telpher_cache_new(NULL, mover, &tier, 1, NULL, NULL) == -EFAULT);
    CHECK(telpher_cache_new(&cache, NULL, &tier, 1, NULL, NULL) == -EFAULT && cache == NULL);
    CHECK(telpher_cache_new(&cache, mover, NULL, 1, NULL, NULL) == -EFAULT && says("tiers"));
    CHECK(telpher_cache_new(&cache, mover, NULL, 0, NULL, NULL) == -EINVAL && says("at least one tier"));
    tier.size = 0;
    NEW(-EINVAL, "no memory");
    tier.reserved = 1;
    NEW(-EINVAL, "reserved");
    tier.reserved2[2] = 1;
    NEW(-EINVAL, "reserved");
    tier.flags = 0x30;
    NEW(-EINVAL, "0x30");
    tier.obtain = obtain;
    NEW(-EFAULT, "release is NULL");
    tier.release = release;
    NEW(-EFAULT, "obtain is NULL");
    tier = tier_of(&heap);
    tier.flags = TELPHER_TIER_HUGE_PAGES;
    NEW(-EINVAL, "allows only the flag TELPHER_TIER_NEAR");
    tier.size = (uint64_t)1 << 62;
    CHECK(telpher_cache_new(&cache, mover, &tier, 1, NULL, NULL) < 0 && cache == NULL && says("cannot"));
    tier = good;
    tier.flags = TELPHER_TIER_ON_NODE;
    tier.node = 999;
    CHECK(telpher_cache_new(&cache, mover, &tier, 1, NULL, NULL) < 0 && cache == NULL && says("bind"));
    policy.reserved[4] = 1;
    CHECK(telpher_cache_new(&cache, mover, &good, 1, &policy, NULL) == -EINVAL && says("reserved"));
    CHECK(telpher_cache_new(&cache, mover, &good, 1, NULL, "placement=fixed:1") == -EINVAL && says("tier 1"));
    CHECK(telpher_cache_new(&cache, mover, &good, 1, NULL, "eviction=never") == -EINVAL && says("least-recently-used"));
    CHECK(telpher_cache_new(&cache, mover, &good, 1, NULL, "threshold=1") == -EINVAL && says("a cache has"));
    tier.flags = TELPHER_TIER_HUGE_PAGES | TELPHER_TIER_ABSENT | TELPHER_TIER_NEAR;
    CHECK(telpher_cache_new(&cache, mover, &tier, 1, NULL, "") == 0 && telpher_cache_free(cache) == 0);
    policy.reserved[4] = 0;
    CHECK(telpher_cache_new(&cache, mover, &good, 1, &policy, "") == 0);

    CHECK(telpher_cache_access(NULL, source, 1, &entry) == -EFAULT && entry == NULL);
    CHECK(telpher_cache_access(cache, source, 1, NULL) == -EFAULT && telpher_cache_peek(cache, source, 1, NULL) == -EFAULT);
    CHECK(telpher_cache_access(cache, NULL, 1, &entry) == -EFAULT && telpher_cache_prefetch(cache, NULL, 1, 0, &ahead) == -EFAULT);
    CHECK(telpher_cache_access(cache, source, 0, &entry) == -EINVAL && telpher_cache_prefetch(cache, source, 0, 0, NULL) == -EINVAL);
    CHECK(telpher_cache_access(cache, source, SIZE_MAX, &entry) == -EOVERFLOW && entry == NULL && ahead == NULL);
    CHECK(telpher_cache_peek(cache, source, SIZE_MAX - 4096, &entry) == -EOVERFLOW && entry == NULL);
    CHECK(telpher_cache_invalidate(cache, (void *)(UINTPTR_MAX - 7), 8) == -EOVERFLOW && telpher_cache_invalidate(cache, source, 0) == -EINVAL);
    CHECK(telpher_cache_prefetch(cache, source, 1, 256, &ahead) == -EINVAL && says("256") && ahead == NULL);
    CHECK(telpher_cache_apart(NULL, source, 1) == -EFAULT && telpher_cache_apart(cache, source, 0) == -EINVAL);
    CHECK(telpher_cache_apart(cache, source, SIZE_MAX) == -EOVERFLOW && telpher_cache_apart(cache, source, BLOCK) >= 0);
    CHECK(telpher_cache_stats(cache, NULL) == -EFAULT && telpher_cache_stats(NULL, &stats) == -EFAULT);
    CHECK(telpher_cache_flush(NULL) == -EFAULT && telpher_cache_clear(NULL) == -EFAULT && telpher_cache_drive(NULL) == -EFAULT);
    CHECK(telpher_entry_done(NULL) == -EFAULT && telpher_entry_stale(NULL) == -EFAULT && telpher_entry_wait(NULL, 0) == -EFAULT);
    CHECK(telpher_entry_share(NULL, &entry) == -EFAULT && telpher_prefetch_done(NULL) == -EFAULT);
    CHECK(telpher_entry_location(NULL, &fast) == NULL && fast == 0 && telpher_entry_size(NULL) == 0);
    entry = access(cache, source, BLOCK);
    CHECK(telpher_entry_wait(entry, -2) == -EINVAL && telpher_entry_wait(entry, INT64_MIN) == -EINVAL);
    CHECK(telpher_entry_wait(entry, INT64_MAX) == 1 && telpher_entry_share(entry, NULL) == -EFAULT);
    telpher_entry_free(entry);
    telpher_entry_free(NULL);
    telpher_prefetch_free(NULL);
    CHECK(telpher_prefetch_cancel(NULL) == 0 && telpher_cache_free(NULL) == 0 && telpher_cache_free(cache) == 0);
    CHECK(telpher_has("cache") == 1 && strstr(telpher_options_help(), "of a cache:") != NULL);
    free(source);
}

int main(int argc, char **argv) {
    const char *const runners[] = {"runner=inline", "runner=threaded", NULL};
    for (int i = 0; i < 3; i++) {
        /* On hardware there is one runner, the device. */
        const char *name = argc > 1 ? argv[1] : "model:spr";
        CHECK(telpher_device_open(&device, i < 2 ? name : "cpu", runners[i]) == 0);
        CHECK(telpher_mover_new(&mover, device, "threshold=4k") == 0);
        a_block_is_copied_once_and_shared();
        weak_accesses_copy_nothing_and_do_not_wait();
        prefetched_blocks_are_found_and_can_be_cancelled();
        a_cache_uses_the_callers_allocator();
        the_callers_memory_may_be_unaligned_and_run_out();
        a_cache_can_be_freed_while_its_entries_are_used();
        a_cache_uses_the_callers_policies();
        options_select_placement_and_eviction();
        the_caller_may_write_invalidated_blocks();
        a_block_may_be_freed_right_after_its_invalidation();
        threads_share_a_cache();
        wrong_arguments_return_an_errno();
        /* A cache stays valid when its mover and its device are gone. */
        unsigned char *source = some(1);
        telpher_cache *cache = cache_of(1, NULL);
        telpher_device_close(device);
        CHECK(telpher_mover_free(mover) == 0);
        telpher_entry *entry = access(cache, source, BLOCK);
        CHECK(telpher_entry_wait(entry, -1) == 1 && stats_of(cache).copies == 1);
        telpher_entry_free(entry);
        CHECK(telpher_cache_free(cache) == 0);
        free(source);
    }
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
