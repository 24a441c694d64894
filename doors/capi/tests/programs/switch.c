/* A packet switch as documented, without a guest: wrong arguments, counters, captures, and how it ends. tests/staged.rs runs
 * the example switch between two guests. */
#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64], other[64], capture[64];

static int is_refused(const telpher_switch_port *ports, uint32_t count, const char *options, int error, const char *words) {
    telpher_switch *packet_switch = (telpher_switch *)(uintptr_t)1;
    return telpher_switch_new(&packet_switch, NULL, ports, count, options) == error && packet_switch == NULL && says(words);
}

static void wrong_arguments_are_refused(telpher_device *device) {
    telpher_switch *packet_switch;
    telpher_switch_port good = {.path = path}, wrong = good;
    CHECK(telpher_switch_new(NULL, NULL, &good, 1, NULL) == -EFAULT && says("handle"));
    CHECK(is_refused(NULL, 1, NULL, -EFAULT, "the list of ports is NULL"));
    CHECK(is_refused(NULL, 0, NULL, -EINVAL, "at least one port"));
    CHECK(is_refused(&good, 1, "forward=learned", -EINVAL, "takes io, mac"));
    CHECK(is_refused(&good, 1, "threads=2", -EINVAL, "2 threads"));
    CHECK(is_refused(&good, 1, "forward=txonly size=4k", -EINVAL, "exceed the longest packet"));
    wrong.path = NULL;
    CHECK(is_refused(&wrong, 1, NULL, -EFAULT, "path is NULL"));
    wrong.path = "/nonexistent/telpher.sock";
    CHECK(is_refused(&wrong, 1, NULL, -ENOENT, "/nonexistent/telpher.sock"));
    wrong = good;
    wrong.kind = 3;
    CHECK(is_refused(&wrong, 1, NULL, -EINVAL, "no kind of port 3"));
    wrong = good;
    wrong.pairs = 129;
    CHECK(is_refused(&wrong, 1, NULL, -EINVAL, "129 pairs"));
    wrong = good;
    wrong.reserved[4] = 1;
    CHECK(is_refused(&wrong, 1, NULL, -EINVAL, "reserved"));
    wrong = good;
    wrong.kind = TELPHER_SWITCH_TAP;
    wrong.pairs = 1;
    CHECK(is_refused(&wrong, 1, NULL, -EINVAL, "adopts its peer's"));
    wrong.pairs = 0;
    wrong.path = "a/b";
    CHECK(is_refused(&wrong, 1, NULL, -EINVAL, "not valid for an interface"));
    wrong = good;
    wrong.capture = "/nonexistent/telpher.pcap";
    CHECK(is_refused(&wrong, 1, NULL, -ENOENT, "/nonexistent/telpher.pcap"));
    CHECK(telpher_switch_new(&packet_switch, device, &good, 1, "queues=99") == -EINVAL && packet_switch == NULL);
    /* No socket is left of a switch that was refused. */
    CHECK(access(path, F_OK) != 0);
}

static void every_function_checks_its_handle(void) {
    telpher_switch_stats stats;
    telpher_vhost_stats queue;
    telpher_vhost_socket_state state;
    CHECK(telpher_switch_stop(NULL) == -EFAULT && says("the switch is NULL"));
    CHECK(telpher_switch_stats_of(NULL, 0, &stats) == -EFAULT);
    CHECK(telpher_switch_queue_stats_of(NULL, 0, 0, &queue) == -EFAULT);
    CHECK(telpher_switch_socket_state_of(NULL, 0, &state) == -EFAULT);
    telpher_switch_free(NULL);
}

static void *stop(void *packet_switch) {
    return telpher_switch_stop(packet_switch) == 0 ? packet_switch : NULL;
}

static void a_switch_counts_until_it_is_stopped(telpher_device *device) {
    telpher_switch *packet_switch;
    telpher_switch_stats stats, again;
    telpher_vhost_stats queue;
    telpher_vhost_socket_state state;
    struct stat file;
    const telpher_switch_port ports[2] = {{.path = path, .capture = capture}, {.path = other, .pairs = 2}};
    CHECK(telpher_switch_new(&packet_switch, device, ports, 2, "forward=txonly threads=2 buffers=4096") == 0);
    if (packet_switch == NULL)
        return;
    CHECK(telpher_switch_socket_state_of(packet_switch, 0, &state) == 0 && state.connected == 0 && state.sessions == 0);
    /* A second switch cannot have the socket. It connects to find that out, which counts as a session. */
    CHECK(is_refused(ports, 1, NULL, -EADDRINUSE, path));
    /* Generated packets wait for a receiver. They are counted while the switch runs. */
    do
        CHECK(telpher_switch_stats_of(packet_switch, 1, &stats) == 0);
    while (failures == 0 && stats.generated == 0);
    CHECK(telpher_switch_stats_of(packet_switch, 2, &stats) == -EINVAL && says("no port 2; there are 2"));
    CHECK(telpher_switch_stats_of(packet_switch, 0, NULL) == -EFAULT);
    CHECK(telpher_switch_queue_stats_of(packet_switch, 0, 2, &queue) == -EINVAL && says("there are 2"));
    CHECK(telpher_switch_queue_stats_of(packet_switch, 1, 3, &queue) == 0 && queue.packets == 0);
    CHECK(telpher_switch_queue_stats_of(packet_switch, 2, 0, &queue) == -EINVAL);
    CHECK(telpher_switch_queue_stats_of(packet_switch, 0, 0, NULL) == -EFAULT);
    CHECK(telpher_switch_socket_state_of(packet_switch, 2, &state) == -EINVAL);
    CHECK(telpher_switch_socket_state_of(packet_switch, 0, NULL) == -EFAULT);
    /* Two threads stop it: both return when it is stopped. */
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, stop, packet_switch) == 0);
    CHECK(telpher_switch_stop(packet_switch) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == packet_switch);
    CHECK(telpher_switch_stats_of(packet_switch, 1, &stats) == 0);
    CHECK(stats.generated > 0 && stats.generated == stats.held && stats.sent == 0 && stats.in_flight == 0);
    CHECK(telpher_switch_stop(packet_switch) == 0);
    CHECK(telpher_switch_stats_of(packet_switch, 1, &again) == 0 && memcmp(&stats, &again, sizeof stats) == 0);
    /* No packet was sent: the capture has only its header. */
    CHECK(stat(capture, &file) == 0 && file.st_size == 24);
    CHECK(access(path, F_OK) == 0);
    telpher_switch_free(packet_switch);
    CHECK(access(path, F_OK) != 0 && access(other, F_OK) != 0);
    /* Freed without being stopped. */
    CHECK(telpher_switch_new(&packet_switch, NULL, ports, 2, NULL) == 0);
    telpher_switch_free(packet_switch);
    unlink(capture);
}

int main(int argc, char **argv) {
    telpher_device *device;
    snprintf(path, sizeof path, "/tmp/telpher-switch-%ld-a", (long)getpid());
    snprintf(other, sizeof other, "/tmp/telpher-switch-%ld-b", (long)getpid());
    snprintf(capture, sizeof capture, "/tmp/telpher-switch-%ld-c", (long)getpid());
    CHECK(telpher_has("switch") == 1);
    if (telpher_device_open(&device, argc > 1 ? argv[1] : "model:spr", NULL) != 0)
        return fail(__LINE__, "telpher_device_open"), 1;
    every_function_checks_its_handle();
    wrong_arguments_are_refused(device);
    a_switch_counts_until_it_is_stopped(device);
    telpher_device_close(device);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
