/*
 * Programs in the manner of the original's examples and test suites for C: what they call, one after the other, with the same job.
 * manner PATH
 */
#include "check.h"

enum { SIZE = 4096, PROTECTED = SIZE + 8, MEMBERS = 6 };
static dml_path_t path;
static _Alignas(4096) uint8_t data[2 * PROTECTED], protected[2 * PROTECTED], updated[2 * PROTECTED], back[2 * PROTECTED];

/* Missing pages are faults of a device. */
static void touch(void) {
    memset(protected, 1, sizeof(protected));
    memset(updated, 1, sizeof(updated));
    memset(back, 1, sizeof(back));
    scatter(data, sizeof(data), 3);
}

static dml_status_t execute(dml_job_t *job) {
    return dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL);
}

/* Insert, check, update and strip with one job, whose configuration changes between them. */
static void integrity_fields(void) {
    dml_job_t *job = new_job(path);
    job->operation = DML_OP_DIF_INSERT;
    job->source_first_ptr = data;
    job->source_length = SIZE;
    job->destination_first_ptr = protected;
    job->destination_length = PROTECTED;
    job->dif_config.block_size = DML_DIF_BLOCK_SIZE_4096;
    job->dif_config.destination_application_tag_seed = 0x0100;
    job->dif_config.flags = DML_DIF_FLAG_INVERT_CRC_SEED | DML_DIF_FLAG_INVERT_CRC_RESULT | DML_DIF_FLAG_DST_INC_APP_TAG |
                            DML_DIF_FLAG_DST_FIX_REF_TAG;
    IS(execute(job), DML_STATUS_OK);
    CHECK(job->result == 0 && job->offset == 0 && !memcmp(data, protected, SIZE));
    job->operation = DML_OP_DIF_CHECK;
    job->source_first_ptr = protected;
    job->source_length = PROTECTED;
    job->dif_config.source_application_tag_seed = 0x0100;
    IS(execute(job), DML_STATUS_OK);
    CHECK(job->result == 0 && job->offset == 0);
    job->operation = DML_OP_DIF_UPDATE;
    job->destination_first_ptr = updated;
    job->dif_config.destination_application_tag_mask = 0xff00;
    job->dif_config.destination_application_tag_seed = 0x0200;
    job->dif_config.flags |= DML_DIF_FLAG_SRC_GUARD_CHECK_DISABLE | DML_DIF_FLAG_SRC_REF_TAG_CHECK_DISABLE;
    IS(execute(job), DML_STATUS_OK);
    CHECK(job->result == 0 && job->offset == 0);
    job->operation = DML_OP_DIF_STRIP;
    job->source_first_ptr = updated;
    job->destination_first_ptr = back;
    job->destination_length = SIZE;
    job->dif_config.source_application_tag_mask = 0xff00;
    job->dif_config.source_application_tag_seed = 0x0200;
    IS(execute(job), DML_STATUS_OK);
    CHECK(job->result == 0 && job->offset == 0 && !memcmp(data, back, SIZE));
    /* A wrong guard in the second block: the status, what is wrong, and where the block begins. */
    job->operation = DML_OP_DIF_INSERT;
    job->source_first_ptr = data;
    job->source_length = 2 * SIZE;
    job->destination_first_ptr = protected;
    job->dif_config.destination_application_tag_mask = 0;
    job->dif_config.destination_application_tag_seed = 0;
    job->dif_config.flags = 0;
    IS(execute(job), DML_STATUS_OK);
    protected[PROTECTED + SIZE] ^= 1;
    job->operation = DML_OP_DIF_CHECK;
    job->source_first_ptr = protected;
    job->source_length = 2 * PROTECTED;
    job->dif_config.source_application_tag_mask = 0;
    job->dif_config.source_application_tag_seed = 0;
    job->dif_config.flags = 0;
    IS(execute(job), DML_STATUS_DIF_CHECK_ERROR);
    CHECK(job->result == DML_DIF_CHECK_GUARD_MISMATCH && job->offset == PROTECTED);
    IS(dml_finalize_job(job), DML_STATUS_OK);
}

/* A record is made and applied with one job; its size is what the first operation has written. */
static void deltas(void) {
    enum { COMPARED = 1024, ROOM = COMPARED / 8 * 10 };
    dml_job_t *job = new_job(path);
    memset(updated, 0, COMPARED);
    memcpy(protected, data, COMPARED);
    job->operation = DML_OP_DELTA_CREATE;
    job->source_first_ptr = protected;
    job->source_second_ptr = updated;
    job->destination_first_ptr = back;
    job->source_length = COMPARED;
    job->destination_length = ROOM;
    dml_status_t status = execute(job);
    /* Current devices lack it. */
    if (status == DML_STATUS_JOB_OPERATION_ERROR && path == DML_PATH_HW) return;
    IS(status, DML_STATUS_OK);
    CHECK(job->result == 1 && job->offset == 0 && job->destination_length == ROOM);
    job->operation = DML_OP_DELTA_APPLY;
    job->source_length = job->destination_length;
    job->source_first_ptr = back;
    job->destination_first_ptr = protected;
    job->destination_length = COMPARED;
    IS(execute(job), DML_STATUS_OK);
    CHECK(!memcmp(protected, updated, COMPARED));
    /* A damaged record is refused, and nothing is written beyond the destination. */
    memcpy(back + 10, back, 2);
    status = execute(job);
    /* Some devices accept an offset that is not larger than the one before. */
    if (path == DML_PATH_SW || status != DML_STATUS_OK) IS(status, DML_STATUS_DELTA_ASCENDT_ERROR);
    back[10] = back[11] = 0xff;
    memset(protected + COMPARED, 0x5a, COMPARED);
    IS(execute(job), DML_STATUS_DELTA_OFFSET_ERROR);
    for (int at = 0; at < COMPARED; at++) CHECK(protected[COMPARED + at] == 0x5a);
    IS(dml_finalize_job(job), DML_STATUS_OK);
}

/* Jobs back to back, one for each node of a machine with four, and with the flags of a device's own descriptor. */
static void sockets(void) {
    enum { NODES = 4, PART = SIZE / NODES };
    uint32_t size = 0;
    IS(dml_get_job_size(path, &size), DML_STATUS_OK);
    uint8_t *jobs = malloc(size * NODES);
    for (uint32_t node = 0; node < NODES; node++) {
        dml_job_t *job = (dml_job_t *)(jobs + node * size);
        IS(dml_init_job(path, job), DML_STATUS_OK);
        job->operation = DML_OP_MEM_MOVE;
        job->source_first_ptr = data + node * PART;
        job->destination_first_ptr = back + node * PART;
        job->source_length = PART;
        job->flags = 12 | DML_FLAG_PREFETCH_CACHE;
        job->numa_id = node;
        dml_status_t status;
        while ((status = dml_submit_job(job)) == DML_STATUS_WORK_QUEUES_NOT_AVAILABLE) {
        }
        IS(status, DML_STATUS_OK);
    }
    for (uint32_t node = 0; node < NODES; node++) {
        dml_job_t *job = (dml_job_t *)(jobs + node * size);
        IS(dml_wait_job(job, DML_WAIT_MODE_UMWAIT), DML_STATUS_OK);
        IS(dml_finalize_job(job), DML_STATUS_OK);
    }
    CHECK(!memcmp(data, back, SIZE));
    free(jobs);
}

/* The statuses of members are read until the index is refused; the CRC of one is in its record. */
static void batches(void) {
    dml_job_t *job = new_job(path);
    uint32_t size = 0, seed = 0, out = 1;
    IS(dml_get_batch_size(job, MEMBERS, &size), DML_STATUS_OK);
    job->operation = DML_OP_BATCH;
    job->destination_first_ptr = calloc(1, size);
    job->destination_length = size;
    uint8_t pattern[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    IS(dml_batch_set_nop_by_index(job, 0, 0), DML_STATUS_OK);
    IS(dml_batch_set_mem_move_by_index(job, 1, data, back, SIZE, 0), DML_STATUS_OK);
    IS(dml_batch_set_fill_by_index(job, 2, pattern, updated, SIZE, 0), DML_STATUS_OK);
    IS(dml_batch_set_compare_by_index(job, 3, data, protected, SIZE, 1, 0), DML_STATUS_OK);
    IS(dml_batch_set_crc_by_index(job, 4, data, SIZE, &seed, 0), DML_STATUS_OK);
    IS(dml_batch_set_dualcast_by_index(job, 5, data, protected, protected + SIZE, SIZE - 1, 0), DML_STATUS_OK);
    IS(execute(job), DML_STATUS_OK);
    uint32_t index = 0;
    for (dml_status_t status; dml_batch_get_status(job, index, &status) == DML_STATUS_OK; index++) IS(status, DML_STATUS_OK);
    CHECK(index == MEMBERS && !memcmp(data, back, SIZE) && !memcmp(updated + 8, pattern, 8));
    IS(dml_batch_get_result(job, 3, &out), DML_STATUS_OK);
    CHECK(out == 1);
    IS(dml_batch_get_crc(job, 4, &out), DML_STATUS_OK);
    dml_job_t *alone = new_job(path);
    alone->operation = DML_OP_CRC;
    alone->source_first_ptr = data;
    alone->source_length = SIZE;
    alone->crc_checksum_ptr = &seed;
    IS(execute(alone), DML_STATUS_OK);
    CHECK(out == seed && out != 0);
    /* NULL comes before the index, also without a size of the buffer; no function reads behind the buffer. */
    IS(dml_batch_get_crc(NULL, 0, &out), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_batch_get_crc(job, 0, NULL), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_batch_get_crc(job, MEMBERS, &out), DML_STATUS_BATCH_TASK_INDEX_OVERFLOW);
    alone->destination_first_ptr = data;
    alone->destination_length = 0;
    IS(dml_batch_get_result(alone, 0, NULL), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_batch_get_status(alone, 0, NULL), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_batch_get_crc(alone, 0, NULL), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_finalize_job(job), DML_STATUS_OK);
}

/* A suite's job is copied byte by byte, and the copy is used; its state is that of the first one. */
static void copied_job(void) {
    dml_job_t *first = new_job(path);
    uint8_t *memory = malloc(376);
    memcpy(memory, first, 376);
    dml_job_t *copy = (dml_job_t *)memory;
    copy->operation = DML_OP_MEM_MOVE;
    copy->source_first_ptr = data;
    copy->destination_first_ptr = back;
    copy->source_length = 100;
    IS(execute(copy), DML_STATUS_OK);
    CHECK(!memcmp(data, back, 100));
    IS(dml_finalize_job(copy), DML_STATUS_OK);
    /* A submission that is refused leaves nothing to wait for. */
    copy->source_length = 0;
    IS(dml_submit_job(copy), DML_STATUS_JOB_LENGTH_ERROR);
    IS(dml_wait_job(copy, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_JOB_CORRUPTED);
    free(memory);
}

/* Block On Fault is reserved for these operations; a device says so, the CPU does not look at it. */
static void reserved_flag(void) {
    for (int operation = DML_OP_NOP; operation <= DML_OP_DRAIN; operation += DML_OP_DRAIN - DML_OP_NOP) {
        dml_job_t *job = new_job(path);
        job->operation = (dml_operation_t)operation;
        job->flags = DML_FLAG_BLOCK_ON_FAULT;
        dml_status_t status = execute(job);
        if (path == DML_PATH_HW) IS(status, DML_STATUS_JOB_FLAGS_ERROR);
        if (path == DML_PATH_SW) IS(status, DML_STATUS_OK);
    }
}

int main(int argc, char **argv) {
    path = path_of(argc > 1 ? argv[1] : "sw");
    touch();
    integrity_fields();
    deltas();
    sockets();
    batches();
    copied_job();
    reserved_flag();
    return summary();
}
