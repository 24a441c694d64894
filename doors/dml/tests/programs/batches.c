/*
 * Batches on a path: every setter and getter, members that fail, fences, arguments that are refused.
 * batches PATH [nodevice]
 */
#include "check.h"

enum { MEMBERS = 16, SIZE = 4096 };
static dml_path_t path;
static int has_device, has_delta = 1;
static _Alignas(4096) uint8_t from[SIZE * 4], to[MEMBERS][SIZE * 4];
static uint8_t delta[MEMBERS][20000];

static dml_job_t *batch_of(uint32_t count) {
    dml_job_t *job = new_job(path);
    uint32_t bytes = 0;
    IS(dml_get_batch_size(job, count, &bytes), DML_STATUS_OK);
    job->operation = DML_OP_BATCH;
    job->destination_first_ptr = (uint8_t *)malloc(bytes + 8) + 8;
    memset(job->destination_first_ptr, 0xa5, bytes);
    job->destination_length = bytes;
    return job;
}

static void member(int line, dml_job_t *job, uint32_t index, dml_status_t expected, uint32_t expected_result) {
    dml_status_t status = (dml_status_t)99;
    uint32_t result = 99;
    is(line, dml_batch_get_status(job, index, &status), DML_STATUS_OK);
    is(line, dml_batch_get_result(job, index, &result), DML_STATUS_OK);
    CHECK_IN(line, status == expected && result == expected_result, "member %u: status %u, result %u", index, status, result);
}
#define MEMBER(job, index, status, result) member(__LINE__, job, index, status, result)

static void every_operation(void) {
    static uint8_t pattern[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t seed = 0x12345678, crc = 0, alone = 0;
    dml_dif_config_t dif = {.block_size = DML_DIF_BLOCK_SIZE_512};
    dml_job_t *job = batch_of(MEMBERS);
    scatter(from, sizeof(from), 1);
    memcpy(delta[0], from, 1024);
    delta[0][100] ^= 1;
    /* Delta operations need a device that has them. */
    dml_job_t *probe = new_job(path);
    probe->operation = DML_OP_DELTA_CREATE;
    probe->source_first_ptr = from;
    probe->source_second_ptr = delta[0];
    probe->destination_first_ptr = delta[1];
    probe->source_length = 1024;
    probe->destination_length = 1280;
    has_delta = dml_execute_job(probe, DML_WAIT_MODE_BUSY_POLL) == DML_STATUS_OK;
    CHECK(has_delta || path == DML_PATH_HW);
    memset(delta[1], 0, sizeof(delta[1]));
    /* The reference tag counts blocks, and the fields have been inserted before. */
    probe->operation = DML_OP_DIF_INSERT;
    probe->destination_first_ptr = to[12];
    probe->dif_config = dif;
    IS(dml_execute_job(probe, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);

    IS(dml_batch_set_nop_by_index(job, 0, 0), DML_STATUS_OK);
    IS(dml_batch_set_mem_move_by_index(job, 1, from, to[1], SIZE, DML_FLAG_COPY_ONLY), DML_STATUS_OK);
    IS(dml_batch_set_dualcast_by_index(job, 2, from, to[2], to[3], SIZE, 0), DML_STATUS_OK);
    IS(dml_batch_set_compare_by_index(job, 3, from, from + SIZE, SIZE, 1, DML_FLAG_CHECK_RESULT), DML_STATUS_OK);
    IS(dml_batch_set_compare_pattern_by_index(job, 4, from, pattern, SIZE, 1, DML_FLAG_CHECK_RESULT), DML_STATUS_OK);
    IS(dml_batch_set_crc_by_index(job, 5, from, SIZE, &seed, 0), DML_STATUS_OK);
    IS(dml_batch_set_copy_crc_by_index(job, 6, from, SIZE, &seed, to[6], DML_FLAG_CRC_READ_SEED), DML_STATUS_OK);
    IS(dml_batch_set_fill_by_index(job, 7, pattern, to[7], SIZE, 0), DML_STATUS_OK);
    IS(dml_batch_set_cache_flush_by_index(job, 8, from, SIZE, 0), DML_STATUS_OK);
    if (has_delta) {
        IS(dml_batch_set_delta_create_by_index(job, 9, from, delta[0], 1024, delta[1], 1280, DML_FLAG_EXPECT_NOT_EQUAL,
                                               DML_FLAG_CHECK_RESULT),
           DML_STATUS_OK);
        IS(dml_batch_set_delta_apply_by_index(job, 10, delta[1], 10, to[10], 1024, DML_FLAG_FENCE), DML_STATUS_OK);
    } else {
        IS(dml_batch_set_nop_by_index(job, 9, 0), DML_STATUS_OK);
        IS(dml_batch_set_nop_by_index(job, 10, DML_FLAG_FENCE), DML_STATUS_OK);
    }
    IS(dml_batch_set_dif_insert_by_index(job, 11, from, 1024, &dif, to[11], 1040, 0), DML_STATUS_OK);
    IS(dml_batch_set_dif_check_by_index(job, 12, to[12], 1040, &dif, 0), DML_STATUS_OK);
    IS(dml_batch_set_dif_strip_by_index(job, 13, to[12], 1040, &dif, to[13], 1024, 0), DML_STATUS_OK);
    IS(dml_batch_set_dif_update_by_index(job, 14, to[12], 1040, &dif, to[14], 1040, 0), DML_STATUS_OK);
    IS(dml_batch_set_nop_by_index(job, 15, DML_FLAG_FENCE), DML_STATUS_OK);

    for (unsigned again = 0; again < 2; again++) {
        /* A batch is submitted again without setting its members. */
        memset(to[1], 0, SIZE);
        memcpy(to[10], from, 1024);
        IS(dml_execute_job(job, again ? DML_WAIT_MODE_UMWAIT : DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
        for (unsigned i = 0; i < MEMBERS; i++) MEMBER(job, i, DML_STATUS_OK, i == 3 || i == 4 || (i == 9 && has_delta));
        CHECK(!memcmp(to[1], from, SIZE) && !memcmp(to[2], from, SIZE) && !memcmp(to[3], from, SIZE));
        CHECK(!memcmp(to[6], from, SIZE) && !memcmp(to[7], pattern, 8) && !memcmp(to[7] + SIZE - 8, pattern, 8));
        CHECK(!has_delta || !memcmp(to[10], delta[0], 1024));
        CHECK(!memcmp(to[11], to[12], 1040) && !memcmp(to[13], from, 1024) && !memcmp(to[14], to[12], 1040));
    }
    dml_job_t *single = new_job(path);
    single->operation = DML_OP_CRC;
    single->source_first_ptr = from;
    single->source_length = SIZE;
    single->crc_checksum_ptr = &alone;
    single->flags = DML_FLAG_CRC_READ_SEED;
    alone = seed;
    IS(dml_execute_job(single, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    for (unsigned i = 5; i < 7; i++) {
        IS(dml_batch_get_crc(job, i, &crc), DML_STATUS_OK);
        CHECK(crc == alone && seed == 0x12345678);
    }
}

/* Members 0 to 7 copy; member 2 finds a difference; member `fenced` has a fence. */
static dml_job_t *with_failure(uint32_t fenced) {
    dml_job_t *job = batch_of(8);
    memset(to, 0, sizeof(to));
    for (uint32_t i = 0; i < 8; i++) {
        dml_operation_flags_t flags = i == fenced ? DML_FLAG_FENCE : 0;
        IS(dml_batch_set_mem_move_by_index(job, i, from, to[i], SIZE, flags), DML_STATUS_OK);
    }
    IS(dml_batch_set_compare_by_index(job, 2, from, from + SIZE, SIZE, 0, DML_FLAG_CHECK_RESULT), DML_STATUS_OK);
    return job;
}

static void failures_and_fences(void) {
    dml_job_t *job = with_failure(MEMBERS);
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_BATCH_ERROR);
    for (uint32_t i = 0; i < 8; i++) MEMBER(job, i, i == 2 ? DML_STATUS_FALSE_PREDICATE_OK : DML_STATUS_OK, i == 2);
    CHECK(!memcmp(to[7], from, SIZE));
    job = with_failure(5);
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_BATCH_ERROR);
    for (uint32_t i = 3; i < 8; i++) MEMBER(job, i, i < 5 ? DML_STATUS_OK : DML_STATUS_INTERNAL_ERROR, 0);
    CHECK(!memcmp(to[4], from, SIZE) && to[5][0] == 0 && to[7][0] == 0);
    /* A fence orders: each member copies what the one before has written. */
    job = batch_of(8);
    memset(to, 0, sizeof(to));
    for (uint32_t i = 0; i < 8; i++)
        IS(dml_batch_set_mem_move_by_index(job, i, i ? to[i - 1] : from, to[i], SIZE, DML_FLAG_FENCE), DML_STATUS_OK);
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    CHECK(!memcmp(to[7], from, SIZE));
    job->flags = DML_FLAG_BLOCK_ON_FAULT;
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), has_device ? DML_STATUS_JOB_FLAGS_ERROR : DML_STATUS_OK);
}

static void refused(void) {
    dml_job_t *job = batch_of(8);
    uint8_t pattern[8] = {0};
    uint32_t seed = 0, out = 0;
    dml_status_t status;
    dml_dif_config_t dif = {.block_size = DML_DIF_BLOCK_SIZE_512};
    for (uint32_t i = 0; i < 8; i++) IS(dml_batch_set_nop_by_index(job, i, 0), DML_STATUS_OK);
#define SETTERS(job, index)                                                                 \
    X(dml_batch_set_nop_by_index(job, index, 0))                                            \
    X(dml_batch_set_mem_move_by_index(job, index, from, to[0], 64, 0))                      \
    X(dml_batch_set_dualcast_by_index(job, index, from, to[0], to[1], 64, 0))               \
    X(dml_batch_set_compare_by_index(job, index, from, to[0], 64, 0, 0))                    \
    X(dml_batch_set_compare_pattern_by_index(job, index, from, pattern, 64, 0, 0))          \
    X(dml_batch_set_crc_by_index(job, index, from, 64, &seed, 0))                           \
    X(dml_batch_set_copy_crc_by_index(job, index, from, 64, &seed, to[0], 0))               \
    X(dml_batch_set_fill_by_index(job, index, pattern, to[0], 64, 0))                       \
    X(dml_batch_set_cache_flush_by_index(job, index, to[0], 64, 0))                         \
    X(dml_batch_set_delta_create_by_index(job, index, from, to[0], 64, to[1], 80, 0, 0))    \
    X(dml_batch_set_delta_apply_by_index(job, index, from, 80, to[0], 64, 0))               \
    X(dml_batch_set_dif_check_by_index(job, index, from, 520, &dif, 0))                     \
    X(dml_batch_set_dif_update_by_index(job, index, from, 520, &dif, to[0], 520, 0))        \
    X(dml_batch_set_dif_insert_by_index(job, index, from, 512, &dif, to[0], 520, 0))        \
    X(dml_batch_set_dif_strip_by_index(job, index, from, 520, &dif, to[0], 512, 0))
#define GETTERS(job, index)                                                                 \
    X(dml_batch_get_result(job, index, &out))                                               \
    X(dml_batch_get_status(job, index, &status))                                            \
    X(dml_batch_get_crc(job, index, &out))
#define X(call) IS(call, DML_STATUS_BATCH_TASK_INDEX_OVERFLOW);
    SETTERS(job, 8)
    GETTERS(job, 8)
    SETTERS(job, 0xffffffff)
    GETTERS(job, 0xffffffff)
    /* Without a length there are no members. */
    uint32_t bytes = job->destination_length;
    job->destination_length = 0;
    GETTERS(job, 0)
    job->destination_length = bytes;
#undef X
#define X(call) IS(call, DML_STATUS_NULL_POINTER_ERROR);
    SETTERS(NULL, 0)
    GETTERS(NULL, 0)
    job->destination_length = 0;
    SETTERS(job, 0)
    job->destination_length = bytes;
    uint8_t *buffer = job->destination_first_ptr;
    job->destination_first_ptr = NULL;
    SETTERS(job, 0)
    GETTERS(job, 0)
    job->destination_first_ptr = buffer;
    X(dml_batch_set_compare_pattern_by_index(job, 0, from, NULL, 64, 0, 0))
    X(dml_batch_set_fill_by_index(job, 0, NULL, to[0], 64, 0))
    X(dml_batch_set_crc_by_index(job, 0, from, 64, NULL, 0))
    X(dml_batch_set_copy_crc_by_index(job, 0, from, 64, NULL, to[0], 0))
    X(dml_batch_set_dif_check_by_index(job, 0, from, 520, NULL, 0))
    X(dml_batch_set_dif_update_by_index(job, 0, from, 520, NULL, to[0], 520, 0))
    X(dml_batch_set_dif_insert_by_index(job, 0, from, 512, NULL, to[0], 520, 0))
    X(dml_batch_set_dif_strip_by_index(job, 0, from, 520, NULL, to[0], 512, 0))
    /* The pointers of the DIF operations are checked in front of the index. */
    X(dml_batch_set_dif_check_by_index(job, 8, NULL, 520, &dif, 0))
    X(dml_batch_set_dif_update_by_index(job, 8, from, 520, &dif, NULL, 520, 0))
    X(dml_batch_set_dif_insert_by_index(job, 8, NULL, 512, &dif, to[0], 520, 0))
    X(dml_batch_set_dif_strip_by_index(job, 8, from, 520, &dif, NULL, 512, 0))
    X(dml_batch_get_result(job, 0, NULL))
    X(dml_batch_get_status(job, 0, NULL))
    X(dml_batch_get_crc(job, 0, NULL))
    X(dml_batch_set_mem_move_by_index(job, 0, NULL, to[0], 64, 0))
    X(dml_batch_set_cache_flush_by_index(job, 0, NULL, 64, 0))
#undef X
    IS(dml_batch_set_mem_move_by_index(job, 0, from, to[0], 0, 0), DML_STATUS_JOB_LENGTH_ERROR);
    IS(dml_batch_set_mem_move_by_index(job, 0, from, from + 1, 64, DML_FLAG_COPY_ONLY), DML_STATUS_OVERLAPPING_BUFFER_ERROR);
    IS(dml_batch_set_dualcast_by_index(job, 0, from, to[0], to[1] + 1, 64, 0), DML_STATUS_DUALCAST_ALIGN_ERROR);
    IS(dml_batch_set_copy_crc_by_index(job, 0, from, 64, &seed, from + 1, 0), DML_STATUS_OVERLAPPING_BUFFER_ERROR);
    IS(dml_batch_set_delta_create_by_index(job, 0, from + 4, to[0], 64, to[1], 80, 0, 0), DML_STATUS_DELTA_ALIGN_ERROR);
    IS(dml_batch_set_delta_apply_by_index(job, 0, from, 81, to[0], 64, 0), DML_STATUS_DELTA_RECORD_SIZE_ERROR);
    IS(dml_batch_set_dif_check_by_index(job, 0, from, 512, &dif, 0), DML_STATUS_JOB_LENGTH_ERROR);
    /* None of the refused members was stored. */
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    job->destination_length = 3 * 96;
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_BATCH_SIZE_ERROR);
    job->destination_first_ptr = NULL;
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_NULL_POINTER_ERROR);
}

int main(int argc, char **argv) {
    path = path_of(argv[1]);
    has_device = path != DML_PATH_SW && argc < 3;
    /* A device reports pages that are missing. */
    memset(to, 1, sizeof(to));
    memset(delta, 1, sizeof(delta));
    every_operation();
    failures_and_fences();
    refused();
    return summary();
}
