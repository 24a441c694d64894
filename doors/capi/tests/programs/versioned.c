/* Bytes that change: readers and writers keep each other away, and blocks are copied back as announced. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { LEN = 100000 };

static unsigned char data[LEN], home[LEN];

static void readers_and_writers_keep_each_other_away(const telpher_mover *mover) {
    telpher_cache *cache;
    telpher_versioned *versioned;
    telpher_reading *first, *second;
    telpher_writing *writing, *other;
    telpher_entry *entry, *shared;
    uint64_t version = 9;
    telpher_tier fast = {.size = 2 * LEN};
    CHECK(telpher_cache_new(&cache, mover, &fast, 1, NULL, NULL) == 0);
    CHECK(telpher_versioned_new(&versioned, cache, data, 0) == -EINVAL && versioned == NULL);
    CHECK(telpher_versioned_new(&versioned, NULL, data, LEN) == -EFAULT);
    CHECK(telpher_versioned_new(&versioned, cache, NULL, LEN) == -EFAULT);
    CHECK(telpher_versioned_new(&versioned, cache, data, LEN) == 0);
    CHECK(telpher_versioned_version(versioned, &version) == 0 && version == 0);
    CHECK(telpher_versioned_version(versioned, NULL) == -EFAULT);
    CHECK(telpher_versioned_read(versioned, -2, &first) == -EINVAL && first == NULL);
    CHECK(telpher_versioned_read(versioned, -1, NULL) == -EFAULT);
    CHECK(telpher_versioned_read(versioned, -1, &first) == 1 && telpher_versioned_read(versioned, 0, &second) == 1);
    CHECK(telpher_versioned_write(versioned, 1000, &writing) == 0 && writing == NULL);
    CHECK(telpher_reading_access(first, LEN - 10, 11, &entry) == -EINVAL && says("not inside"));
    CHECK(telpher_reading_access(first, SIZE_MAX, 2, &entry) == -EINVAL && telpher_reading_access(first, 0, 0, &entry) == -EINVAL);
    CHECK(telpher_reading_access(first, 10, 50000, &entry) == 0 && telpher_entry_share(entry, &shared) == 0);
    CHECK(telpher_entry_wait(entry, -1) == 1 && memcmp(telpher_entry_location(entry, NULL), data + 10, 50000) == 0);
    CHECK(telpher_reading_end(second) == 0);
    /* Handles to its entries keep the reading, and with it the bytes. */
    CHECK(telpher_reading_end(first) == -EBUSY && says("free them first"));
    telpher_entry_free(entry);
    CHECK(telpher_reading_end(first) == -EBUSY && telpher_versioned_write(versioned, 0, &writing) == 0);
    telpher_entry_free(shared);
    CHECK(telpher_reading_end(first) == 0 && telpher_reading_end(NULL) == 0);
    CHECK(telpher_versioned_write(versioned, -1, &writing) == 1);
    CHECK(telpher_versioned_read(versioned, 1000, &first) == 0 && telpher_versioned_write(versioned, 0, &other) == 0);
    /* An entry that is created in spite of the header's rule is not found by readers. */
    CHECK(telpher_cache_access(cache, data + 10, 50000, &entry) == 0 && telpher_entry_wait(entry, -1) == 1);
    telpher_entry_free(entry);
    data[20] ^= 1;
    telpher_writing_end(writing);
    telpher_writing_end(NULL);
    CHECK(telpher_versioned_read(versioned, -1, &first) == 1);
    CHECK(telpher_reading_version(first, &version) == 0 && version == 1);
    CHECK(telpher_reading_access(first, 10, 50000, &entry) == 0 && telpher_entry_wait(entry, -1) == 1);
    CHECK(memcmp(telpher_entry_location(entry, NULL), data + 10, 50000) == 0);
    telpher_entry_free(entry);
    CHECK(telpher_reading_end(first) == 0);
    CHECK(telpher_versioned_free(versioned) == 0 && telpher_versioned_free(NULL) == 0);
    CHECK(telpher_cache_free(cache) == 0);
}

static void blocks_are_copied_back_as_announced(const telpher_mover *mover) {
    telpher_pool *pool;
    telpher_write_back *block, *second;
    telpher_synced synced;
    void *bytes;
    telpher_tier fast = {.size = LEN + 4096}, wrong = {.size = 0};
    CHECK(telpher_pool_new(&pool, &wrong) == -EINVAL && pool == NULL);
    CHECK(telpher_pool_new(&pool, &fast) == 0);
    CHECK(telpher_write_back_fetch(&block, mover, pool, home, 0) == -EINVAL && block == NULL);
    CHECK(telpher_write_back_fetch(&block, mover, pool, home, LEN) == 0);
    CHECK(telpher_write_back_fetch(&second, mover, pool, data, LEN) == -ENOMEM && says("contiguous free bytes"));
    CHECK(memcmp(telpher_write_back_bytes(block), home, LEN) == 0 && telpher_write_back_unsynced(block) == 0);
    CHECK(telpher_write_back_write(block, LEN, 1, &bytes) == -EINVAL);
    CHECK(telpher_write_back_write(block, SIZE_MAX, 1, &bytes) == -EINVAL && says("not inside the block"));
    CHECK(telpher_write_back_write(block, 0, 10, NULL) == -EFAULT);
    CHECK(telpher_write_back_write(block, 50000, 10, &bytes) == 0);
    memset(bytes, 7, 10);
    CHECK(home[50000] != 7 && telpher_write_back_unsynced(block) == 4096);
    CHECK(telpher_write_back_sync(block, 3, &synced) == -EINVAL && says("not 3"));
    CHECK(telpher_write_back_sync(block, TELPHER_FIND_WRITTEN, &synced) == 0 && synced.copied == 4096 && synced.compared == 0);
    CHECK(home[50000] == 7 && home[50009] == 7 && telpher_write_back_unsynced(block) == 0);
    CHECK(telpher_write_back_write(block, 0, 3 * 4096, &bytes) == 0);
    ((unsigned char *)bytes)[4096] ^= 1;
    CHECK(telpher_write_back_sync(block, TELPHER_FIND_DIFFERING, &synced) == 0 && synced.compared == 3 * 4096 && synced.copied == 4096);
    home[90000] ^= 1;
    CHECK(telpher_write_back_sync(block, TELPHER_FIND_ANYWHERE, &synced) == 0 && synced.copied == 4096);
    CHECK(memcmp(telpher_write_back_bytes(block), home, LEN) == 0 && telpher_write_back_sync(block, 0, NULL) == 0);
    CHECK(telpher_write_back_bytes(NULL) == NULL && telpher_write_back_unsynced(NULL) == 0);
    telpher_pool_free(pool);
    telpher_write_back_free(block);
    telpher_write_back_free(NULL);
    telpher_pool_free(NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    telpher_device *device;
    telpher_mover *mover;
    for (int i = 0; i < LEN; i++)
        data[i] = home[i] = (unsigned char)(i * 11 + 2);
    CHECK(telpher_device_open(&device, argv[1], NULL) == 0);
    CHECK(telpher_mover_new(&mover, device, "threshold=always") == 0);
    readers_and_writers_keep_each_other_away(mover);
    blocks_are_copied_back_as_announced(mover);
    CHECK(telpher_mover_free(mover) == 0);
    telpher_device_close(device);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
