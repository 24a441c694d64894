/* A program without an interpreter and without a preloaded part: configures a queue by files, and uses it by write(). Each
 * check that fails says so and ends the program with 1. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODE "/dev/dsa/wq0.0"
#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s (errno: %s)\n", __LINE__, #what, strerror(errno));                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct descriptor {
    uint32_t pasid, flags_and_operation;
    uint64_t completion, rest[6];
} __attribute__((packed));

static volatile uint8_t record[32] __attribute__((aligned(32)));

static struct descriptor no_op(uint32_t operation)
{
    return (struct descriptor){.flags_and_operation = operation << 24 | 0xc, .completion = (uintptr_t)record};
}

static void attribute(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    CHECK(fd >= 0);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    CHECK(close(fd) == 0);
}

static void *submit(void *fd)
{
    struct descriptor d = no_op(0);
    record[0] = 0;
    CHECK(write(*(int *)fd, &d, 64) == 64);
    CHECK(record[0] == 1);
    return NULL;
}

static void refused(int fd)
{
    struct descriptor d = no_op(0);
    CHECK(write(fd, &d, 64) == -1 && errno == EPERM);
}

static int status_of(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

int main(int argc, char **argv)
{
    if (argc == 2) { /* waits for an error of the device */
        attribute("/sys/bus/dsa/drivers/user/bind", "wq0.0");
        int fd = open(NODE, O_RDWR);
        CHECK(fd >= 0);
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        CHECK(poll(&waiting, 1, -1) == 1 && waiting.revents == POLLIN);
        return 0;
    }
    if (argc == 3) { /* executed by the opener, which left it the descriptor */
        refused(atoi(argv[2]));
        return 0;
    }
    attribute("/sys/bus/dsa/devices/wq0.0/name", "from a static program\n");
    attribute("/sys/bus/dsa/drivers/user/bind", "wq0.0");
    int fd = open(NODE, O_RDWR);
    CHECK(fd >= 0);
    uint64_t number = 0;
    CHECK(ioctl(fd, _IOR('t', 1, uint64_t), &number) == 0 && number != 0);
    CHECK(ioctl(fd, _IOR('t', 2, uint64_t), &number) == -1 && errno == ENOTTY);
    CHECK(!isatty(fd));
    CHECK(open(NODE, O_RDWR) == -1 && errno == EBUSY);
    CHECK(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(read(fd, &number, 8) == -1 && errno == EINVAL);
    CHECK(lseek(fd, 0, SEEK_CUR) == -1 && errno == ESPIPE);

    submit(&fd);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, submit, &fd) == 0 && pthread_join(thread, NULL) == 0);
    struct descriptor two[2] = {no_op(0), no_op(0)};
    CHECK(write(fd, two, 128) == 128);

    /* Nothing to tell until a descriptor is wrong. */
    struct pollfd waiting = {.fd = fd, .events = POLLIN | POLLRDNORM};
    CHECK(poll(&waiting, 1, 0) == 0);
    struct descriptor wrong = no_op(0x3f);
    CHECK(write(fd, &wrong, 64) == 64 && record[0] == 0x11);
    CHECK(poll(&waiting, 1, -1) == 1 && waiting.revents == (POLLIN | POLLRDNORM));

    /* Another address space: a forked child, and a program executed by this one. */
    pid_t child = fork();
    if (child == 0) {
        refused(fd);
        exit(0);
    }
    CHECK(status_of(child) == 0);
    submit(&fd);
    child = fork();
    if (child == 0) {
        CHECK(close(fd) == 0);
        exit(0);
    }
    CHECK(status_of(child) == 0);
    submit(&fd); /* a copy was closed, the file was not */

    /* A queue that opens once can be opened again as soon as it is closed. */
    CHECK(close(fd) == 0);
    for (int i = 0; i < 1000; i++) {
        fd = open(NODE, O_RDWR);
        CHECK(fd >= 0);
        CHECK(close(fd) == 0);
    }
    fd = open(NODE, O_RDWR);
    CHECK(fd >= 0);
    char number_text[16];
    snprintf(number_text, sizeof number_text, "%d", fd);
    char *again[] = {argv[0], "refused", number_text, NULL};
    execv("/proc/self/exe", again);
    CHECK(0);
}
