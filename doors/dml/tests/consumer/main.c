/* Copies by the C interface, on the path that the argument names. */
#include <dml/dml.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    uint8_t src[1000], dst[1000] = {0};
    uint32_t size = 0;
    dml_job_t *job;
    dml_status_t status;

    memset(src, 0x5A, sizeof(src));
    if (dml_get_job_size(DML_PATH_SW, &size) != DML_STATUS_OK || (job = malloc(size)) == NULL) {
        return 1;
    }
    status = dml_init_job(DML_PATH_SW, job);
    if (status == DML_STATUS_OK) {
        job->operation = DML_OP_MEM_MOVE;
        job->source_first_ptr = src;
        job->destination_first_ptr = dst;
        job->source_length = sizeof(src);
        status = dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL);
    }
    dml_finalize_job(job);
    free(job);
    return status == DML_STATUS_OK && memcmp(src, dst, sizeof(src)) == 0 ? 0 : 1;
}
