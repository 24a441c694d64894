/* Operations of random bytes: for any fields the result is 0 or an errno, and no byte outside of the named destinations
 * changes. Pointers are NULL, wild with lengths that must be refused, or into one arena, where they may overlap. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <telpher.h>

#define ARENA 8192
#define ROUNDS 40000

static unsigned char arena[ARENA], before[ARENA];
static uint64_t state = 0x9e3779b97f4a7c15; /* the seed: the same operations in every run */

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t below(uint64_t n) {
    return next() % n;
}

/* A pointer such that len bytes are in the arena; or NULL sometimes. */
static unsigned char *pointer(uint64_t len) {
    return below(40) == 0 ? NULL : arena + below(ARENA - len + 1);
}

static telpher_op some(void) {
    static const uint32_t opcodes[] = {0x00, 0x02, 0x03, 0x04, 0x05, 0x06,  0x07,  0x08, 0x09, 0x10,
                                       0x11, 0x12, 0x13, 0x14, 0x15, 0x20, 0x103, 0x104, 0x01, 0x77,  0x17,  0x18, 0x19, 0x1a,
                                       0x1b, 0x1c, 0x1d, 0x1e, 0x110, 0x111, 0x203};
    telpher_op op;
    for (size_t i = 0; i < sizeof op; i++)
        ((unsigned char *)&op)[i] = (unsigned char)next();
    memset(op.reserved, below(20) == 0, sizeof op.reserved);
    op.opcode = opcodes[below(sizeof opcodes / sizeof *opcodes)];
    op.flags &= below(20) == 0 ? 0xff : 0x3f;
    op.arithmetic.input %= 11;
    op.arithmetic.output %= 11;
    op.arithmetic.compute %= 9;
    op.block = (uint32_t)below(70);
    op.src2_len = 4 * below(20);
    op.dif.block = (uint8_t)below(5);
    op.dif.flags &= 0xc;
    op.dif.dest &= 0xf8;
    /* Valid lengths, and invalid lengths. */
    static const uint64_t units[] = {1, 8, 10, 512, 520, 528, 64};
    uint64_t unit = units[below(7)];
    op.len = unit * below(2048 / unit + 1);
    op.dst_len = below(3) == 0 ? op.len : below(3) == 0 ? op.len / 512 * 520 : below(2048);
    op.src = pointer(2048);
    op.src2 = pointer(2048);
    op.dst = pointer(2048);
    op.dst2 = pointer(2048);
    /* A list with entries of which most name blocks of the memory. */
    if (below(2) && op.src2 != NULL) {
        uint32_t entry[20];
        for (size_t i = 0; i < 20; i++)
            entry[i] = (uint32_t)below(op.len / (op.block + 1) + 2);
        memcpy((void *)op.src2, entry, sizeof entry);
        op.flags |= 0x20;
        if (below(2))
            op.dst_len = op.src2_len / 4 * op.block;
    }
    switch (below(60)) {
    case 0:
        op.len = UINT64_MAX - below(4096);
        op.dst_len = op.len;
        break;
    case 1:
        op.src = op.src2 = (void *)(UINTPTR_MAX - below(64));
        op.dst = op.dst2 = (void *)op.src;
        op.dst_len = op.len += 64;
        break;
    default:
        break;
    }
    return op;
}

static int inside(const telpher_op *op, size_t i) {
    uint64_t own = op->opcode == TELPHER_CREATE_DELTA || op->opcode == TELPHER_APPLY_DELTA || op->opcode == TELPHER_DIF_INSERT ||
                   op->opcode == TELPHER_DIF_STRIP || op->opcode == TELPHER_DIF_UPDATE ||
                   (op->opcode >= TELPHER_DIX_GENERATE && op->opcode <= TELPHER_SCATTER_FILL);
    uint64_t len = own ? op->dst_len : op->len;
    uintptr_t at = (uintptr_t)(arena + i), dst = (uintptr_t)op->dst, dst2 = (uintptr_t)op->dst2;
    return (at >= dst && at - dst < len) || ((op->opcode == TELPHER_DUALCAST || op->opcode == TELPHER_REDUCE_DUALCAST) && at >= dst2 && at - dst2 < len);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "model:spr";
    telpher_device *device, *second;
    telpher_mover *mover;
    telpher_channel *channel;
    if (telpher_device_open(&device, name, NULL) || telpher_mover_new(&mover, device, "threshold=256") ||
        telpher_device_open(&second, name, NULL) || telpher_channel_new(&channel, second, 0, 2, NULL)) {
        printf("%s: %s\n", name, telpher_last_error());
        return 1;
    }
    int good = 0, refused = 0;
    for (size_t i = 0; i < ARENA; i++)
        arena[i] = (unsigned char)next();
    for (int round = 0; round < ROUNDS; round++) {
        telpher_op op = some();
        telpher_result result = {0};
        telpher_batch *batch;
        telpher_job *job;
        telpher_completion done;
        int status;
        memcpy(before, arena, ARENA);
        switch (below(4)) {
        case 0:
            status = telpher_run(mover, &op, &result);
            break;
        case 1:
            status = telpher_start(mover, &op, &job);
            if (status == 0) {
                telpher_job_wait(job, -1);
                status = telpher_job_result(job, 0, &result);
                telpher_job_free(job);
            }
            break;
        case 2:
            telpher_batch_new(mover, &batch);
            status = telpher_batch_add(batch, &op);
            if (status >= 0 && telpher_batch_submit(batch, &job) == 0) {
                telpher_job_wait(job, -1);
                status = telpher_job_result(job, 0, &result);
                telpher_job_free(job);
            } else {
                telpher_batch_free(batch);
            }
            break;
        default:
            status = telpher_channel_put(channel, &op, NULL);
            if (status == 0) {
                while (telpher_channel_completed(channel, &done, 1) == 0)
                    telpher_channel_submit(channel);
                status = done.result.status;
                result = done.result;
            }
        }
        char text[200];
        if (status > 0 || (status == 0) != (result.outcome != TELPHER_FAILED) || telpher_result_text(&result, text, sizeof text) <= 0) {
            printf("round %d: operation %#x came to %d, outcome %u\n", round, op.opcode, status, result.outcome);
            return 1;
        }
        for (size_t i = 0; i < ARENA; i++)
            if (arena[i] != before[i] && (status == -EINVAL || !inside(&op, i))) {
                printf("round %d: operation %#x (%d) changed byte %zu\n", round, op.opcode, status, i);
                return 1;
            }
        good += status == 0;
        refused += status < 0;
    }
    telpher_channel_free(channel);
    telpher_mover_free(mover);
    telpher_device_close(device);
    telpher_device_close(second);
    printf("%d done, %d refused\n", good, refused);
    return good < ROUNDS / 10 || refused < ROUNDS / 10;
}
