/* The functions of DML that the measured program of `telpher bench dml` calls, as plain loops on the CPU. The library stands in for
 * Intel's, and notes its use in the file STAND_IN_MARK. */
#include <dml/dml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, FIELD = 8 };

dml_status_t dml_get_job_size(dml_path_t path, uint32_t *job_size_ptr) {
    *job_size_ptr = sizeof(dml_job_t);
    return path == DML_PATH_SW ? DML_STATUS_OK : DML_STATUS_PATH_ERROR;
}

dml_status_t dml_init_job(dml_path_t path, dml_job_t *job) {
    memset(job, 0, sizeof(*job));
    FILE *mark = fopen(getenv("STAND_IN_MARK"), "w");
    if (mark == NULL || fputs("used", mark) < 0 || fclose(mark) != 0) return DML_STATUS_INTERNAL_ERROR;
    return path == DML_PATH_SW ? DML_STATUS_OK : DML_STATUS_PATH_ERROR;
}

static uint32_t crc(const uint8_t *from, uint32_t bytes) {
    uint32_t value = 0xffffffff;
    for (uint32_t at = 0; at < bytes; at++) {
        value ^= from[at];
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0x82f63b78 : 0);
    }
    return ~value;
}

/* Copies the data of blocks; the fields stay empty, as nothing looks at them. */
static void blocks(const dml_job_t *job, uint32_t from, uint32_t to) {
    for (uint32_t block = 0; block < job->source_length / from; block++) {
        memcpy(job->destination_first_ptr + block * to, job->source_first_ptr + block * from, BLOCK);
        memset(job->destination_first_ptr + block * to + BLOCK, 0, to - BLOCK);
    }
}

dml_status_t dml_execute_job(dml_job_t *job, dml_wait_mode_t wait_mode) {
    (void)wait_mode;
    switch (job->operation) {
    case DML_OP_NOP:
    case DML_OP_DIF_CHECK: return DML_STATUS_OK;
    case DML_OP_COPY_CRC:
    case DML_OP_CRC: *job->crc_checksum_ptr = crc(job->source_first_ptr, job->source_length); break;
    case DML_OP_MEM_MOVE: break;
    case DML_OP_DIF_INSERT: blocks(job, BLOCK, BLOCK + FIELD); return DML_STATUS_OK;
    case DML_OP_DIF_STRIP: blocks(job, BLOCK + FIELD, BLOCK); return DML_STATUS_OK;
    case DML_OP_DIF_UPDATE: blocks(job, BLOCK + FIELD, BLOCK + FIELD); return DML_STATUS_OK;
    default: return DML_STATUS_JOB_OPERATION_ERROR;
    }
    if (job->operation != DML_OP_CRC) memcpy(job->destination_first_ptr, job->source_first_ptr, job->source_length);
    return DML_STATUS_OK;
}
