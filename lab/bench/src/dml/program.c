/*
 * The measured program of `telpher bench dml`: jobs of libdml, or of Intel's library, as a program in C executes them.
 *
 * Reads lines "PATH OPERATION BYTES MILLISECONDS" from standard input, such as "sw move 4096 10", and answers each with the
 * nanoseconds of one job, or with a line that begins with a dash and says what went wrong.
 */
#define _POSIX_C_SOURCE 200809L
#include <dml/dml.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE = 64, BLOCK = 512, FIELD = 8, PAGE = 4096 };
/* Between two looks at the clock, in nanoseconds: a look takes some 25. */
static const double PERIOD = 20000;

static uint8_t *source, *destination;
/* What the operation in hand reads and writes. */
static uint32_t room, reads, writes, crc;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static const struct { const char *name; dml_operation_t code; } operations[] = {
    {"nop", DML_OP_NOP},
    {"move", DML_OP_MEM_MOVE},
    {"crc", DML_OP_CRC},
    {"copy-crc", DML_OP_COPY_CRC},
    {"dif-check", DML_OP_DIF_CHECK},
    {"dif-insert", DML_OP_DIF_INSERT},
    {"dif-strip", DML_OP_DIF_STRIP},
    {"dif-update", DML_OP_DIF_UPDATE},
};

static void describe(dml_job_t *job, dml_operation_t operation) {
    job->operation = operation;
    job->source_first_ptr = source;
    job->destination_first_ptr = destination;
    job->source_length = reads;
    job->destination_length = writes;
    job->crc_checksum_ptr = &crc;
}

static const char *prepare(dml_job_t *job, const char *name, uint32_t bytes) {
    dml_operation_t operation = DML_OP_BATCH;
    for (size_t at = 0; at < sizeof operations / sizeof operations[0]; at++) {
        if (strcmp(name, operations[at].name) == 0) operation = operations[at].code;
    }
    if (operation == DML_OP_BATCH) return "no such operation";
    uint32_t longer = bytes + bytes / BLOCK * FIELD;
    int checks = operation == DML_OP_DIF_CHECK || operation == DML_OP_DIF_STRIP || operation == DML_OP_DIF_UPDATE;
    reads = checks ? longer : bytes;
    writes = operation == DML_OP_DIF_INSERT || operation == DML_OP_DIF_UPDATE ? longer : bytes;
    if (longer > room) {
        free(source);
        free(destination);
        room = (longer + PAGE - 1) / PAGE * PAGE;
        /* As the benchmark's own memory: a load waits for an earlier store at its offset of another page. */
        source = aligned_alloc(PAGE, room);
        destination = aligned_alloc(PAGE, room);
        if (source == NULL || destination == NULL) return "no memory";
    }
    for (uint32_t at = 0; at < bytes; at++) source[at] = (uint8_t)(at * 7 + at / 251);
    if (checks) {
        /* Blocks with the fields that the same library makes. */
        uint32_t asked = reads;
        reads = bytes;
        describe(job, DML_OP_DIF_INSERT);
        reads = asked;
        if (dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL) != DML_STATUS_OK) return "the insertion of fields failed";
        memcpy(source, destination, longer);
    }
    if (bytes != 0) memset(destination, 0xa5, longer);
    describe(job, operation);
    return NULL;
}

/* CRC-32C, bit by bit. Source: RFC 3720, B.4. */
static uint32_t naive_crc(uint32_t bytes) {
    uint32_t value = 0xffffffff;
    for (uint32_t at = 0; at < bytes; at++) {
        value ^= source[at];
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0x82f63b78 : 0);
    }
    return ~value;
}

static const char *check(const dml_job_t *job, uint32_t bytes) {
    /* Bytes from one block to the next. */
    uint32_t from = reads > bytes ? BLOCK + FIELD : BLOCK, to = writes > bytes ? BLOCK + FIELD : BLOCK;
    switch (job->operation) {
    case DML_OP_COPY_CRC:
    case DML_OP_MEM_MOVE:
        if (memcmp(source, destination, bytes) != 0) return "wrong bytes";
        break;
    case DML_OP_DIF_INSERT:
    case DML_OP_DIF_STRIP:
    case DML_OP_DIF_UPDATE:
        for (uint32_t block = 0; block < bytes / BLOCK; block++) {
            if (memcmp(source + block * from, destination + block * to, BLOCK) != 0) return "wrong bytes";
        }
        break;
    default:
        break;
    }
    int sums = job->operation == DML_OP_CRC || job->operation == DML_OP_COPY_CRC;
    return sums && crc != naive_crc(bytes) ? "a wrong CRC" : NULL;
}

/* Executes jobs for a time; the nanoseconds of one. */
static const char *measure(dml_job_t *job, double time, double *ns) {
    double begin = now(), elapsed = 0, done = 0;
    unsigned long calls = 1;
    do {
        for (unsigned long call = 0; call < calls; call++) {
            if (dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL) != DML_STATUS_OK) return "a job failed";
        }
        done += (double)calls;
        elapsed = now() - begin;
        if (elapsed / done * (double)calls < PERIOD) calls *= 2;
    } while (elapsed < time);
    *ns = elapsed / done;
    return NULL;
}

static const char *work(const char *path, const char *operation, uint32_t bytes, double time, double *ns) {
    static dml_job_t *jobs[DML_PATH_HW + 1];
    dml_path_t which = strcmp(path, "sw") == 0 ? DML_PATH_SW : DML_PATH_HW;
    if (jobs[which] == NULL) {
        uint32_t size;
        if (dml_get_job_size(which, &size) != DML_STATUS_OK) return "dml_get_job_size failed";
        jobs[which] = malloc(size);
        if (jobs[which] == NULL || dml_init_job(which, jobs[which]) != DML_STATUS_OK) return "dml_init_job failed";
    }
    dml_job_t *job = jobs[which];
    const char *wrong = prepare(job, operation, bytes);
    if (wrong != NULL) return wrong;
    /* The first job maps pages, and opens queues. */
    if (dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL) != DML_STATUS_OK) return "the first job failed";
    if ((wrong = check(job, bytes)) != NULL) return wrong;
    return measure(job, time, ns);
}

int main(void) {
    char line[LINE];
    while (fgets(line, sizeof line, stdin) != NULL) {
        char path[8], operation[16];
        unsigned long bytes;
        double milliseconds, ns = 0;
        const char *wrong = "no task";
        if (sscanf(line, "%7s %15s %lu %lf", path, operation, &bytes, &milliseconds) == 4 && bytes <= UINT32_MAX / 2) {
            wrong = work(path, operation, (uint32_t)bytes, milliseconds * 1e6, &ns);
        }
        if (wrong != NULL) printf("- %s\n", wrong);
        else printf("%.3f\n", ns);
        fflush(stdout);
    }
    return 0;
}
