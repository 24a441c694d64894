/*
 * Copies 16 pages as one batch and computes the CRC-32C of the copy, as a program written for Intel's DML does it.
 *
 *     cc pages.c $(pkg-config --cflags --libs dml) -o pages && ./pages hardware|software|automatic
 */
#include <dml/dml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGES = 16, PAGE = 4096 };

static uint8_t src[PAGES * PAGE], dst[PAGES * PAGE];

static dml_path_t path_of(const char *name) {
    if (strcmp(name, "hardware") == 0) {
        return DML_PATH_HW;
    }
    return strcmp(name, "software") == 0 ? DML_PATH_SW : DML_PATH_AUTO;
}

/* Submits the job again while every queue is full. */
static dml_status_t execute(dml_job_t *job) {
    dml_status_t status;
    do {
        status = dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL);
    } while (status == DML_STATUS_WORK_QUEUES_NOT_AVAILABLE);
    return status;
}

static dml_status_t copy_pages(dml_job_t *job) {
    uint32_t size = 0;
    dml_status_t status = dml_get_batch_size(job, PAGES, &size);
    if (status != DML_STATUS_OK) {
        return status;
    }
    uint8_t *batch = malloc(size);
    if (batch == NULL) {
        return DML_STATUS_INTERNAL_ERROR;
    }
    job->operation = DML_OP_BATCH;
    job->destination_first_ptr = batch;
    job->destination_length = size;
    for (uint32_t page = 0; page < PAGES && status == DML_STATUS_OK; page++) {
        uint8_t *from = src + page * PAGE, *to = dst + page * PAGE;
        status = dml_batch_set_mem_move_by_index(job, page, from, to, PAGE, DML_FLAG_PREFETCH_CACHE);
    }
    if (status == DML_STATUS_OK) {
        status = execute(job);
    }
    free(batch);
    return status;
}

static dml_status_t checksum(dml_job_t *job, uint32_t *crc) {
    *crc = 0;
    job->operation = DML_OP_CRC;
    job->source_first_ptr = dst;
    job->source_length = sizeof(dst);
    job->crc_checksum_ptr = crc;
    job->flags = DML_FLAG_CRC_READ_SEED;
    return execute(job);
}

int main(int argc, char **argv) {
    const dml_path_t path = path_of(argc > 1 ? argv[1] : "automatic");
    uint32_t size = 0, crc = 0;
    dml_job_t *job = NULL;
    dml_status_t status = dml_get_job_size(path, &size);

    for (size_t at = 0; at < sizeof(src); at++) {
        src[at] = (uint8_t)(at * 7 + at / PAGE);
    }
    /* The first write to a page is a page fault. The CPU handles it at once; a device would end the copy. */
    memset(dst, 0xEE, sizeof(dst));
    if (status == DML_STATUS_OK && (job = malloc(size)) != NULL) {
        status = dml_init_job(path, job);
        if (status == DML_STATUS_OK) {
            status = copy_pages(job);
        }
        if (status == DML_STATUS_OK) {
            status = checksum(job, &crc);
        }
        dml_finalize_job(job);
        free(job);
    }
    if (job == NULL || status != DML_STATUS_OK) {
        fprintf(stderr, "pages: DML's status is %u\n", (unsigned)status);
        return 1;
    }
    const char *compared = memcmp(src, dst, sizeof(src)) == 0 ? "equal" : "different";
    printf("%d pages, CRC-32C %08x, %s\n", PAGES, (unsigned)crc, compared);
    return 0;
}
