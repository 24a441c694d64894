/* A queue that accepts everything and never completes (telpher run --inject lose=100%): waits end, no memory is returned that a device
 * may still write, and the handles that refer to it stay valid. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <telpher.h>

#define LEN 8192

static int failures;

static void fail(int line, const char *what) {
    printf("line %d: %s (%s)\n", line, what, telpher_last_error());
    failures++;
}
#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

int main(int argc, char **argv) {
    /* Never freed: a device may still write them. */
    static unsigned char src[LEN], dst[LEN], other[LEN];
    telpher_device *device;
    telpher_mover *mover;
    telpher_channel *channel;
    telpher_completion done;
    telpher_job *job;
    telpher_op op = telpher_op_copy(dst, src, LEN);
    op.user_data = 42;
    if (telpher_device_open(&device, argc > 1 ? argv[1] : "hw:wq0.0", NULL)) {
        printf("%s\n", telpher_last_error());
        return 1;
    }

    CHECK(telpher_channel_new(&channel, device, 0, 4, "deadline=5ms linger=20ms") == 0);
    CHECK(telpher_channel_put(channel, &op, NULL) == 0 && telpher_channel_submit(channel) == 1);
    while (telpher_channel_completed(channel, &done, 1) == 0)
        ;
    CHECK(done.user_data == 42 && done.result.status == -ETIMEDOUT && done.result.error == TELPHER_ERROR_DEADLINE);
    CHECK(done.result.at == 5000000);
    CHECK(telpher_channel_pending(channel) == 0 && telpher_channel_quarantined(channel) == 1);
    CHECK(telpher_channel_free(channel) == -EBUSY && *telpher_last_error() != 0);
    /* The handle is still valid. */
    CHECK(telpher_channel_quarantined(channel) == 1 && telpher_channel_put(channel, &op, NULL) == 0);

    /* To get the memory back the caller retries the free: the limit ends it. */
    telpher_channel *given_up;
    telpher_device *again;
    int busy = 0, freed;
    CHECK(telpher_device_open(&again, argc > 1 ? argv[1] : "hw:wq0.0", NULL) == 0);
    CHECK(telpher_channel_new(&given_up, again, 0, 4, "deadline=5ms linger=20ms limit=200ms") == 0);
    CHECK(telpher_channel_put(given_up, &op, NULL) == 0 && telpher_channel_submit(given_up) == 1);
    while ((freed = telpher_channel_free(given_up)) == -EBUSY)
        busy++;
    CHECK(freed == 0 && busy > 0);
    telpher_device_close(again);

    CHECK(telpher_mover_new(&mover, device, "threshold=4k linger=20ms") == 0);
    CHECK(telpher_start(mover, &op, &job) == 0);
    CHECK(telpher_job_wait(job, 0) == 0 && telpher_job_wait(job, 10 * 1000 * 1000) == 0);
    CHECK(telpher_job_results(job) == 0 && telpher_job_result(job, 0, NULL) == -EAGAIN);
    CHECK(telpher_job_abandon(job) == 0 && telpher_mover_outstanding(mover) == 1);
    CHECK(telpher_mover_free(mover) == -EBUSY);
    CHECK(telpher_mover_outstanding(mover) == 1 && telpher_mover_drive(mover) == 0);
    /* Work of the CPU continues. */
    CHECK(telpher_fill(mover, other, 0x0505050505050505, 1000) == 0 && other[999] == 5);

    /* A cache's waits end as well: at the limit its queue is abandoned, and the CPU continues. */
    telpher_mover *late;
    telpher_cache *cache;
    telpher_entry *kept, *dropped;
    const telpher_tier tier = {.size = 4 * LEN};
    int fast;
    CHECK(telpher_device_open(&again, argc > 1 ? argv[1] : "hw:wq0.0", NULL) == 0);
    CHECK(telpher_mover_new(&late, again, "threshold=4k linger=20ms limit=200ms") == 0);
    CHECK(telpher_cache_new(&cache, late, &tier, 1, NULL, NULL) == 0);
    CHECK(telpher_cache_access(cache, src, LEN, &kept) == 0 && telpher_cache_access(cache, other, LEN, &dropped) == 0);
    CHECK(telpher_entry_wait(kept, 10 * 1000 * 1000) == 0 && telpher_entry_location(kept, &fast) == src && fast == 0);
    telpher_entry_free(dropped);
    CHECK(telpher_cache_flush(cache) == 1 && telpher_mover_outstanding(late) == 1);
    CHECK(telpher_cache_invalidate(cache, other, LEN) == 0 && telpher_mover_outstanding(late) == 0);
    CHECK(telpher_entry_wait(kept, -1) == 1 && telpher_entry_location(kept, &fast) != src && fast == 1);
    CHECK(telpher_cache_free(cache) == 0 && telpher_mover_free(late) == 0);
    CHECK(memcmp(telpher_entry_location(kept, NULL), src, LEN) == 0 && telpher_entry_stale(kept) == 1);
    telpher_entry_free(kept);
    telpher_device_close(again);
    telpher_device_close(device);
    printf("%d failed\n", failures);
    return failures != 0;
}
