/* A switch of two ports: each virtual machine receives what the other sends, with the Ethernet addresses swapped.
 * A device's queues copy packets of 512 bytes and more, if there is a device; this thread copies smaller ones. All
 * packets keep their order.
 *
 *     cc vhost_switch.c $(pkg-config --cflags --libs telpher) -o vhost_switch && ./vhost_switch /tmp/a.sock /tmp/b.sock model:spr
 *
 * Each virtual machine uses one of the sockets as its network card:
 *
 *     qemu-system-x86_64 ... -chardev socket,id=c0,path=/tmp/a.sock -netdev vhost-user,id=n0,chardev=c0 -device virtio-net-pci,netdev=n0
 *
 * Ends on SIGINT or SIGTERM, and prints its counters. */
#define _POSIX_C_SOURCE 200809L /* sigaction; in strict C signal() resets its handler after the first signal */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <telpher.h>

#define BURST 32
#define PORTS 2

static volatile sig_atomic_t ended;

static void end(int signal) {
    (void)signal;
    ended = 1;
}

static int check(int result) {
    if (result < 0) {
        fprintf(stderr, "vhost_switch: %s\n", telpher_last_error());
        exit(1);
    }
    return result;
}

static void exchange_addresses(const telpher_packet *packet) {
    unsigned char *const ethernet = packet->data, keep[6];
    if (packet->len < 12)
        return;
    memcpy(keep, ethernet, 6);
    memcpy(ethernet, ethernet + 6, 6);
    memcpy(ethernet + 6, keep, 6);
}

/* Forwards the packets of `from` to `to`. Packets that `to` does not accept now are dropped. */
static uint64_t forward(telpher_vhost_pool *pool, telpher_vhost_port *from, telpher_vhost_port *to) {
    telpher_packet burst[BURST];
    /* Shows the guest its completed packets; their buffers become free again. */
    check(telpher_vhost_poll_enqueue_completed(to, 0, NULL, 0));
    const uint32_t count = (uint32_t)check(telpher_vhost_try_dequeue_burst(from, 0, burst, BURST));
    for (uint32_t i = 0; i < count; i++)
        exchange_addresses(&burst[i]);
    /* From here on the port owns the packets that it took. */
    const uint32_t taken = (uint32_t)check(telpher_vhost_submit_enqueue_burst(to, 0, burst, count));
    check(telpher_vhost_free_burst(pool, burst + taken, count - taken));
    return count - taken;
}

int main(int argc, char **argv) {
    if (argc < 1 + PORTS) {
        fprintf(stderr, "usage: vhost_switch SOCKET SOCKET [DEVICE]\n");
        return 2;
    }
    telpher_device *device;
    telpher_vhost_pool *pool;
    telpher_vhost_lane *lane = NULL;
    telpher_vhost_port *ports[PORTS];
    telpher_vhost_socket *sockets[PORTS];
    check(telpher_device_open(&device, argc > 1 + PORTS ? argv[1 + PORTS] : "cpu", NULL));
    if (check(telpher_device_queues(device)) > 0)
        check(telpher_vhost_lane_new(&lane, device, 0, 1024));
    check(telpher_vhost_pool_new(&pool, 16 * 1024, 2048, NULL, 0));
    const telpher_vhost_queue queue = {.lanes = &lane, .lane_count = lane != NULL, .device_from = 512};
    for (int i = 0; i < PORTS; i++) {
        check(telpher_vhost_port_new(&ports[i], pool, &queue, 1, "pairs=1"));
        check(telpher_vhost_socket_new(&sockets[i], ports[i], argv[1 + i], TELPHER_VHOST_SERVER));
    }
    const struct sigaction on_end = {.sa_handler = end};
    sigaction(SIGINT, &on_end, NULL);
    sigaction(SIGTERM, &on_end, NULL);

    uint64_t lost[PORTS] = {0, 0};
    while (!ended) {
        lost[1] += forward(pool, ports[0], ports[1]);
        lost[0] += forward(pool, ports[1], ports[0]);
    }

    for (int i = 0; i < PORTS; i++) {
        telpher_vhost_stats in, out;
        telpher_vhost_socket_free(sockets[i]);
        check(telpher_vhost_stats_of(ports[i], 1, &in));
        check(telpher_vhost_stats_of(ports[i], 0, &out));
        printf("port %d: %llu packets from the guest, %llu to it, %llu lost, %llu by the device\n", i,
               (unsigned long long)in.packets, (unsigned long long)out.packets, (unsigned long long)lost[i],
               (unsigned long long)(in.by_lane + out.by_lane));
        for (uint32_t reason = 0; telpher_vhost_drop_text(reason) != NULL; reason++)
            if (in.drops[reason] + out.drops[reason] > 0)
                printf("port %d: %llu dropped: %s\n", i, (unsigned long long)(in.drops[reason] + out.drops[reason]),
                       telpher_vhost_drop_text(reason));
        telpher_vhost_port_free(ports[i]);
    }
    telpher_vhost_lane_free(lane);
    telpher_device_close(device);
    check(telpher_vhost_pool_free(pool));
    return 0;
}
