/* TELPHER_DML_STRICT=1: the answers of Intel's library 1.1.1 where this one differs. */
#include "check.h"

static _Alignas(64) uint8_t bytes[8192];

int main(void) {
    dml_job_t *job = new_job(DML_PATH_SW);
    uint32_t size = 0, out = 0, seed = 5;
    IS(dml_get_batch_size(job, 4, &size), DML_STATUS_OK);
    job->operation = DML_OP_BATCH;
    job->destination_first_ptr = malloc(size);
    job->destination_length = size;
    scatter(bytes, 1000, 1);
    IS(dml_batch_set_crc_by_index(job, 0, bytes, 100, &seed, DML_FLAG_CRC_READ_SEED), DML_STATUS_OK);
    IS(dml_batch_set_compare_by_index(job, 1, bytes, bytes + 100, 100, 0, DML_FLAG_CHECK_RESULT), DML_STATUS_OK);
    IS(dml_batch_set_nop_by_index(job, 2, 0), DML_STATUS_OK);
    IS(dml_batch_set_nop_by_index(job, 3, 0), DML_STATUS_OK);
    /* The batch ends at the first member that does not succeed, and the result of a member is its status. */
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_BATCH_ERROR);
    uint32_t expected[] = {0, 1, 3, 3};
    for (uint32_t i = 0; i < 4; i++) {
        IS(dml_batch_get_result(job, i, &out), DML_STATUS_OK);
        CHECK(out == expected[i]);
    }
    /* The member that fails does not count. */
    telpher_dml_task *task = aligned_alloc(64, sizeof(*task));
    uintptr_t list = ((uintptr_t)job->destination_first_ptr + 63) / 64 * 64;
    telpher_dml_init(task);
    telpher_dml_make_batch(&task->descriptor, 0, (telpher_dml_descriptor *)list, 4);
    IS(telpher_dml_submit(task, DML_PATH_SW, TELPHER_DML_ANY_NODE), DML_STATUS_OK);
    IS(telpher_dml_status_of(&task->record), DML_STATUS_BATCH_ERROR);
    CHECK(telpher_dml_get_bytes_completed(&task->record) == 1);
    /* COPY_ONLY looks at one side, and clears flags of the program. */
    job = new_job(DML_PATH_SW);
    job->operation = DML_OP_MEM_MOVE;
    job->source_first_ptr = bytes + 100;
    job->destination_first_ptr = bytes;
    job->source_length = 200;
    job->flags = 0x10000 | DML_FLAG_COPY_ONLY;
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    CHECK(job->flags == 0);
    job->source_first_ptr = bytes;
    job->destination_first_ptr = bytes + 100;
    job->flags = DML_FLAG_COPY_ONLY;
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OVERLAPPING_BUFFER_ERROR);
    /* Compare Pattern reports where the word begins that differs; behind the last whole word, the byte. */
    job = new_job(DML_PATH_SW);
    job->operation = DML_OP_COMPARE_PATTERN;
    job->source_first_ptr = memset(bytes, 7, 100);
    job->source_length = 29;
    memset(job->pattern, 7, sizeof(job->pattern));
    for (uint32_t at = 0; at < 29; at++) {
        bytes[at] = 8;
        IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
        CHECK(job->result == 1 && job->offset == (at < 24 ? at / 8 * 8 : at));
        bytes[at] = 7;
    }
    /* Application tags: none is checked with a mask of zero, and zero is expected with a mask of ones. */
    uint8_t *blocks = bytes + 2048, *stripped = bytes + 4096;
    memset(bytes, 7, 1024);
    job = new_job(DML_PATH_SW);
    job->operation = DML_OP_DIF_INSERT;
    job->source_first_ptr = bytes;
    job->source_length = 1024;
    job->destination_first_ptr = blocks;
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    job->operation = DML_OP_DIF_STRIP;
    job->source_first_ptr = blocks;
    job->source_length = 2 * 520;
    job->destination_first_ptr = stripped;
    job->dif_config.source_application_tag_seed = 5;
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    job->dif_config.source_application_tag_mask = 0xffff;
    job->dif_config.flags = DML_DIF_FLAG_SRC_INC_APP_TAG;
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    CHECK(!memcmp(stripped, bytes, 1024));
    /* No block is written if one is wrong. */
    blocks[520 + 514] = 1;
    memset(stripped, 0x5a, 1024);
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_DIF_CHECK_ERROR);
    CHECK(job->result == DML_DIF_CHECK_APPLICATION_TAG_MISMATCH && job->offset == 520 && stripped[0] == 0x5a);
    /* The modelled device names no node, so it counts as near every node and is not refused for a named one. */
    job = new_job(DML_PATH_HW);
    job->operation = DML_OP_NOP;
    job->numa_id = 0;
    IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    return summary();
}
