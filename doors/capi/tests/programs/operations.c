/* Every operation through every interface, by a device and by the CPU, compared with naive loops. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <telpher.h>

#define LEN 40000
#define BLOCKS 9

static unsigned char a[LEN], b[LEN], wanted[LEN], pages[3 * 8192] __attribute__((aligned(4096)));
static int failures, checks;

enum way { RUN, START, BATCH, CHANNEL, WAYS };
static const char *const WAY[] = {"run", "start", "batch", "channel"};
static enum way way;
static const char *place;

static telpher_mover *mover;
static telpher_channel *channel;

static void fail(int line, const char *what) {
    printf("line %d, %s on %s: %s\n", line, WAY[way], place, what);
    failures++;
}
#define CHECK(condition) (checks++, (condition) ? (void)0 : fail(__LINE__, #condition))

/* Executes one operation through the current interface and returns its result. */
static telpher_result go(telpher_op op) {
    telpher_result result;
    memset(&result, 0x55, sizeof result);
    telpher_job *job = NULL;
    telpher_batch *batch = NULL;
    telpher_completion done;
    int n = 0;
    switch (way) {
    case RUN:
        telpher_run(mover, &op, &result);
        break;
    case START:
        if (telpher_start(mover, &op, &job) < 0)
            fail(__LINE__, telpher_last_error());
        while (telpher_job_done(job) == 0)
            ;
        telpher_job_result(job, 0, &result);
        telpher_job_free(job);
        break;
    case BATCH:
        telpher_batch_new(mover, &batch);
        if (telpher_batch_add(batch, &op) != 0)
            fail(__LINE__, telpher_last_error());
        telpher_batch_submit(batch, &job);
        if (telpher_job_wait(job, -1) != 1 || telpher_job_results(job) != 1)
            fail(__LINE__, "the batch has not ended");
        telpher_job_result(job, 0, &result);
        telpher_job_free(job);
        break;
    default:
        op.user_data = 77;
        if (telpher_channel_put(channel, &op, NULL) < 0) {
            fail(__LINE__, telpher_last_error());
            break;
        }
        telpher_channel_submit(channel);
        while ((n = telpher_channel_completed(channel, &done, 1)) == 0)
            telpher_channel_submit(channel);
        if (n != 1 || done.user_data != 77)
            fail(__LINE__, "another completion");
        result = done.result;
    }
    return result;
}

static uint32_t crc32c(uint32_t crc, const unsigned char *p, size_t n) {
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

/* The guard of a block: CRC-16/T10-DIF. */
static uint16_t guard(const unsigned char *p, size_t n) {
    uint16_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        crc ^= (uint16_t)(p[i] << 8);
        for (int k = 0; k < 8; k++)
            crc = (uint16_t)(crc << 1 ^ (crc & 0x8000 ? 0x8bb7 : 0));
    }
    return crc;
}

static void scramble(void) {
    for (size_t i = 0; i < LEN; i++) {
        a[i] = (unsigned char)(i * 31 + i / 256);
        b[i] = (unsigned char)(i * 17 + 3);
    }
}

static void moving(void) {
    scramble();
    CHECK(go(telpher_op_copy(b + 5, a + 3, 30001)).outcome == TELPHER_DONE);
    CHECK(memcmp(b + 5, a + 3, 30001) == 0 && b[4] == 4 * 17 + 3);

    scramble();
    CHECK(go(telpher_op_copy_durable(b + 5, a + 3, 30001)).outcome == TELPHER_DONE);
    CHECK(memcmp(b + 5, a + 3, 30001) == 0 && b[4] == 4 * 17 + 3);

    const int shifts[] = {1, 4096, 29999, -1, -4096, -29999, 30001, -30001, 0};
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++) {
        int from = shifts[i] < 0 ? LEN - 30000 : 0, to = from + shifts[i];
        if (to < 0 || to + 30000 > LEN)
            to = from < to ? LEN - 30000 : 0;
        scramble();
        memcpy(wanted, a, LEN);
        memmove(wanted + to, wanted + from, 30000);
        CHECK(go(telpher_op_move(a + to, a + from, 30000)).outcome == TELPHER_DONE);
        CHECK(memcmp(a, wanted, LEN) == 0);
    }
    /* Without overlap it is a copy. */
    scramble();
    CHECK(go(telpher_op_move(b, a, LEN)).outcome == TELPHER_DONE && memcmp(a, b, LEN) == 0);

    scramble();
    CHECK(go(telpher_op_fill(a + 1, 0x0807060504030201, 10003)).outcome == TELPHER_DONE);
    for (size_t i = 0; i < 10003; i++)
        if (a[1 + i] != i % 8 + 1) {
            fail(__LINE__, "fill");
            break;
        }
    CHECK(a[10004] == (unsigned char)(10004 * 31 + 10004 / 256));

    const uint64_t pattern[2] = {0x0807060504030201, 0x100f0e0d0c0b0a09};
    CHECK(go(telpher_op_fill16(a, pattern, 10007)).outcome == TELPHER_DONE);
    for (size_t i = 0; i < 10007; i++)
        if (a[i] != i % 16 + 1) {
            fail(__LINE__, "fill16");
            break;
        }

    /* Destinations whose addresses agree in their low 12 bits, and others, which the CPU handles. */
    scramble();
    CHECK(go(telpher_op_dualcast(pages, pages + 8192, a, 8000)).outcome == TELPHER_DONE);
    CHECK(memcmp(pages, a, 8000) == 0 && memcmp(pages + 8192, a, 8000) == 0);
    CHECK(go(telpher_op_dualcast(pages + 7, pages + 8192, b, 8000)).outcome == TELPHER_DONE);
    CHECK(memcmp(pages + 7, b, 8000) == 0 && memcmp(pages + 8192, b, 8000) == 0);
    CHECK(go(telpher_op_prefetch_pages(a, LEN)).outcome == TELPHER_DONE);
    CHECK(go(telpher_op_flush(a, LEN)).outcome == TELPHER_DONE);
    CHECK(go(telpher_op_nop()).outcome == TELPHER_DONE);
}

static void comparing(void) {
    scramble();
    memcpy(b, a, LEN);
    CHECK(go(telpher_op_compare(a, b, LEN)).outcome == TELPHER_EQUAL);
    b[23456]++;
    telpher_result result = go(telpher_op_compare(a, b, LEN));
    CHECK(result.outcome == TELPHER_DIFFERENT && result.at == 23456 && result.status == 0);
    memset(a, 9, LEN);
    CHECK(go(telpher_op_compare_pattern(a, 0x0909090909090909, LEN)).outcome == TELPHER_EQUAL);
    a[10101] = 8;
    result = go(telpher_op_compare_pattern(a, 0x0909090909090909, LEN));
    CHECK(result.outcome == TELPHER_DIFFERENT && result.at <= 10101 && result.at > 10101 - 8);

    scramble();
    telpher_op crc = telpher_op_crc(a, LEN, 0);
    result = go(crc);
    CHECK(result.outcome == TELPHER_CRC_VALUE && result.crc == crc32c(0, a, LEN));
    CHECK(go(telpher_op_crc(a + 100, 9001, crc32c(0, a, 100))).crc == crc32c(0, a, 9101));
    crc.flags = TELPHER_CRC_BYPASS_DATA_REFLECT | TELPHER_CRC_BYPASS_INVERT_REFLECT;
    CHECK(go(crc).crc != result.crc);
    result = go(telpher_op_copy_crc(b, a, LEN, 0));
    CHECK(result.crc == crc32c(0, a, LEN) && memcmp(a, b, LEN) == 0);
}

static void deltas(void) {
    static unsigned char delta[LEN / 8 * 10];
    scramble();
    memcpy(b, a, LEN);
    CHECK(go(telpher_op_create_delta(delta, sizeof delta, a, b, LEN)).outcome == TELPHER_DELTA_IDENTICAL);
    for (size_t i = 5; i < LEN; i += 1000)
        b[i] ^= 0xff;
    telpher_result result = go(telpher_op_create_delta(delta, sizeof delta, a, b, LEN));
    CHECK(result.outcome == TELPHER_DELTA_COMPLETE && result.bytes == 40 * 10);
    CHECK(go(telpher_op_apply_delta(a, LEN, delta, result.bytes)).outcome == TELPHER_DONE);
    CHECK(memcmp(a, b, LEN) == 0);
    scramble();
    result = go(telpher_op_create_delta(delta, 80, a, b, LEN));
    CHECK(result.outcome == TELPHER_DELTA_OVERFLOW && result.bytes == 80 && result.at < LEN);
    /* An entry beyond the destination. */
    memset(delta, 0xff, 10);
    result = go(telpher_op_apply_delta(a, 64, delta, 10));
    CHECK(result.status == -EBADMSG && result.error == TELPHER_ERROR_BAD_DELTA);
}

static void integrity(void) {
    static unsigned char blocks[BLOCKS * 512], protected_[BLOCKS * 520], others[BLOCKS * 520], back[BLOCKS * 512];
    const telpher_dif dif = {0, 0, 0, 0};
    const telpher_tags tags = {1000, 0x1234, 0}, new_tags = {7, 0x4321, 0};
    scramble();
    memcpy(blocks, a, sizeof blocks);
    telpher_result result = go(telpher_op_dif_insert(protected_, sizeof protected_, blocks, sizeof blocks, dif, tags));
    CHECK(result.outcome == TELPHER_DIF_DONE && result.new_tags.ref_tag == 1000 + BLOCKS);
    for (size_t i = 0; i < BLOCKS; i++) {
        const unsigned char *tuple = protected_ + i * 520 + 512;
        uint16_t g = guard(blocks + i * 512, 512);
        uint32_t ref = (uint32_t)(1000 + i);
        const unsigned char naive[8] = {(unsigned char)(g >> 8),    (unsigned char)g,          0x12, 0x34,
                                        (unsigned char)(ref >> 24), (unsigned char)(ref >> 16), (unsigned char)(ref >> 8),
                                        (unsigned char)ref};
        CHECK(memcmp(tuple, naive, 8) == 0 && memcmp(tuple - 512, blocks + i * 512, 512) == 0);
    }
    CHECK(go(telpher_op_dif_check(protected_, sizeof protected_, dif, tags)).outcome == TELPHER_DIF_DONE);
    result = go(telpher_op_dif_update(others, sizeof others, protected_, sizeof protected_, dif, tags, new_tags));
    CHECK(result.outcome == TELPHER_DIF_DONE && result.tags.ref_tag == 1000 + BLOCKS && result.new_tags.ref_tag == 7 + BLOCKS);
    result = go(telpher_op_dif_strip(back, sizeof back, others, sizeof others, dif, new_tags));
    CHECK(result.outcome == TELPHER_DIF_DONE && memcmp(back, blocks, sizeof blocks) == 0);
    static unsigned char tuples[BLOCKS * 8];
    result = go(telpher_op_dix_generate(tuples, sizeof tuples, blocks, sizeof blocks, dif, tags));
    CHECK(result.outcome == TELPHER_DIF_DONE && result.new_tags.ref_tag == 1000 + BLOCKS);
    for (size_t i = 0; i < BLOCKS; i++)
        CHECK(memcmp(tuples + i * 8, protected_ + i * 520 + 512, 8) == 0);
    protected_[4 * 520 + 100] ^= 1;
    result = go(telpher_op_dif_check(protected_, sizeof protected_, dif, tags));
    CHECK(result.outcome == TELPHER_DIF_MISMATCH && result.at == 4 * 520 && result.device_status != 0 && result.status == 0);
}

/* Conversions, computations, and blocks that a list names. */
static void numbers(void) {
    const telpher_arithmetic add = {TELPHER_INT16, TELPHER_INT16, TELPHER_ADD, TELPHER_SIGNED | TELPHER_SATURATE};
    static int16_t x[2000], y[2000], sum[2000], sum2[2000];
    for (int i = 0; i < 2000; i++)
        x[i] = (int16_t)(i * 31), y[i] = (int16_t)(i * -17);
    x[7] = y[7] = 30000;
    telpher_result result = go(telpher_op_reduce(sum, sizeof sum, x, y, sizeof x, add));
    CHECK(result.outcome == TELPHER_COMPUTED && (result.device_status & TELPHER_OVERFLOW) && sum[7] == 32767);
    for (int i = 0; i < 2000; i++) {
        int wanted_sum = x[i] + y[i];
        CHECK(sum[i] == (wanted_sum > 32767 ? 32767 : wanted_sum < -32768 ? -32768 : wanted_sum));
    }
    result = go(telpher_op_reduce_dualcast(sum, sum2, sizeof sum, x, y, sizeof x, add));
    CHECK(result.outcome == TELPHER_COMPUTED && memcmp(sum, sum2, sizeof sum) == 0 && sum[7] == 32767);

    const telpher_arithmetic to_half = {TELPHER_FP32, TELPHER_FP16, 0, TELPHER_ROUND_TOWARD_ZERO};
    static float singles[1000];
    static uint16_t halves[1000];
    for (int i = 0; i < 1000; i++)
        singles[i] = i == 0 ? 1.0f : i == 1 ? 1e30f : 0.5f;
    result = go(telpher_op_convert(halves, sizeof halves, singles, sizeof singles, to_half));
    CHECK(result.outcome == TELPHER_COMPUTED && result.device_status == TELPHER_OVERFLOW);
    CHECK(halves[0] == 0x3c00 && halves[1] == 0x7bff && halves[999] == 0x3800);

    /* A channel refuses an operation before there is a result. */
    if (way == CHANNEL)
        return;
    result = go(telpher_op_convert(halves, sizeof halves, singles, sizeof singles - 4, to_half));
    CHECK(result.status == -EINVAL && result.error == TELPHER_ERROR_LENGTHS);
    const telpher_arithmetic mixed = {TELPHER_INT32, TELPHER_FP32, TELPHER_ADD, 0};
    result = go(telpher_op_convert(sum, sizeof sum, x, sizeof x, mixed));
    CHECK(result.status == -EINVAL && result.error == TELPHER_ERROR_OPTIONS);
}

static void lists(void) {
    static uint32_t list[50];
    static unsigned char part[50 * 40];
    scramble();
    memcpy(wanted, b, LEN);
    for (uint32_t i = 0; i < 50; i++)
        list[i] = (i * 7 + 3) % 1000;
    telpher_result result = go(telpher_op_gather(part, sizeof part, a, LEN, list, sizeof list, 40, TELPHER_LIST_INDEX32));
    CHECK(result.outcome == TELPHER_DONE);
    for (int i = 0; i < 50; i++) {
        CHECK(memcmp(part + i * 40, a + list[i] * 40, 40) == 0);
        memcpy(wanted + list[i] * 40, part + i * 40, 40);
    }
    result = go(telpher_op_scatter(b, LEN, part, sizeof part, list, sizeof list, 40, TELPHER_LIST_INDEX32));
    CHECK(result.outcome == TELPHER_DONE && memcmp(b, wanted, LEN) == 0);
    result = go(telpher_op_scatter_fill(b, LEN, list, sizeof list, 40, TELPHER_LIST_INDEX32, 0x0505050505050505));
    for (int i = 0; i < 50; i++)
        memset(wanted + list[i] * 40, 5, 40);
    CHECK(result.outcome == TELPHER_DONE && memcmp(b, wanted, LEN) == 0);

    const telpher_arithmetic xor_ = {TELPHER_INT8, TELPHER_INT8, TELPHER_XOR, 0};
    unsigned char folded[40], naive[40] = {0};
    for (int i = 0; i < 50; i++)
        for (int k = 0; k < 40; k++)
            naive[k] ^= a[list[i] * 40 + (uint32_t)k];
    result = go(telpher_op_gather_reduce(folded, sizeof folded, a, LEN, list, sizeof list, 40, TELPHER_LIST_INDEX32, xor_));
    CHECK(result.outcome == TELPHER_COMPUTED && memcmp(folded, naive, sizeof folded) == 0);

    if (way == CHANNEL)
        return;
    list[30] = LEN / 40;
    result = go(telpher_op_gather(part, sizeof part, a, LEN, list, sizeof list, 40, TELPHER_LIST_INDEX32));
    CHECK(result.status == -EINVAL && result.error == TELPHER_ERROR_OUTSIDE && result.at == 30);
}

static void longer_checksums(void) {
    telpher_result result = go(telpher_op_crc64("123456789", 9, 0));
    CHECK(result.outcome == TELPHER_CRC64_VALUE && result.crc64 == 0xae8b14860a799888);
    scramble();
    uint64_t first = go(telpher_op_crc64(a, 100, 0)).crc64, whole = go(telpher_op_copy_crc64(b, a, LEN, 0)).crc64;
    CHECK(memcmp(a, b, LEN) == 0 && go(telpher_op_crc64(a + 100, LEN - 100, first)).crc64 == whole);
}

/* The synchronous functions. */
static void synchronous_calls(void) {
    uint64_t at = 0;
    uint32_t crc = 0;
    scramble();
    for (size_t len = 1; len < LEN; len = len * 3 + 1) {
        memset(b, 0, LEN);
        CHECK(telpher_copy(mover, b, a, len) == 0 && memcmp(a, b, len) == 0 && b[len] == 0);
        CHECK(telpher_compare(mover, a, b, len, NULL) == 0);
        b[len - 1] ^= 1;
        CHECK(telpher_compare(mover, a, b, len, &at) == 1 && at == len - 1);
        CHECK(telpher_crc32c(mover, a, len, 5, &crc) == 0 && crc == crc32c(5, a, len));
        CHECK(telpher_copy_crc32c(mover, b, a, len, 0, &crc) == 0 && crc == crc32c(0, a, len) && memcmp(a, b, len) == 0);
        CHECK(telpher_fill(mover, b, 0x1111111111111111, len) == 0 && b[0] == 0x11 && b[len - 1] == 0x11);
        CHECK(telpher_copy(mover, b, a, len) == 0 && telpher_move(mover, b + 1, b, len) == 0);
        CHECK(memcmp(b + 1, a, len) == 0);
    }
}

/* A drain asks every queue; without one there is nothing to wait for. */
static void draining(void) {
    CHECK(go(telpher_op_drain()).outcome == TELPHER_DONE);
    way = CHANNEL;
    CHECK(go(telpher_op_drain()).outcome == TELPHER_DONE);
}

int main(int argc, char **argv) {
    const char *device_name = argc > 1 ? argv[1] : "model:spr";
    telpher_device *device, *second;
    if (telpher_device_open(&device, device_name, NULL) || telpher_device_open(&second, device_name, "runner=threaded") ||
        telpher_channel_new(&channel, second, 0, 8, NULL)) {
        printf("%s: %s\n", device_name, telpher_last_error());
        return 1;
    }
    const struct {
        const char *name;
        const telpher_device *device;
        const char *options;
    } places[] = {
        {"the CPU", NULL, NULL},
        {"a device", device, "threshold=always"},
        {"either", device, "threshold=4k on-fault=finish-on-cpu wait=spin hint=cache"},
    };
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        place = places[p].name;
        if (telpher_mover_new(&mover, places[p].device, places[p].options)) {
            printf("%s: %s\n", place, telpher_last_error());
            return 1;
        }
        for (way = RUN; way < WAYS; way++) {
            moving();
            comparing();
            deltas();
            integrity();
            numbers();
            lists();
            longer_checksums();
        }
        way = RUN;
        synchronous_calls();
        draining();
        CHECK(telpher_mover_free(mover) == 0);
    }
    CHECK(telpher_channel_pending(channel) == 0);
    CHECK(telpher_channel_free(channel) == 0);
    telpher_device_close(device);
    telpher_device_close(second);
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
