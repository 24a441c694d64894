/* Prices that one thread changes while others add them up from copies in fast memory: each sum is of the version that its reader
 * holds. Then a block that is modified in fast memory, and copied back where it differs.
 *
 *     cc versioned.c $(pkg-config --cflags --libs telpher) -o versioned && ./versioned model:spr
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <telpher.h>

enum { PRICES = 100000, BLOCK = 20000, CHANGES = 50, READERS = 3 };

static unsigned char prices[PRICES];
static telpher_versioned *versioned;

static int check(int result) {
    if (result < 0) {
        fprintf(stderr, "versioned: %s\n", telpher_last_error());
        exit(1);
    }
    return result;
}

/* Every price is the number of the version. */
static void *change(void *unused) {
    (void)unused;
    for (int version = 1; version <= CHANGES; version++) {
        telpher_writing *writing;
        check(telpher_versioned_write(versioned, -1, &writing));
        memset(prices, version, sizeof prices);
        telpher_writing_end(writing);
    }
    return NULL;
}

static void *add_up(void *wrong) {
    for (uint64_t version = 0; version < CHANGES;) {
        telpher_reading *reading;
        check(telpher_versioned_read(versioned, -1, &reading));
        check(telpher_reading_version(reading, &version));
        uint64_t sum = 0;
        for (size_t offset = 0; offset < PRICES; offset += BLOCK) {
            telpher_entry *entry;
            check(telpher_reading_access(reading, offset, BLOCK, &entry));
            check(telpher_entry_wait(entry, -1));
            const unsigned char *const block = telpher_entry_location(entry, NULL);
            for (size_t i = 0; i < BLOCK; i++)
                sum += block[i];
            telpher_entry_free(entry);
        }
        *(int *)wrong += sum != version * PRICES;
        check(telpher_reading_end(reading));
    }
    return NULL;
}

int main(int argc, char **argv) {
    telpher_device *device;
    telpher_mover *mover;
    telpher_cache *cache;
    telpher_tier fast = {.size = 2 * PRICES};
    check(telpher_device_open(&device, argc > 1 ? argv[1] : "model:spr", NULL));
    check(telpher_mover_new(&mover, device, "threshold=16k"));
    check(telpher_cache_new(&cache, mover, &fast, 1, NULL, NULL));
    check(telpher_versioned_new(&versioned, cache, prices, sizeof prices));

    pthread_t writer, readers[READERS];
    int wrong[READERS] = {0}, all_wrong = 0;
    pthread_create(&writer, NULL, change, NULL);
    for (int i = 0; i < READERS; i++)
        pthread_create(&readers[i], NULL, add_up, &wrong[i]);
    pthread_join(writer, NULL);
    for (int i = 0; i < READERS; i++) {
        pthread_join(readers[i], NULL);
        all_wrong += wrong[i];
    }
    uint64_t version;
    check(telpher_versioned_version(versioned, &version));
    printf("%llu versions, %d sums of another one\n", (unsigned long long)version, all_wrong);
    /* Before the cache: the bytes are lent until then. */
    check(telpher_versioned_free(versioned));
    check(telpher_cache_free(cache));

    telpher_pool *pool;
    telpher_write_back *block;
    telpher_synced synced;
    void *bytes;
    check(telpher_pool_new(&pool, &fast));
    check(telpher_write_back_fetch(&block, mover, pool, prices, sizeof prices));
    check(telpher_write_back_write(block, 50000, 20000, &bytes));
    memset(bytes, 7, 10);
    check(telpher_write_back_sync(block, TELPHER_FIND_DIFFERING, &synced));
    printf("%d bytes written, %llu compared, %llu copied back; price 50000 is %d\n", 10, (unsigned long long)synced.compared,
           (unsigned long long)synced.copied, prices[50000]);
    telpher_write_back_free(block);
    telpher_pool_free(pool);
    check(telpher_mover_free(mover));
    telpher_device_close(device);
    return 0;
}
