/* The rules between submit and complete: abandoned jobs, time limits, handles that outlive each other, threads on one mover,
 * raw descriptors. */
#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEN (256 * 1024)

static const char *device_name;

static unsigned char *some(int seed) {
    unsigned char *bytes = malloc(LEN);
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (unsigned char)(i * 13 + (size_t)seed);
    return bytes;
}

static void a_job_outlives_its_mover_and_its_device(void) {
    telpher_device *device;
    telpher_mover *mover;
    telpher_job *job;
    telpher_result result;
    unsigned char *src = some(1), *dst = some(2);
    CHECK(telpher_device_open(&device, device_name, "runner=threaded") == 0);
    CHECK(telpher_mover_new(&mover, device, "threshold=always") == 0);
    telpher_op op = telpher_op_copy(dst, src, LEN);
    CHECK(telpher_start(mover, &op, &job) == 0);
    telpher_device_close(device);
    CHECK(telpher_mover_free(mover) == 0);
    while (telpher_job_wait(job, 1000) == 0)
        ;
    CHECK(telpher_job_result(job, 0, &result) == 0 && result.via == TELPHER_VIA_DEVICE);
    CHECK(telpher_job_free(job) == 0 && memcmp(src, dst, LEN) == 0);
    free(src);
    free(dst);
}

/* Each byte is old or new, and does not change: an abandoned operation is done, or never will be. */
static int is_settled(const unsigned char *src, unsigned char *dst, const unsigned char *before, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (dst[i] != src[i] && dst[i] != before[i])
            return 0;
    memset(dst, 0x55, len);
    for (size_t i = 0; i < len; i++)
        if (dst[i] != 0x55)
            return 0;
    return 1;
}

static void abandoned_jobs_are_counted_until_the_device_has_answered(void) {
    telpher_device *device;
    telpher_mover *mover;
    unsigned char *src = some(3), *dst = some(4), *before = some(4);
    CHECK(telpher_device_open(&device, device_name, NULL) == 0);
    CHECK(telpher_mover_new(&mover, device, "threshold=always") == 0);
    for (int i = 0; i < 10; i++) {
        telpher_job *job;
        telpher_op op = telpher_op_copy(dst + i * 4096, src + i * 4096, 4096);
        CHECK(telpher_start(mover, &op, &job) == 0);
        CHECK(telpher_job_abandon(job) == 0);
    }
    while (telpher_mover_outstanding(mover) > 0)
        CHECK(telpher_mover_drive(mover) == 0);
    CHECK(is_settled(src, dst, before, 10 * 4096));
    /* The same for a batch. */
    memcpy(dst, before, LEN);
    telpher_batch *batch;
    telpher_job *job;
    telpher_op op = telpher_op_copy(dst, src, LEN);
    CHECK(telpher_batch_new(mover, &batch) == 0 && telpher_batch_add(batch, &op) == 0);
    op = telpher_op_nop();
    CHECK(telpher_batch_add(batch, &op) == 1 && telpher_batch_submit(batch, &job) == 0);
    CHECK(telpher_job_abandon(job) == 0);
    CHECK(telpher_mover_free(mover) == 0); /* waits for it */
    CHECK(is_settled(src, dst, before, LEN));
    telpher_device_close(device);
    free(src);
    free(dst);
    free(before);
}

static void a_batch_keeps_its_order_at_fences(void) {
    telpher_device *device;
    telpher_mover *mover;
    unsigned char *bytes[40];
    CHECK(telpher_device_open(&device, device_name, "runner=threaded") == 0);
    CHECK(telpher_mover_new(&mover, device, "threshold=always") == 0);
    for (int i = 0; i < 40; i++)
        bytes[i] = some(i);
    telpher_batch *batch;
    telpher_job *job;
    CHECK(telpher_batch_new(mover, &batch) == 0);
    /* Each member copies the previous one's result; longer than one descriptor list of the queue. */
    for (int i = 1; i < 40; i++) {
        telpher_op op = telpher_op_copy(bytes[i], bytes[i - 1], LEN);
        op.flags = TELPHER_FENCE;
        CHECK(telpher_batch_add(batch, &op) == i - 1);
    }
    CHECK(telpher_batch_submit(batch, &job) == 0);
    CHECK(telpher_job_result(job, 0, NULL) == 0 || telpher_job_results(job) == 0);
    CHECK(telpher_job_wait(job, -1) == 1 && telpher_job_results(job) == 39);
    for (uint32_t i = 0; i < 39; i++)
        CHECK(telpher_job_result(job, i, NULL) == 0);
    CHECK(telpher_job_free(job) == 0);
    CHECK(memcmp(bytes[39], bytes[0], LEN) == 0);
    for (int i = 0; i < 40; i++)
        free(bytes[i]);
    CHECK(telpher_mover_free(mover) == 0);
    telpher_device_close(device);
}

struct worker {
    const telpher_mover *mover;
    int seed, wrong;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    unsigned char *src = some(worker->seed), *dst = some(worker->seed + 1);
    for (int round = 0; round < 200; round++) {
        size_t len = (size_t)(round * 1237 % 60000 + 1);
        telpher_job *job;
        telpher_op op = telpher_op_copy(dst, src, len);
        memset(dst, 0, len);
        worker->wrong += telpher_start(worker->mover, &op, &job) != 0;
        worker->wrong += telpher_job_wait(job, -1) != 1;
        worker->wrong += telpher_job_result(job, 0, NULL) != 0;
        worker->wrong += telpher_job_free(job) != 0;
        worker->wrong += memcmp(src, dst, len) != 0;
        worker->wrong += telpher_copy(worker->mover, NULL, src, len) != -EFAULT;
        worker->wrong += strcmp(telpher_last_error(), "the destination is NULL") != 0;
    }
    free(src);
    free(dst);
    return NULL;
}

static void threads_share_a_mover(void) {
    telpher_device *device;
    telpher_mover *mover;
    struct worker workers[4];
    pthread_t threads[4];
    CHECK(telpher_device_open(&device, device_name, "runner=threaded") == 0);
    CHECK(telpher_mover_new(&mover, device, "threshold=8k") == 0);
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){mover, i * 10, 0};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK(workers[i].wrong == 0);
    }
    CHECK(telpher_mover_free(mover) == 0);
    telpher_device_close(device);
}

static void a_channel_submits_raw_descriptors(void) {
    telpher_device *device;
    telpher_channel *channel;
    telpher_completion done;
    unsigned char *src = some(5), *dst = some(6);
    CHECK(telpher_device_open(&device, device_name, NULL) == 0);
    CHECK(telpher_channel_new(&channel, device, 0, 4, "order=arrival") == 0);
    /* A memory move (SPEC 8.3.3) by hand, at an odd address. */
    unsigned char room[65], *descriptor = room + 1;
    const uint32_t opcode_and_flags = 0x03000000, len = 4096;
    memset(room, 0, sizeof room);
    memcpy(descriptor + 4, &opcode_and_flags, 4);
    memcpy(descriptor + 16, &src, 8);
    memcpy(descriptor + 24, &dst, 8);
    memcpy(descriptor + 32, &len, 4);
    uint64_t ticket = 99;
    CHECK(telpher_channel_raw(channel, descriptor, 1234, &ticket) == 0 && ticket == 0);
    CHECK(telpher_channel_submit(channel) <= 1 && telpher_channel_pending(channel) == 1);
    while (telpher_channel_completed(channel, &done, 1) == 0)
        ; /* which sends it if the queue was full */
    CHECK(done.user_data == 1234 && done.ticket == 0 && done.has_record == 1 && done.record[0] == 1);
    CHECK(memcmp(src, dst, 4096) == 0 && memcmp(src, dst, 4097) != 0);
    /* An unmapped source is reported by the device; the CPU does not access it. */
    const uint64_t nowhere = 0x10000;
    memcpy(descriptor + 16, &nowhere, 8);
    CHECK(telpher_channel_raw(channel, descriptor, 5, NULL) == 0 && telpher_channel_submit(channel) >= 0);
    while (telpher_channel_completed(channel, &done, 1) == 0)
        ;
    CHECK(done.result.status == -EFAULT && done.result.error == TELPHER_ERROR_FAULT && done.result.write == 0);
    CHECK(done.result.address >> 12 == nowhere >> 12 && done.result.bytes == 0);
    char text[128];
    CHECK(telpher_result_text(&done.result, text, sizeof text) > 0 && strncmp(text, "page fault on a read at 0x10000", 31) == 0);
    CHECK(telpher_channel_free(channel) == 0);
    telpher_device_close(device);
    free(src);
    free(dst);
}

static void freeing_a_channel_completes_prepared_operations(void) {
    telpher_device *device;
    telpher_channel *channel;
    unsigned char *src = some(7), *dst = some(8);
    CHECK(telpher_device_open(&device, device_name, "runner=threaded") == 0);
    CHECK(telpher_channel_new(&channel, device, 0, 16, "bursts=off") == 0);
    for (int i = 0; i < 16; i++) {
        telpher_op op = telpher_op_copy(dst + i * 4096, src + i * 4096, 4096);
        CHECK(telpher_channel_put(channel, &op, NULL) == 0);
    }
    CHECK(telpher_channel_pending(channel) == 16);
    CHECK(telpher_channel_free(channel) == 0); /* neither submitted nor fetched */
    CHECK(memcmp(src, dst, 16 * 4096) == 0);
    telpher_device_close(device);
    free(src);
    free(dst);
}

/* More completions than the caller fetches at once keep their own data, also when their slots have new operations. */
static void each_completion_keeps_its_own_data(void) {
    telpher_device *device;
    telpher_channel *channel;
    unsigned char *src = some(9), *dst = some(10);
    uint64_t put = 0, fetched = 0;
    CHECK(telpher_device_open(&device, device_name, NULL) == 0);
    CHECK(telpher_channel_new(&channel, device, 0, 8, NULL) == 0);
    while (fetched < 200) {
        telpher_op op = telpher_op_copy(dst, src, 64);
        op.user_data = put * 3;
        uint64_t ticket;
        while (put < 200 && telpher_channel_put(channel, &op, &ticket) == 0) {
            CHECK(ticket == put);
            op.user_data = ++put * 3;
            telpher_channel_submit(channel);
        }
        telpher_completion done[3];
        int n = telpher_channel_completed(channel, done, 3);
        for (int i = 0; i < n; i++) {
            CHECK(done[i].ticket == fetched && done[i].user_data == fetched * 3);
            fetched++;
        }
    }
    CHECK(telpher_channel_pending(channel) == 0 && telpher_channel_free(channel) == 0);
    telpher_device_close(device);
    free(src);
    free(dst);
}

static void the_library_reports_its_version_and_features(void) {
    telpher_device *device;
    telpher_queue_info info;
    char text[64];
    snprintf(text, sizeof text, "%d.%d.%d", TELPHER_VERSION_MAJOR, TELPHER_VERSION_MINOR, TELPHER_VERSION_PATCH);
    CHECK(strcmp(text, telpher_version()) == 0);
    CHECK(telpher_version_number() == TELPHER_VERSION_NUMBER);
    CHECK(telpher_has("model") == 1 && telpher_has("hw") == 1 && telpher_has("") == 0);
    CHECK(strstr(telpher_options_help(), "threshold") != NULL && telpher_options_help() == telpher_options_help());
    CHECK(telpher_device_open(&device, device_name, NULL) == 0);
    CHECK(telpher_device_queues(device) > 0 && telpher_device_queue(device, 0, &info) == 0);
    CHECK(strncmp(info.name, "wq0.", 4) == 0 && info.size > 0 && info.max_transfer >= 1 << 20);
    CHECK((info.operations & (uint64_t)1 << TELPHER_COPY) != 0 && (info.operations & (uint64_t)1 << 63) == 0);
    telpher_device_close(device);
    CHECK(telpher_device_open(&device, "cpu", NULL) == 0 && telpher_device_queues(device) == 0);
    telpher_device_close(device);
}

int main(int argc, char **argv) {
    device_name = argc > 1 ? argv[1] : "model:spr";
    the_library_reports_its_version_and_features();
    a_job_outlives_its_mover_and_its_device();
    abandoned_jobs_are_counted_until_the_device_has_answered();
    a_batch_keeps_its_order_at_fences();
    threads_share_a_mover();
    a_channel_submits_raw_descriptors();
    freeing_a_channel_completes_prepared_operations();
    each_completion_keeps_its_own_data();
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
