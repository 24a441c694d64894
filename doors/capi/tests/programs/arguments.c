/* Wrong arguments: each line of the table is a call that must return an errno with a message, without a crash. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <telpher.h>

static unsigned char a[8192] __attribute__((aligned(64))), b[8192], c[8192];
static int failures, lines;

static void expect(int line, const char *call, int got, int wanted) {
    lines++;
    const char *text = telpher_last_error();
    if (got != wanted || (got < 0 && *text == 0)) {
        printf("line %d: %s: returned %d (%s), wanted %d\n", line, call, got, text, wanted);
        failures++;
    }
}
#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))

static telpher_device *device;
static telpher_mover *mover;
static telpher_channel *channel;
static telpher_batch *batch;

/* The same operation through every interface. */
static void everywhere(int line, const char *what, telpher_op op, int wanted) {
    telpher_result result = {.status = 1};
    telpher_job *job = (telpher_job *)1;
    uint64_t ticket;
    expect(line, what, telpher_run(mover, &op, &result), wanted);
    if (result.status != wanted || result.outcome != TELPHER_FAILED || result.error == TELPHER_ERROR_NONE) {
        printf("line %d: %s: result %d, outcome %u, error %u\n", line, what, result.status, result.outcome, result.error);
        failures++;
    }
    expect(line, what, telpher_run(mover, &op, NULL), wanted);
    int started = telpher_start(mover, &op, &job);
    if (started == 0) {
        /* Errors that only the mover detects are in the job's result. */
        telpher_job_wait(job, -1);
        started = telpher_job_result(job, 0, NULL);
        telpher_job_free(job);
    } else if (job != NULL) {
        printf("line %d: %s: a handle of a job that was not begun\n", line, what);
        failures++;
    }
    expect(line, what, started, wanted);
    expect(line, what, telpher_channel_put(channel, &op, &ticket), wanted);
    telpher_batch *one;
    telpher_batch_new(mover, &one);
    int added = telpher_batch_add(one, &op);
    if (added >= 0 && telpher_batch_submit(one, &job) == 0) {
        telpher_job_wait(job, -1);
        added = telpher_job_result(job, 0, NULL);
        telpher_job_free(job);
    } else {
        telpher_batch_free(one);
    }
    expect(line, what, added, wanted);
}
#define EVERYWHERE(wanted, op) everywhere(__LINE__, #op, (op), (wanted))

static telpher_op with_flags(telpher_op op, uint32_t flags) {
    op.flags = flags;
    return op;
}

static telpher_op with_reserved(telpher_op op) {
    op.reserved[0] = 1;
    return op;
}

static const telpher_dif DIF = {0, 0, 0, 0};
static const telpher_tags TAGS = {0, 0, 0};

static void operations(void) {
    /* NULL. */
    EVERYWHERE(-EFAULT, telpher_op_copy(NULL, a, 64));
    EVERYWHERE(-EFAULT, telpher_op_copy(b, NULL, 64));
    EVERYWHERE(-EFAULT, telpher_op_move(NULL, NULL, 64));
    EVERYWHERE(-EFAULT, telpher_op_fill(NULL, 1, 64));
    EVERYWHERE(-EFAULT, telpher_op_compare(a, NULL, 64));
    EVERYWHERE(-EFAULT, telpher_op_compare_pattern(NULL, 1, 64));
    EVERYWHERE(-EFAULT, telpher_op_create_delta(NULL, 80, a, b, 64));
    EVERYWHERE(-EFAULT, telpher_op_apply_delta(a, 64, NULL, 10));
    EVERYWHERE(-EFAULT, telpher_op_dualcast(a, NULL, b, 64));
    EVERYWHERE(-EFAULT, telpher_op_crc(NULL, 64, 0));
    EVERYWHERE(-EFAULT, telpher_op_copy_crc(NULL, a, 64, 0));
    EVERYWHERE(-EFAULT, telpher_op_dif_check(NULL, 520, DIF, TAGS));
    EVERYWHERE(-EFAULT, telpher_op_dif_insert(NULL, 520, a, 512, DIF, TAGS));
    EVERYWHERE(-EFAULT, telpher_op_dif_strip(a, 512, NULL, 520, DIF, TAGS));
    EVERYWHERE(-EFAULT, telpher_op_dif_update(NULL, 520, a, 520, DIF, TAGS, TAGS));
    EVERYWHERE(-EFAULT, telpher_op_flush(NULL, 64));
    /* No bytes. */
    EVERYWHERE(-EINVAL, telpher_op_copy(b, a, 0));
    EVERYWHERE(-EINVAL, telpher_op_move(b, a, 0));
    EVERYWHERE(-EINVAL, telpher_op_fill(a, 1, 0));
    EVERYWHERE(-EINVAL, telpher_op_compare(a, b, 0));
    EVERYWHERE(-EINVAL, telpher_op_create_delta(c, 0, a, b, 64));
    EVERYWHERE(-EINVAL, telpher_op_apply_delta(a, 0, b, 10));
    EVERYWHERE(-EINVAL, telpher_op_dualcast(a, b, c, 0));
    EVERYWHERE(-EINVAL, telpher_op_crc(a, 0, 0));
    EVERYWHERE(-EINVAL, telpher_op_dif_insert(b, 0, a, 512, DIF, TAGS));
    EVERYWHERE(-EINVAL, telpher_op_flush(a, 0));
    /* Beyond the address space. */
    EVERYWHERE(-EOVERFLOW, telpher_op_copy(b, a, UINT64_MAX));
    EVERYWHERE(-EOVERFLOW, telpher_op_copy(b, a, (uint64_t)1 << 63));
    EVERYWHERE(-EOVERFLOW, telpher_op_move(b, a, UINT64_MAX - 4096));
    EVERYWHERE(-EOVERFLOW, telpher_op_fill((void *)(UINTPTR_MAX - 7), 1, 16));
    EVERYWHERE(-EOVERFLOW, telpher_op_compare(a, (void *)UINTPTR_MAX, 1));
    EVERYWHERE(-EOVERFLOW, telpher_op_crc((void *)((uintptr_t)1 << 62), 8, 0));
    EVERYWHERE(-EOVERFLOW, telpher_op_create_delta(c, UINT64_MAX, a, b, 64));
    EVERYWHERE(-EOVERFLOW, telpher_op_apply_delta(a, UINT64_MAX, b, 10));
    EVERYWHERE(-EOVERFLOW, telpher_op_dif_strip(b, UINT64_MAX, a, 520, DIF, TAGS));
    /* Overlapping ranges. */
    EVERYWHERE(-EINVAL, telpher_op_copy(a + 63, a, 64));
    EVERYWHERE(-EINVAL, telpher_op_copy(a, a + 63, 64));
    EVERYWHERE(-EINVAL, telpher_op_copy(a, a, 64));
    EVERYWHERE(-EINVAL, telpher_op_copy_crc(a + 1, a, 64, 0));
    EVERYWHERE(-EINVAL, telpher_op_dualcast(a, a + 32, b, 64));
    EVERYWHERE(-EINVAL, telpher_op_dualcast(a, b, a + 32, 64));
    EVERYWHERE(-EINVAL, telpher_op_dualcast(b, a, a + 32, 64));
    EVERYWHERE(-EINVAL, telpher_op_create_delta(a + 8, 80, a, b, 64));
    EVERYWHERE(-EINVAL, telpher_op_create_delta(b + 8, 80, a, b, 64));
    EVERYWHERE(-EINVAL, telpher_op_apply_delta(a, 64, a + 60, 10));
    EVERYWHERE(-EINVAL, telpher_op_dif_insert(a, 520, a + 512, 512, DIF, TAGS));
    EVERYWHERE(-EINVAL, telpher_op_dif_update(a, 520, a, 520, DIF, TAGS, TAGS));
    /* Lengths that do not fit. */
    EVERYWHERE(-EINVAL, telpher_op_create_delta(c, 80, a, b, 63));
    EVERYWHERE(-EINVAL, telpher_op_apply_delta(a, 64, b, 11));
    EVERYWHERE(-EINVAL, telpher_op_apply_delta(a, 63, b, 10));
    EVERYWHERE(-EINVAL, telpher_op_dif_check(a, 519, DIF, TAGS));
    EVERYWHERE(-EINVAL, telpher_op_dif_insert(b, 519, a, 512, DIF, TAGS));
    EVERYWHERE(-EINVAL, telpher_op_dif_strip(b, 513, a, 520, DIF, TAGS));
    EVERYWHERE(-EINVAL, telpher_op_dif_update(b, 1040, a, 520, DIF, TAGS, TAGS));
    /* Longer than the operation supports: refused before any byte is read. */
    EVERYWHERE(-EMSGSIZE, telpher_op_apply_delta((void *)4096, 64, (void *)((uintptr_t)1 << 33), (uint64_t)10 << 32));
    /* Invalid operations. */
    EVERYWHERE(-EINVAL, telpher_op_of(0x01));
    EVERYWHERE(-EINVAL, telpher_op_of(0x99));
    EVERYWHERE(-EINVAL, telpher_op_of(UINT32_MAX));
    EVERYWHERE(-EINVAL, with_flags(telpher_op_copy(b, a, 64), 0x80000000));
    EVERYWHERE(-EINVAL, with_flags(telpher_op_compare(b, a, 64), TELPHER_EXPECT_EQUAL | TELPHER_EXPECT_DIFFERENT));
    EVERYWHERE(-EINVAL, with_reserved(telpher_op_copy(b, a, 64)));
    EVERYWHERE(-EINVAL, telpher_op_dif_check(a, 520, ((telpher_dif){4, 0, 0, 0}), TAGS));
    EVERYWHERE(-EINVAL, telpher_op_dif_check(a, 520, ((telpher_dif){0, 1, 0, 0}), TAGS));
    EVERYWHERE(-EINVAL, telpher_op_dif_check(a, 520, ((telpher_dif){0, 0, 0, 1}), TAGS));
}

static void handles(void) {
    telpher_op op = telpher_op_copy(b, a, 64), drain = telpher_op_drain();
    telpher_queue_info info;
    telpher_result result;
    telpher_completion done[1];
    telpher_job *job = NULL;
    telpher_device *d;
    telpher_mover *m;
    telpher_channel *ch;
    uint32_t crc;
    char text[8];

    EXPECT(-EFAULT, telpher_device_open(NULL, "cpu", NULL));
    EXPECT(-EFAULT, telpher_device_open(&d, NULL, NULL));
    EXPECT(-EINVAL, telpher_device_open(&d, "gpu", NULL));
    EXPECT(-EINVAL, telpher_device_open(&d, "", NULL));
    EXPECT(-EINVAL, telpher_device_open(&d, "\xff\xfe", NULL));
    EXPECT(-ENOENT, telpher_device_open(&d, "model:/nonexistent.json", NULL));
    EXPECT(-EINVAL, telpher_device_open(&d, "cpu", "runner=fast"));
    EXPECT(-EINVAL, telpher_device_open(&d, "cpu", "threshold=4k"));
    EXPECT(0, d != NULL);
    EXPECT(-EFAULT, telpher_device_queues(NULL));
    EXPECT(-EFAULT, telpher_device_queue(NULL, 0, &info));
    EXPECT(-EFAULT, telpher_device_queue(device, 0, NULL));
    EXPECT(-EINVAL, telpher_device_queue(device, 1000, &info));
    EXPECT(-EINVAL, telpher_device_skipped(device, 0, text, sizeof text));
    telpher_device_close(NULL);

    EXPECT(-EFAULT, telpher_mover_new(NULL, device, NULL));
    EXPECT(-EINVAL, telpher_mover_new(&m, device, "threshold=lots"));
    EXPECT(-EINVAL, telpher_mover_new(&m, device, "queues=7-9"));
    EXPECT(-EINVAL, telpher_mover_new(&m, NULL, "\xff=1"));
    EXPECT(-EFAULT, telpher_mover_option(NULL, "wait", text, sizeof text));
    EXPECT(-EINVAL, telpher_mover_option(mover, "colour", text, sizeof text));
    EXPECT(-EFAULT, telpher_mover_option(mover, NULL, text, sizeof text));
    EXPECT(-EFAULT, telpher_mover_option(mover, "wait", NULL, 1));
    EXPECT(6, telpher_mover_option(mover, "threshold", text, 4)); /* "always", truncated to "alw" */
    EXPECT(0, strcmp(text, "alw"));
    EXPECT(-EFAULT, telpher_mover_outstanding(NULL));
    EXPECT(-EFAULT, telpher_mover_drive(NULL));
    EXPECT(0, telpher_mover_free(NULL));

    EXPECT(-EFAULT, telpher_copy(NULL, b, a, 64));
    EXPECT(-EFAULT, telpher_copy(mover, NULL, a, 64));
    EXPECT(-EFAULT, telpher_copy(mover, b, NULL, 64));
    EXPECT(-EINVAL, telpher_copy(mover, b, a, 0));
    EXPECT(-EINVAL, telpher_copy(mover, a + 1, a, 64));
    EXPECT(-EINVAL, telpher_copy(mover, a, a + 1, 8000));
    EXPECT(-EOVERFLOW, telpher_copy(mover, b, a, SIZE_MAX));
    EXPECT(-EOVERFLOW, telpher_copy(mover, (void *)(UINTPTR_MAX - 8), a, 64));
    EXPECT(-EFAULT, telpher_move(NULL, b, a, 64));
    EXPECT(-EFAULT, telpher_fill(mover, NULL, 1, 64));
    EXPECT(-EFAULT, telpher_compare(mover, a, NULL, 64, NULL));
    EXPECT(-EFAULT, telpher_crc32c(mover, a, 64, 0, NULL));
    EXPECT(-EFAULT, telpher_crc32c(mover, NULL, 64, 0, &crc));
    EXPECT(-EINVAL, telpher_copy_crc32c(mover, a + 8, a, 64, 0, &crc));
    EXPECT(-EFAULT, telpher_run(NULL, &op, &result));
    EXPECT(-EFAULT, telpher_run(mover, NULL, &result));

    EXPECT(-EFAULT, telpher_start(NULL, &op, &job));
    EXPECT(-EFAULT, telpher_start(mover, NULL, &job));
    EXPECT(-EFAULT, telpher_start(mover, &op, NULL));
    EXPECT(-EFAULT, telpher_job_done(NULL));
    EXPECT(-EFAULT, telpher_job_wait(NULL, 0));
    EXPECT(-EFAULT, telpher_job_results(NULL));
    EXPECT(-EFAULT, telpher_job_result(NULL, 0, &result));
    EXPECT(0, telpher_job_free(NULL));
    EXPECT(0, telpher_job_abandon(NULL));
    EXPECT(0, telpher_start(mover, &op, &job));
    EXPECT(-EINVAL, telpher_job_wait(job, -2));
    EXPECT(-EINVAL, telpher_job_wait(job, INT64_MIN));
    EXPECT(1, telpher_job_wait(job, INT64_MAX));
    EXPECT(0, telpher_job_result(job, 0, NULL));
    EXPECT(-EINVAL, telpher_job_result(job, 1, &result));
    EXPECT(-EINVAL, telpher_job_result(job, UINT32_MAX, &result));
    EXPECT(0, telpher_job_free(job));

    EXPECT(-EFAULT, telpher_batch_new(NULL, &batch));
    EXPECT(-EFAULT, telpher_batch_new(mover, NULL));
    EXPECT(0, telpher_batch_new(mover, &batch));
    EXPECT(-EFAULT, telpher_batch_add(NULL, &op));
    EXPECT(-EFAULT, telpher_batch_add(batch, NULL));
    EXPECT(-EOPNOTSUPP, telpher_batch_add(batch, &drain));
    EXPECT(-EFAULT, telpher_batch_submit(NULL, &job));
    EXPECT(-EFAULT, telpher_batch_submit(batch, NULL)); /* and the batch stays valid */
    EXPECT(0, telpher_batch_add(batch, &op));
    telpher_batch_free(batch);
    telpher_batch_free(NULL);

    EXPECT(-EFAULT, telpher_channel_new(NULL, device, 0, 8, NULL));
    EXPECT(-EFAULT, telpher_channel_new(&ch, NULL, 0, 8, NULL));
    EXPECT(-EINVAL, telpher_channel_new(&ch, device, 99, 8, NULL));
    EXPECT(-EINVAL, telpher_channel_new(&ch, device, 0, 8, "order=random"));
    EXPECT(-EFAULT, telpher_channel_put(NULL, &op, NULL));
    EXPECT(-EFAULT, telpher_channel_put(channel, NULL, NULL));
    EXPECT(-EFAULT, telpher_channel_raw(channel, NULL, 0, NULL));
    EXPECT(-EFAULT, telpher_channel_submit(NULL));
    EXPECT(-EFAULT, telpher_channel_completed(NULL, done, 1));
    EXPECT(-EFAULT, telpher_channel_completed(channel, NULL, 1));
    EXPECT(0, telpher_channel_completed(channel, NULL, 0));
    EXPECT(-EFAULT, telpher_channel_pending(NULL));
    EXPECT(-EFAULT, telpher_channel_quarantined(NULL));
    EXPECT(0, telpher_channel_free(NULL));

    EXPECT(-EFAULT, telpher_result_text(NULL, text, sizeof text));
    EXPECT(-EFAULT, telpher_result_text(&result, NULL, 8));
    EXPECT(0, telpher_has(NULL));
    EXPECT(0, telpher_has("teleport"));
    EXPECT(0, telpher_has("\xff"));
    EXPECT(1, telpher_has("channel"));

    /* A full ring returns -EAGAIN, without other effects. */
    int put = 0;
    while ((put = telpher_channel_put(channel, &op, NULL)) == 0)
        ;
    EXPECT(-EAGAIN, put);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "model:spr";
    /* Every operation goes to the device, so that no refusal is hidden by the CPU. */
    telpher_device *second;
    if (telpher_device_open(&device, name, NULL) || telpher_mover_new(&mover, device, "threshold=always") ||
        telpher_device_open(&second, name, NULL) || telpher_channel_new(&channel, second, 0, 8, NULL)) {
        printf("%s: %s\n", name, telpher_last_error());
        return 1;
    }
    telpher_mover *other = (telpher_mover *)1;
    telpher_queue_info info;
    EXPECT(0, telpher_device_queue(device, 0, &info));
    if (info.dedicated) {
        EXPECT(-EBUSY, telpher_mover_new(&other, device, "queues=0"));
        EXPECT(1, other == NULL);
        EXPECT(-EBUSY, telpher_mover_new(&other, second, NULL));
    }
    operations();
    handles();
    EXPECT(0, telpher_channel_free(channel));
    EXPECT(0, telpher_mover_free(mover));
    /* The queue is free again. */
    EXPECT(0, telpher_mover_new(&other, device, "queues=0"));
    EXPECT(0, telpher_mover_free(other));
    EXPECT(-EINVAL, telpher_channel_new(&channel, device, 0, 0, NULL));
    EXPECT(-EINVAL, telpher_channel_new(&channel, device, 0, UINT32_MAX, NULL));
    telpher_device_close(device);
    telpher_device_close(second);
    printf("%d wrong arguments, %d not answered as they should be\n", lines, failures);
    return failures != 0;
}
