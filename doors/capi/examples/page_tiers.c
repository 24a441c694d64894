/* A program's hot pages move to a faster tier while another thread counts in them; addresses and contents do not change.
 *
 *     cc page_tiers.c $(pkg-config --cflags --libs telpher) -pthread -o page_tiers && ./page_tiers model:spr
 *
 * Here both tiers are the machine's only memory. With HBM on node 1: {.name = "hbm", .flags = TELPHER_TIER_ON_NODE, .node = 1, ...}.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <telpher.h>

#define PAGES 2048
#define WORDS (4096 / sizeof(uint64_t))
#define ROUNDS 50

static int check(int result) {
    if (result < 0) {
        fprintf(stderr, "page_tiers: %s\n", telpher_last_error());
        exit(1);
    }
    return result;
}

/* Increments the first word of every page, repeatedly. */
static void *count(void *memory) {
    uint64_t *words = memory;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t page = 0; page < PAGES; page++)
            words[page * WORDS]++;
    return NULL;
}

int main(int argc, char **argv) {
    telpher_device *device;
    telpher_mover *mover;
    telpher_tier_heap *heap;
    telpher_tier_arena *arena;
    telpher_tier_options tiers[2] = {{.name = "fast", .size = 16 << 20}, {.name = "slow"}};
    check(telpher_device_open(&device, argc > 1 ? argv[1] : "model:spr", NULL));
    check(telpher_mover_new(&mover, device, "threshold=16k"));
    check(telpher_tier_heap_new(&heap, mover, tiers, 2, NULL));
    check(telpher_tier_arena_new(&arena, heap, PAGES * 4096, 0));
    uint64_t *words = telpher_tier_arena_memory(arena, NULL);
    for (size_t page = 0; page < PAGES; page++)
        words[page * WORDS] = page + 1;

    pthread_t counts;
    if (pthread_create(&counts, NULL, count, words) != 0)
        return 1;
    /* The first half is hot. A thread that touches a page being moved waits for it. */
    telpher_tier_moved moved;
    check(telpher_tier_migrate(heap, words, PAGES / 2 * 4096, 0, &moved));
    pthread_join(counts, NULL);

    uint64_t on[2], wrong = 0;
    check(telpher_tier_residency(heap, words, PAGES * 4096, on, 2));
    for (size_t page = 0; page < PAGES; page++)
        wrong += words[page * WORDS] != page + 1 + ROUNDS;
    printf("%llu pages moved; %llu fast, %llu slow, %llu wrong\n", (unsigned long long)moved.pages, (unsigned long long)on[0],
           (unsigned long long)on[1], (unsigned long long)wrong);

    telpher_tier_arena_free(arena);
    telpher_tier_heap_free(heap);
    check(telpher_mover_free(mover));
    telpher_device_close(device);
    return 0;
}
