/* A static program without a guest, which sees the device only through files: it configures a queue by attributes and
 * submits by write(). A failed check prints a message and ends the program with code 1. */
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

enum { REQUEST_RECORD = 0xc, NO_OP = 0, MEMMOVE = 3, UNKNOWN = 0x3f };

struct descriptor {
    uint32_t pasid, flags_and_operation;
    uint64_t completion, source, destination;
    uint32_t size, rest[7];
};

static volatile uint8_t record[32] __attribute__((aligned(32)));

static struct descriptor of(uint32_t operation)
{
    return (struct descriptor){.flags_and_operation = operation << 24 | REQUEST_RECORD,
                               .completion = (uintptr_t)record};
}

static void attribute(const char *path, const char *text)
{
    /* As a script does; truncation has no effect. */
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
}

static int configured_queue(void)
{
#define DEVICES "/sys/bus/dsa/devices/"
    attribute(DEVICES "engine0.0/group_id", "0");
    attribute(DEVICES "wq0.0/group_id", "0\n");
    attribute(DEVICES "wq0.0/mode", "dedicated\n");
    attribute(DEVICES "wq0.0/size", "16");
    attribute(DEVICES "wq0.0/priority", "10");
    attribute(DEVICES "wq0.0/type", "user");
    attribute(DEVICES "dsa0/wq0.0/name", "static");
    if (access(DEVICES "wq0.0/driver_name", W_OK) == 0)
        attribute(DEVICES "wq0.0/driver_name", "user");
    attribute("/sys/bus/dsa/drivers/idxd/bind", "dsa0");
    CHECK(access(NODE, F_OK) == -1 && errno == ENOENT);
    attribute("/sys/bus/dsa/drivers/user/bind", "wq0.0");
    int fd = open(NODE, O_RDWR);
    CHECK(fd >= 0);
    return fd;
}

static void *submit(void *fd)
{
    static char from[100000], to[100000];
    struct descriptor d = of(NO_OP);
    record[0] = 0;
    CHECK(write(*(int *)fd, &d, 64) == 64 && record[0] == 1);
    d = of(MEMMOVE);
    memset(from, 0x5a, sizeof from); /* resident; otherwise the access faults, as on hardware */
    memset(to, 0, sizeof to);
    record[0] = 0;
    d.source = (uintptr_t)from, d.destination = (uintptr_t)to, d.size = sizeof from;
    CHECK(write(*(int *)fd, &d, 64) == 64 && record[0] == 1);
    CHECK(memcmp(from, to, sizeof from) == 0);
    return NULL;
}

static void refused(int fd)
{
    struct descriptor d = of(NO_OP);
    CHECK(write(fd, &d, 64) == -1 && errno == EPERM);
}

static int status_of(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void use(int fd)
{
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
    struct descriptor two[3] = {of(NO_OP), of(NO_OP), of(NO_OP)};
    CHECK(write(fd, two, 128) == 128);
    CHECK(write(fd, two, 150) == 128);
    two[0].completion += 8;
    CHECK(write(fd, two, 64) == -1 && errno == EINVAL);

    /* Other address spaces: a forked child, and the program that this one executes at the end. */
    pid_t child = fork();
    if (child == 0) {
        refused(fd);
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        CHECK(poll(&waiting, 1, 0) == 0);
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

    /* A dedicated queue can be opened again as soon as it is closed. */
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
    execl("/proc/self/exe", "again", "refused", number_text, (char *)NULL);
    CHECK(0);
}

/* Waits for an error of the device, which another thread causes once this one sleeps. */
static void wait_for_an_error(int fd)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN | POLLRDNORM};
    CHECK(poll(&waiting, 1, 0) == 0);
    puts("waiting");
    fflush(stdout);
    CHECK(poll(&waiting, 1, -1) == 1 && waiting.revents == (POLLIN | POLLRDNORM));
}

static void *make_an_error(void *fd)
{
    CHECK(getchar() == '\n');
    /* No completion record: the error can only be latched. */
    struct descriptor wrong = {.flags_and_operation = (uint32_t)UNKNOWN << 24};
    CHECK(write(*(int *)fd, &wrong, 64) == 64);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc == 3) { /* executed by the opener, which left it the descriptor */
        refused(atoi(argv[2]));
        return 0;
    }
    int fd = configured_queue();
    if (argc == 1)
        use(fd);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, make_an_error, &fd) == 0);
    wait_for_an_error(fd);
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}
