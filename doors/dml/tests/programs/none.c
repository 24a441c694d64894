/* Without any queue: the hardware path says why, and the automatic one uses the CPU. Pages that are not mapped are statuses. */
#include "check.h"
#include <sys/mman.h>

int main(void) {
    uint8_t source[100] = {1, 2, 3}, target[100] = {0};
    uint8_t *missing = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 3; i++) {
        dml_path_t path = i == 0 ? DML_PATH_HW : i == 1 ? DML_PATH_AUTO : DML_PATH_SW;
        dml_job_t *job = new_job(path);
        job->operation = DML_OP_MEM_MOVE;
        /* Arguments come before devices. */
        IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_NULL_POINTER_ERROR);
        job->source_first_ptr = source;
        job->destination_first_ptr = target;
        job->source_length = sizeof(source);
        IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), i ? DML_STATUS_OK : DML_STATUS_LIBACCEL_NOT_FOUND);
        CHECK(strlen(telpher_dml_last_error()) > 20);
        CHECK(i || strstr(telpher_dml_last_error(), "TELPHER_DML_DEVICE is cpu"));
        CHECK(i == 0 || !memcmp(source, target, sizeof(source)));
        IS(dml_check_job(job), i ? DML_STATUS_OK : DML_STATUS_JOB_CORRUPTED);
        if (i == 0) continue;
        job->source_first_ptr = missing;
        IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_PAGE_FAULT_ERROR);
        job->source_first_ptr = source;
        job->destination_first_ptr = missing;
        IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_PAGE_FAULT_ERROR);
    }
    return summary();
}
