/* One thread submits, another one takes the ends and frees the jobs: a handle may be reported before telpher_start returns. A
 * forked child ends watched jobs without the thread. */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { JOBS = 4000, TOGETHER = 64, LEN = 512 };

static unsigned char src[LEN], dst[TOGETHER][LEN];
static atomic_int in_flight, gave_up;

struct loop {
    const telpher_mover *mover;
    int reported, wrong;
};

static void *take_ends(void *argument) {
    struct loop *loop = argument;
    struct pollfd one = {.fd = telpher_mover_fd(loop->mover), .events = POLLIN};
    while (loop->reported < JOBS) {
        telpher_job *ended[16];
        if (poll(&one, 1, 60000) != 1) {
            loop->wrong++;
            atomic_store(&gave_up, 1);
            break;
        }
        const int count = telpher_mover_ended(loop->mover, ended, 16);
        for (int i = 0; i < count; i++) {
            loop->wrong += telpher_job_done(ended[i]) != 1 || telpher_job_result(ended[i], 0, NULL) != 0;
            loop->wrong += telpher_job_free(ended[i]) != 0;
        }
        loop->reported += count;
        atomic_fetch_sub(&in_flight, count);
    }
    return NULL;
}

static void one_thread_submits_and_another_one_frees(const char *name, const char *options) {
    telpher_device *device;
    telpher_mover *mover;
    pthread_t thread;
    CHECK(telpher_device_open(&device, name, "runner=threaded") == 0);
    CHECK(telpher_mover_new(&mover, device, options) == 0);
    struct loop loop = {.mover = mover};
    CHECK(telpher_mover_fd(mover) >= 0);
    CHECK(pthread_create(&thread, NULL, take_ends, &loop) == 0);
    for (int i = 0; i < JOBS; i++) {
        telpher_job *job;
        telpher_op op = telpher_op_copy(dst[i % TOGETHER], src, LEN);
        /* The other thread may have freed it when this returns. */
        if (telpher_start(mover, &op, &job) != 0)
            break;
        if (atomic_fetch_add(&in_flight, 1) >= TOGETHER - 1)
            while (atomic_load(&in_flight) >= TOGETHER - 1 && !atomic_load(&gave_up))
                sched_yield();
    }
    pthread_join(thread, NULL);
    CHECK(loop.reported == JOBS && loop.wrong == 0);
    CHECK(telpher_mover_free(mover) == 0);
    telpher_device_close(device);
}

static void a_forked_child_ends_watched_jobs(const char *name) {
    telpher_device *device;
    telpher_mover *mover;
    telpher_job *jobs[TOGETHER], *ended[TOGETHER];
    int status = -1, reported = 0;
    CHECK(telpher_device_open(&device, name, "runner=threaded") == 0);
    CHECK(telpher_mover_new(&mover, device, "threshold=always") == 0);
    struct pollfd one = {.fd = telpher_mover_fd(mover), .events = POLLIN};
    for (int i = 0; i < TOGETHER; i++) {
        telpher_op op = telpher_op_copy(dst[i], src, LEN);
        CHECK(telpher_start(mover, &op, &jobs[i]) == 0);
    }
    const pid_t child = fork();
    if (child == 0) {
        int wrong = telpher_mover_fd(mover) != -ECHILD || telpher_mover_ended(mover, ended, 1) != -ECHILD;
        for (int i = 0; i < TOGETHER; i++) {
            wrong += telpher_job_wait(jobs[i], 20000000000) != 1 || telpher_job_result(jobs[i], 0, NULL) != 0;
            wrong += telpher_job_free(jobs[i]) != 0 || memcmp(dst[i], src, LEN) != 0;
        }
        telpher_op op = telpher_op_copy(dst[0], src, LEN);
        wrong += telpher_start(mover, &op, &jobs[0]) != 0 || telpher_job_wait(jobs[0], 20000000000) != 1;
        wrong += telpher_job_free(jobs[0]) != 0 || telpher_mover_free(mover) != 0;
        _exit(wrong);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The child has taken no end of the parent. */
    while (reported < TOGETHER && poll(&one, 1, 60000) == 1)
        reported += telpher_mover_ended(mover, ended, TOGETHER);
    CHECK(reported == TOGETHER);
    for (int i = 0; i < TOGETHER; i++)
        CHECK(telpher_job_free(jobs[i]) == 0);
    CHECK(telpher_mover_free(mover) == 0);
    telpher_device_close(device);
}

/* Freeing a mover ends its thread, so another mover can have the dedicated queues. */
static void a_freed_mover_gives_its_queues_back(const char *name) {
    telpher_device *device;
    telpher_queue_info info;
    CHECK(telpher_device_open(&device, name, NULL) == 0);
    CHECK(telpher_device_queue(device, 0, &info) == 0 && info.dedicated);
    for (int turn = 0; turn < 50; turn++) {
        telpher_mover *mover;
        telpher_job *job;
        telpher_op op = telpher_op_copy(dst[0], src, LEN);
        CHECK(telpher_mover_new(&mover, device, "threshold=always") == 0);
        CHECK(telpher_mover_fd(mover) >= 0 && telpher_start(mover, &op, &job) == 0 && telpher_job_free(job) == 0);
        CHECK(telpher_mover_free(mover) == 0);
    }
    telpher_device_close(device);
}

int main(int argc, char **argv) {
    (void)argc;
    for (int i = 0; i < LEN; i++)
        src[i] = (unsigned char)(i * 7 + 1);
    one_thread_submits_and_another_one_frees(argv[1], "threshold=always");
    one_thread_submits_and_another_one_frees(argv[1], "threshold=4k");
    a_forked_child_ends_watched_jobs(argv[1]);
    a_freed_mover_gives_its_queues_back(argv[1]);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
