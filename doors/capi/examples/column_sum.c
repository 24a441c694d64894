/* select sum(b) where a < 50, with b prefetched: while column a is filtered, a device copies the blocks of b to fast memory.
 *
 *     cc column_sum.c $(pkg-config --cflags --libs telpher) -o column_sum && ./column_sum model:spr
 *
 * On a machine with HBM the tier is bound to its node: .flags = TELPHER_TIER_ON_NODE, .node = 8.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <telpher.h>

#define ROWS (1024 * 1024)
#define BLOCK_ROWS (16 * 1024)
#define BLOCKS (ROWS / BLOCK_ROWS)

static int check(int result) {
    if (result < 0) {
        fprintf(stderr, "column_sum: %s\n", telpher_last_error());
        exit(1);
    }
    return result;
}

int main(int argc, char **argv) {
    telpher_device *device;
    telpher_mover *mover;
    telpher_cache *cache;
    telpher_tier fast = {.size = ROWS * sizeof(int32_t)};
    check(telpher_device_open(&device, argc > 1 ? argv[1] : "model:spr", NULL));
    check(telpher_mover_new(&mover, device, "threshold=16k"));
    check(telpher_cache_new(&cache, mover, &fast, 1, NULL, NULL));

    int32_t *a = malloc(ROWS * sizeof *a), *b = malloc(ROWS * sizeof *b);
    unsigned char *selected = malloc(BLOCK_ROWS);
    if (a == NULL || b == NULL || selected == NULL)
        return 1;
    for (int32_t row = 0; row < ROWS; row++) {
        a[row] = row * 7 % 100;
        b[row] = row % 1000;
    }

    /* From here until its invalidation b must not be written. The first blocks have the highest priority. */
    for (uint32_t block = 0; block < BLOCKS; block++)
        check(telpher_cache_prefetch(cache, b + block * BLOCK_ROWS, BLOCK_ROWS * sizeof *b, 255 - block, NULL));

    int64_t rows = 0, sum = 0;
    for (size_t block = 0; block < BLOCKS; block++) {
        const int32_t *const part = a + block * BLOCK_ROWS;
        for (size_t row = 0; row < BLOCK_ROWS; row++)
            selected[row] = part[row] < 50;

        telpher_entry *entry;
        check(telpher_cache_access(cache, b + block * BLOCK_ROWS, BLOCK_ROWS * sizeof *b, &entry));
        check(telpher_entry_wait(entry, -1));
        /* The copy, or the source if there was no memory for one. */
        const int32_t *const values = telpher_entry_location(entry, NULL);
        for (size_t row = 0; row < BLOCK_ROWS; row++) {
            rows += selected[row];
            sum += selected[row] ? values[row] : 0;
        }
        telpher_entry_free(entry);
    }

    telpher_stats stats;
    check(telpher_cache_stats(cache, &stats));
    printf("%lld of %d rows, sum %lld, %llu of %d blocks fetched ahead\n", (long long)rows, ROWS, (long long)sum,
           (unsigned long long)stats.hits, BLOCKS);

    /* Freed first: the blocks are lent until then. */
    check(telpher_cache_free(cache));
    free(a);
    free(b);
    free(selected);
    check(telpher_mover_free(mover));
    telpher_device_close(device);
    return 0;
}
