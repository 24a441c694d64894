/* Ten thousand jobs through one epoll loop: none is missed and none is reported twice. */
#include "check.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { JOBS = 10000, TOGETHER = 64, LEN = 512 };

static unsigned char src[LEN], dst[TOGETHER][LEN];

/* A job in flight, and its number. */
static struct {
    telpher_job *job;
    int number;
} places[TOGETHER];

static int place_of(const telpher_job *job) {
    for (int i = 0; i < TOGETHER; i++)
        if (places[i].job == job)
            return i;
    return -1;
}

static void every_end_is_reported_once(const char *name, const char *runner, const char *options) {
    telpher_device *device;
    telpher_mover *mover;
    CHECK(telpher_device_open(&device, name, runner) == 0);
    CHECK(telpher_mover_new(&mover, device, options) == 0);
    const int fd = telpher_mover_fd(mover), loop = epoll_create1(EPOLL_CLOEXEC);
    CHECK(fd >= 0 && telpher_mover_fd(mover) == fd);
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    CHECK(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0);
    int started = 0, reported = 0;
    static unsigned char seen[JOBS];
    memset(seen, 0, sizeof seen);
    while (reported < JOBS && failures == 0) {
        for (int i = 0; i < TOGETHER && started < JOBS; i++) {
            if (places[i].job != NULL)
                continue;
            memset(dst[i], 0, LEN);
            telpher_op op = telpher_op_copy(dst[i], src, LEN);
            CHECK(telpher_start(mover, &op, &places[i].job) == 0);
            places[i].number = started++;
        }
        CHECK(epoll_wait(loop, &event, 1, 60000) == 1 && event.data.fd == fd);
        telpher_job *ended[7];
        const int count = telpher_mover_ended(mover, ended, 7);
        for (int i = 0; i < count; i++) {
            const int at = place_of(ended[i]);
            telpher_result result;
            CHECK(at >= 0 && seen[places[at].number]++ == 0);
            CHECK(telpher_job_result(ended[i], 0, &result) == 0 && memcmp(src, dst[at], LEN) == 0);
            CHECK(telpher_job_done(ended[i]) == 1 && telpher_job_wait(ended[i], 0) == 1);
            CHECK(telpher_job_free(ended[i]) == 0);
            places[at].job = NULL;
            reported++;
        }
    }
    CHECK(epoll_wait(loop, &event, 1, 0) == 0);
    close(loop);
    CHECK(telpher_mover_free(mover) == 0);
    telpher_device_close(device);
}

static int is_readable(int fd, int milliseconds) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, milliseconds);
}

static void batches_and_ended_jobs_are_reported_and_freed_ones_are_not(const char *name) {
    telpher_device *device;
    telpher_mover *mover;
    telpher_batch *batch;
    telpher_job *job, *small, *ended[4];
    CHECK(telpher_device_open(&device, name, NULL) == 0);
    CHECK(telpher_mover_new(&mover, device, "threshold=256") == 0);
    CHECK(telpher_mover_ended(mover, ended, 4) == 0);
    CHECK(telpher_mover_ended(mover, NULL, 4) == -EFAULT && telpher_mover_fd(NULL) == -EFAULT);
    const int fd = telpher_mover_fd(mover);
    CHECK(telpher_batch_new(mover, &batch) == 0);
    telpher_op whole = telpher_op_copy(dst[0], src, LEN), part = telpher_op_fill(dst[1], 7, LEN);
    CHECK(telpher_batch_add(batch, &whole) == 0 && telpher_batch_add(batch, &part) == 1);
    CHECK(telpher_batch_submit(batch, &job) == 0);
    CHECK(is_readable(fd, 60000) == 1 && telpher_mover_ended(mover, ended, 4) == 1 && ended[0] == job);
    CHECK(telpher_job_results(job) == 2 && telpher_job_result(job, 1, NULL) == 0 && telpher_job_free(job) == 0);
    /* The CPU makes it before telpher_start returns. */
    telpher_op little = telpher_op_copy(dst[0], src, 16);
    CHECK(telpher_start(mover, &little, &small) == 0);
    CHECK(is_readable(fd, 0) == 1 && telpher_mover_ended(mover, ended, 4) == 1 && ended[0] == small);
    CHECK(telpher_job_free(small) == 0);
    CHECK(telpher_start(mover, &little, &small) == 0 && telpher_job_free(small) == 0);
    CHECK(telpher_start(mover, &whole, &job) == 0 && telpher_job_wait(job, -1) == 1 && telpher_job_free(job) == 0);
    CHECK(telpher_start(mover, &whole, &job) == 0 && telpher_job_abandon(job) == 0);
    while (telpher_mover_outstanding(mover) > 0)
        CHECK(telpher_mover_drive(mover) == 0);
    CHECK(telpher_mover_ended(mover, ended, 4) == 0);
    CHECK(telpher_mover_free(mover) == 0);
    telpher_device_close(device);
}

int main(int argc, char **argv) {
    (void)argc;
    for (int i = 0; i < LEN; i++)
        src[i] = (unsigned char)(i * 7 + 1);
    every_end_is_reported_once(argv[1], "runner=inline", "threshold=always");
    every_end_is_reported_once(argv[1], "runner=threaded", "threshold=always wait=predicted");
    batches_and_ended_jobs_are_reported_and_freed_ones_are_not(argv[1]);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
