/*
 * Small programs in the manner of known users of the library: futures that poll, jobs from a slab, jobs laid out back to back, jobs that
 * are freed without an end, threads, forks.
 * users PATH
 */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 10000, JOBS = 64, STRIDE = 376 };
static dml_path_t path;

static uint8_t source[JOBS][SIZE], target[JOBS][SIZE];

/* A device reports pages that are missing, and those that a fork has shared, as faults; the program's writes make them present. */
static void touch(void) {
    memset(source, 1, sizeof(source));
    memset(target, 1, sizeof(target));
}

/* A full queue is no failure: the original's users try again. */
static dml_status_t submit(dml_job_t *job) {
    dml_status_t status;
    while ((status = dml_submit_job(job)) == DML_STATUS_WORK_QUEUES_NOT_AVAILABLE) sched_yield();
    return status;
}

/* miniasync: a future is polled until it is neither being processed nor done. */
static void futures(void) {
    dml_job_t *jobs[JOBS];
    for (int i = 0; i < JOBS; i++) {
        scatter(source[i], SIZE, (unsigned)i);
        dml_job_t *job = jobs[i] = malloc(STRIDE);
        IS(dml_init_job(path, job), DML_STATUS_OK);
        job->operation = i % 2 ? DML_OP_MEM_MOVE : DML_OP_FILL;
        memset(job->pattern, i, 8);
        job->source_first_ptr = source[i];
        job->destination_first_ptr = target[i];
        job->source_length = job->destination_length = SIZE;
        job->flags = i % 2 ? DML_FLAG_COPY_ONLY | DML_FLAG_PREFETCH_CACHE : 0;
        IS(submit(job), DML_STATUS_OK);
    }
    for (int left = JOBS; left > 0;)
        for (int i = 0; i < JOBS; i++) {
            dml_status_t status = jobs[i] ? dml_check_job(jobs[i]) : DML_STATUS_BEING_PROCESSED;
            if (status == DML_STATUS_BEING_PROCESSED) continue;
            IS(status, DML_STATUS_OK);
            CHECK(i % 2 ? !memcmp(source[i], target[i], SIZE) : target[i][0] == i && target[i][SIZE - 1] == i);
            /* The flag is read back after the submission. */
            CHECK(jobs[i]->flags == (i % 2 ? DML_FLAG_COPY_ONLY | DML_FLAG_PREFETCH_CACHE : 0u));
            /* No dml_finalize_job. */
            memset(jobs[i], 0xff, STRIDE);
            free(jobs[i]);
            jobs[i] = NULL;
            left--;
        }
}

/* A slab of jobs back to back, at multiples of 8, each used again and again for other operations. */
static void slab(void) {
    uint8_t *memory = malloc(JOBS * STRIDE + 8);
    uint8_t *first = memory + 8;
    for (int i = 0; i < JOBS; i++) IS(dml_init_job(path, (dml_job_t *)(first + i * STRIDE)), DML_STATUS_OK);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < JOBS; i++) {
            dml_job_t *job = (dml_job_t *)(first + i * STRIDE);
            scatter(source[i], SIZE, (unsigned)(i * 100 + round));
            job->operation = round % 3 ? DML_OP_MEM_MOVE : DML_OP_COMPARE;
            job->source_first_ptr = source[i];
            job->source_second_ptr = target[i];
            job->destination_first_ptr = target[i];
            job->source_length = SIZE - (uint32_t)round;
            IS(submit(job), DML_STATUS_OK);
        }
        for (int i = 0; i < JOBS; i++) {
            dml_job_t *job = (dml_job_t *)(first + i * STRIDE);
            IS(dml_wait_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
            if (round % 3) CHECK(!memcmp(source[i], target[i], SIZE - (uint32_t)round));
            else CHECK(job->result == 1);
        }
    }
    for (int i = 0; i < JOBS; i++) IS(dml_finalize_job((dml_job_t *)(first + i * STRIDE)), DML_STATUS_OK);
    free(memory);
}

/* A job with its tail in one structure. One that is submitted while it runs is waited for, and so is one that is finalized. */
static void embedded(void) {
    struct {
        _Alignas(64) dml_job_t job;
        uint8_t tail[STRIDE];
    } one;
    IS(dml_init_job(path, &one.job), DML_STATUS_OK);
    for (int i = 0; i < 50; i++) {
        one.job.operation = DML_OP_MEM_MOVE;
        one.job.source_first_ptr = source[i];
        one.job.destination_first_ptr = target[i];
        one.job.source_length = SIZE;
        memset(target[i], 0, SIZE);
        IS(submit(&one.job), DML_STATUS_OK);
    }
    IS(dml_finalize_job(&one.job), DML_STATUS_OK);
    for (int i = 0; i < 50; i++) CHECK(!memcmp(source[i], target[i], SIZE));
    /* A copy of the bytes has the state of its original. */
    IS(submit(&one.job), DML_STATUS_OK);
    dml_job_t copied;
    memcpy(&copied, &one.job, sizeof(copied));
    IS(dml_wait_job(&copied, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    IS(dml_wait_job(&one.job, DML_WAIT_MODE_UMWAIT), DML_STATUS_OK);
}

/* A job, its tail and the buffer of a batch in one structure, as a file system has them in a slab: every batch is filled anew. Its
 * members let the device wait for pages, unless the queue refuses that. */
static void embedded_batch(void) {
    enum { MEMBERS = 8 };
    struct {
        _Alignas(64) dml_job_t job;
        uint8_t tail[STRIDE];
        uint8_t buffer[MEMBERS * 96 + 64];
    } one;
    IS(dml_init_job(path, &one.job), DML_STATUS_OK);
    one.job.operation = DML_OP_BATCH;
    one.job.destination_first_ptr = one.buffer;
    one.job.destination_length = sizeof(one.buffer);
    dml_operation_flags_t flags = DML_FLAG_BLOCK_ON_FAULT | DML_FLAG_PREFETCH_CACHE;
    for (unsigned round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < MEMBERS; i++) {
            scatter(source[i], SIZE, round * 10 + i);
            IS(dml_batch_set_mem_move_by_index(&one.job, i, source[i], target[i], SIZE - round, flags), DML_STATUS_OK);
        }
        IS(submit(&one.job), DML_STATUS_OK);
        dml_status_t status, of_member;
        while ((status = dml_check_job(&one.job)) == DML_STATUS_BEING_PROCESSED) sched_yield();
        if (status == DML_STATUS_BATCH_ERROR && flags & DML_FLAG_BLOCK_ON_FAULT) {
            IS(dml_batch_get_status(&one.job, 0, &of_member), DML_STATUS_OK);
            IS(of_member, DML_STATUS_JOB_FLAGS_ERROR);
            CHECK(path != DML_PATH_SW);
            flags = DML_FLAG_PREFETCH_CACHE;
            continue;
        }
        IS(status, DML_STATUS_OK);
        for (uint32_t i = 0; i < MEMBERS; i++) CHECK(!memcmp(source[i], target[i], SIZE - round));
    }
    IS(dml_finalize_job(&one.job), DML_STATUS_OK);
}

/* Jobs whose end no call sees: a queue's entries must not run out. */
static void forgotten(void) {
    for (int round = 0; round < 8; round++)
        for (int i = 0; i < JOBS; i++) {
            volatile uint8_t *last = &target[i][SIZE - 1];
            dml_job_t *job = malloc(STRIDE);
            IS(dml_init_job(path, job), DML_STATUS_OK);
            job->operation = DML_OP_FILL;
            job->destination_first_ptr = target[i];
            job->destination_length = SIZE;
            memset(job->pattern, round + 1, 8);
            IS(submit(job), DML_STATUS_OK);
            /* The memory stays, because a device may still write the record. */
            if (path == DML_PATH_SW) CHECK(*last == round + 1);
        }
    dml_job_t *job = new_job(path);
    job->operation = DML_OP_NOP;
    IS(submit(job), DML_STATUS_OK);
    IS(dml_wait_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
}

static void *in_thread(void *argument) {
    uintptr_t number = (uintptr_t)argument;
    dml_job_t *job = malloc(STRIDE);
    unsigned long wrong = dml_init_job(path, job) != DML_STATUS_OK;
    for (int i = 0; i < 500; i++) {
        job->operation = DML_OP_MEM_MOVE;
        job->source_first_ptr = source[i % JOBS];
        job->destination_first_ptr = target[number];
        job->source_length = SIZE;
        dml_status_t status = submit(job);
        if (status == DML_STATUS_OK) status = dml_wait_job(job, i % 2 ? DML_WAIT_MODE_UMWAIT : DML_WAIT_MODE_BUSY_POLL);
        wrong += status != DML_STATUS_OK || memcmp(source[i % JOBS], target[number], SIZE);
    }
    free(job);
    return (void *)wrong;
}

static void threads(void) {
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, in_thread, (void *)i));
    for (int i = 0; i < 4; i++) {
        void *wrong;
        CHECK(!pthread_join(threads[i], &wrong) && wrong == NULL);
    }
}

/* A child uses the library, on the hardware path with queues of its own, and sees the ends of jobs that its parent has submitted. */
static void forks(void) {
    dml_job_t *job = new_job(path);
    job->operation = DML_OP_MEM_MOVE;
    job->source_first_ptr = source[0];
    job->destination_first_ptr = target[0];
    job->source_length = SIZE;
    scatter(source[0], SIZE, 99);
    IS(submit(job), DML_STATUS_OK);
    IS(dml_wait_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        IS(dml_wait_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
        touch();
        job->destination_first_ptr = target[1];
        dml_status_t status = dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL);
        IS(status, DML_STATUS_OK);
        CHECK(!memcmp(source[0], target[1], SIZE));
        fflush(stdout);
        _exit(failures != 0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    IS(dml_wait_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    CHECK(!memcmp(source[0], target[0], SIZE));
    touch();
}

/* A node that no queue is on: another one is used. */
static void nodes(void) {
    dml_job_t *job = new_job(path);
    job->operation = DML_OP_NOP;
    for (uint32_t node = 0; node < 3; node++) {
        job->numa_id = node * 500;
        IS(dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    }
}

int main(int argc, char **argv) {
    path = path_of(argv[1]);
    (void)argc;

    touch();
    forks();
    futures();
    slab();
    embedded();
    embedded_batch();
    forgotten();
    threads();
    nodes();
    forks();
    return summary();
}
