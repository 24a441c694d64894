/* The device never answers a copy: the queue is given up. The hardware path reports it, the automatic one copies on the CPU. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    static uint8_t source[5000], target[5000];
    scatter(source, sizeof(source), 1);
    dml_job_t *jobs[2];
    for (int i = 0; i < 2; i++) {
        dml_job_t *job = jobs[i] = new_job(i ? DML_PATH_AUTO : DML_PATH_HW);
        job->operation = DML_OP_MEM_MOVE;
        job->source_first_ptr = source;
        job->destination_first_ptr = target;
        job->source_length = sizeof(source);
        IS(dml_submit_job(job), DML_STATUS_OK);
        IS(dml_check_job(job), DML_STATUS_BEING_PROCESSED);
    }
    /* In a forked child the device does not answer either: it works in the memory of the parent. */
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        IS(dml_check_job(jobs[0]), DML_STATUS_INTL_HARDWARE_TIMEOUT);
        IS(dml_check_job(jobs[1]), DML_STATUS_OK);
        CHECK(!memcmp(source, target, sizeof(source)));
        fflush(stdout);
        _exit(failures != 0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    IS(dml_wait_job(jobs[0], DML_WAIT_MODE_BUSY_POLL), DML_STATUS_INTL_HARDWARE_TIMEOUT);
    IS(dml_wait_job(jobs[1], DML_WAIT_MODE_UMWAIT), DML_STATUS_OK);
    CHECK(!memcmp(source, target, sizeof(source)));
    return summary();
}
