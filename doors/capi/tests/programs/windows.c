/* Windows as documented: a child grants memory and hands its files over a socket; this process reads, writes, fills and
 * compares it, through the device of the first argument and the CPU, until the child revokes it. Then durable files. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN 20000

static unsigned char byte_at(size_t at) {
    return (unsigned char)(at * 7 % 251);
}

/* Sends the files of a grant in one message. */
static void send_files(int to, const int32_t *files, size_t count) {
    char data = (char)count;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(2 * sizeof(int32_t))];
    } control = {0};
    struct iovec part = {&data, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int32_t))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int32_t));
    memcpy(CMSG_DATA(header), files, count * sizeof(int32_t));
    if (sendmsg(to, &message, 0) != 1)
        _exit(2);
}

static uint32_t receive_files(int from, int32_t *files) {
    char data = 0;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(2 * sizeof(int32_t))];
    } control = {0};
    struct iovec part = {&data, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control.space};
    if (recvmsg(from, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == NULL)
        exit(2);
    memcpy(files, CMSG_DATA(CMSG_FIRSTHDR(&message)), (size_t)data * sizeof(int32_t));
    return (uint32_t)data;
}

/* The owner: grants, waits for a byte, revokes, and answers with its memory. It ends by _exit:
 * the checks at exit of a sanitizer would find memory of threads that a forked child does not have. */
static void own(int peer, int readable) {
    static unsigned char memory[LEN];
    telpher_mover *mover;
    telpher_grant *grant;
    int32_t files[2];
    char told;
    for (size_t at = 0; at < LEN; at++)
        memory[at] = byte_at(at);
    if (telpher_mover_new(&mover, NULL, NULL))
        _exit(3);
    if (readable ? telpher_grant_new_readable(&grant, mover, memory, LEN) : telpher_grant_new(&grant, mover, memory, LEN))
        _exit(3);
    int count = telpher_grant_files(grant, files, 2);
    if (count != 1 || telpher_grant_files(grant, NULL, 0) != 1)
        _exit(3);
    send_files(peer, files, (size_t)count);
    if (read(peer, &told, 1) == 1) {
        if (telpher_grant_revoke(grant, 60LL * 1000 * 1000 * 1000) || telpher_grant_revoke(grant, 0))
            _exit(4);
        if (telpher_grant_files(grant, files, 2) != -EINVAL || telpher_grant_free(grant))
            _exit(4);
        for (size_t sent = 0; sent < LEN;) {
            ssize_t n = write(peer, memory + sent, LEN - sent);
            if (n <= 0)
                _exit(5);
            sent += (size_t)n;
        }
        /* Lives until the other side has seen that the grant is revoked. */
        (void)!read(peer, &told, 1);
    }
    _exit(0);
}

static int start(pid_t *owner, int readable) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        exit(1);
    *owner = fork();
    if (*owner == 0) {
        close(pair[0]);
        own(pair[1], readable);
    }
    close(pair[1]);
    return pair[0];
}

static void end(pid_t owner, int peer) {
    int status;
    close(peer);
    CHECK(waitpid(owner, &status, 0) == owner && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void use(const telpher_mover *mover) {
    static unsigned char expected[LEN], bytes[LEN];
    pid_t owner;
    int peer = start(&owner, 0);
    int32_t files[2];
    uint32_t count = receive_files(peer, files);
    telpher_window *window;
    CHECK(telpher_window_open(&window, mover, files, count) == 0);
    if (window == NULL)
        exit(1);
    close(files[0]);
    uint64_t size = 0, difference = 99;
    CHECK(telpher_window_size(window, &size) == 0 && size == LEN);
    for (size_t at = 0; at < LEN; at++)
        expected[at] = byte_at(at);
    CHECK(telpher_window_read(window, 0, bytes, LEN) == 0 && memcmp(bytes, expected, LEN) == 0);
    CHECK(telpher_window_compare(window, 5, expected + 5, 9000, NULL) == 0);
    CHECK(telpher_window_write(window, 100, "hello", 5) == 0);
    memcpy(expected + 100, "hello", 5);
    CHECK(telpher_window_fill(window, 1000, 8003, 0x0807060504030201) == 0);
    for (size_t at = 0; at < 8003; at++)
        expected[1000 + at] = (unsigned char)(at % 8 + 1);
    CHECK(telpher_window_compare_pattern(window, 1000, 8003, 0x0807060504030201, &difference) == 0);
    CHECK(telpher_window_write(window, 9001, "\x7f", 1) == 0);
    expected[9001] = 0x7f;
    CHECK(telpher_window_compare_pattern(window, 1000, 8003, 0x0807060504030201, &difference) == 1 && difference == 8001);
    bytes[4999] ^= 1;
    CHECK(telpher_window_compare(window, 4000, bytes + 4000, 1000, &difference) == 1);
    CHECK(telpher_window_read(window, LEN - 4, bytes, 5) == -EINVAL && says("do not lie"));
    CHECK(telpher_window_write(window, UINT64_MAX, bytes, 1) == -EINVAL);
    CHECK(telpher_window_read(window, 0, NULL, 1) == -EFAULT && telpher_window_read(NULL, 0, bytes, 1) == -EFAULT);
    CHECK(write(peer, "x", 1) == 1);
    for (size_t got = 0; got < LEN;) {
        ssize_t n = read(peer, bytes + got, LEN - got);
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    CHECK(memcmp(bytes, expected, LEN) == 0);
    CHECK(telpher_window_read(window, 0, bytes, 1) == -ESTALE && says("revoked"));
    CHECK(telpher_window_write(window, 0, bytes, LEN) == -ESTALE);
    telpher_window_free(window);
    telpher_window_free(NULL);
    end(owner, peer);

    peer = start(&owner, 1);
    count = receive_files(peer, files);
    CHECK(telpher_window_open(&window, mover, files, count) == 0);
    CHECK(telpher_window_write(window, 0, bytes, 1) == -EPERM && says("for reading only"));
    CHECK(telpher_window_fill(window, 0, LEN, 1) == -EPERM);
    CHECK(telpher_window_read(window, 7, bytes, LEN - 7) == 0 && bytes[0] == byte_at(7));
    end(owner, peer);
    CHECK(telpher_window_read(window, 7, bytes, LEN - 7) == -ESTALE && says("gone"));
    telpher_window_free(window);
    CHECK(telpher_window_open(&window, mover, files, count) == -EBADF && window == NULL);
    close(files[0]);
}

static void wrong_arguments(const telpher_mover *mover) {
    telpher_window *window;
    telpher_grant *grant;
    unsigned char memory[8];
    int32_t null = -1, pipes[2];
    CHECK(telpher_window_open(&window, mover, &null, 1) == -EBADF && window == NULL);
    CHECK(telpher_window_open(&window, mover, NULL, 1) == -EFAULT);
    CHECK(telpher_window_open(&window, mover, NULL, 0) == -EINVAL && says("one file or two"));
    CHECK(pipe(pipes) == 0 && telpher_window_open(&window, mover, pipes, 1) == -EBADF && says("is not a grant"));
    CHECK(telpher_grant_new(&grant, mover, memory, 0) == -EINVAL && grant == NULL);
    CHECK(telpher_grant_new(&grant, mover, NULL, 8) == -EFAULT && telpher_grant_new(&grant, NULL, memory, 8) == -EFAULT);
    CHECK(telpher_grant_free(NULL) == 0 && telpher_grant_revoke(NULL, 0) == -EFAULT);
    close(pipes[0]);
    close(pipes[1]);
}

struct revoking {
    telpher_grant *grant;
    int answer;
};

static void *revokes(void *of) {
    struct revoking *revoking = of;
    revoking->answer = telpher_grant_revoke(revoking->grant, 60LL * 1000 * 1000 * 1000);
    return NULL;
}

/* While a thread waits for the end of accesses, no other call with the grant waits for that thread. */
static void revoked_by_a_thread(const telpher_mover *mover) {
    static unsigned char memory[LEN];
    telpher_window *window;
    int32_t files[2];
    char path[64];
    pthread_t thread;
    struct revoking revoking = {NULL, 99};
    CHECK(telpher_grant_new(&revoking.grant, mover, memory, LEN) == 0);
    int count = telpher_grant_files(revoking.grant, files, 2);
    CHECK(count == 1);
    if (count != 1)
        return;
    /* As an access in progress: it locks the file, opened anew. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", files[0]);
    int locked = open(path, O_RDONLY);
    CHECK(locked >= 0 && flock(locked, LOCK_SH) == 0);
    CHECK(pthread_create(&thread, NULL, revokes, &revoking) == 0);
    /* The grant's file is open until the thread has ended. */
    while (telpher_window_open(&window, mover, files, 1) == 0)
        telpher_window_free(window);
    CHECK(says("revoked"));
    CHECK(telpher_grant_files(revoking.grant, files, 2) == -EINVAL);
    CHECK(telpher_grant_revoke(revoking.grant, 0) == -EBUSY && says("another thread"));
    CHECK(telpher_grant_free(revoking.grant) == -EBUSY);
    close(locked);
    CHECK(pthread_join(thread, NULL) == 0 && revoking.answer == 0);
    CHECK(telpher_grant_free(revoking.grant) == 0);
}

/* `folder` may be in memory: then the file is refused, which is checked instead. */
static void durable(const telpher_mover *mover, const char *folder) {
    char path[4096];
    telpher_durable *file;
    const void *bytes;
    uint64_t size;
    snprintf(path, sizeof path, "%s/telpher-durable-%ld", folder, (long)getpid());
    int created = telpher_durable_create(&file, path, 10000);
    if (created == -EINVAL && says("file system in memory"))
        return;
    CHECK(created == 0);
    if (file == NULL)
        return;
    CHECK(telpher_durable_store(file, mover, 4090, "survives", 8) == 0);
    CHECK(telpher_durable_bytes(file, &bytes, &size) == 0 && size == 10000);
    CHECK(memcmp((const char *)bytes + 4090, "survives", 8) == 0);
    CHECK(telpher_durable_store(file, mover, 9993, "survives", 8) == -EINVAL && says("do not lie"));
    CHECK(telpher_durable_direct(file) >= 0);
    telpher_durable *other;
    CHECK(telpher_durable_open(&other, path) == -EBUSY && other == NULL);
    telpher_durable_free(file);
    CHECK(telpher_durable_create(&file, path, 10000) == -EEXIST);
    CHECK(telpher_durable_open(&file, path) == 0);
    CHECK(telpher_durable_bytes(file, &bytes, &size) == 0 && memcmp((const char *)bytes + 4090, "survives", 8) == 0);
    telpher_durable_free(file);
    telpher_durable_free(NULL);
    CHECK(unlink(path) == 0);
    CHECK(telpher_durable_open(&file, path) == -ENOENT && telpher_durable_open(&file, NULL) == -EFAULT);
    CHECK(telpher_durable_store(NULL, mover, 0, "", 1) == -EFAULT);
}

int main(int argc, char **argv) {
    telpher_device *device;
    telpher_mover *mover, *cpu;
    if (argc < 2 || telpher_device_open(&device, argv[1], NULL) || telpher_mover_new(&mover, device, NULL) ||
        telpher_mover_new(&cpu, NULL, NULL)) {
        printf("%s\n", telpher_last_error());
        return 1;
    }
    use(mover);
    use(cpu);
    wrong_arguments(cpu);
    revoked_by_a_thread(cpu);
    durable(mover, "/var/tmp");
    telpher_mover_free(cpu);
    telpher_mover_free(mover);
    telpher_device_close(device);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
