/* A switch of two ports: each virtual machine receives what the other sends. A device's queues copy packets of 512 bytes
 * and more, if there is a device; the switch's thread copies smaller ones. All packets keep their order.
 *
 *     cc vhost_switch.c $(pkg-config --cflags --libs telpher) -o vhost_switch && ./vhost_switch /tmp/a.sock /tmp/b.sock model:spr
 *
 * Each virtual machine uses one of the sockets as its network card:
 *
 *     qemu-system-x86_64 ... -chardev socket,id=c0,path=/tmp/a.sock -netdev vhost-user,id=n0,chardev=c0 -device virtio-net-pci,netdev=n0
 *
 * Ends on SIGINT or SIGTERM, and prints its counters. */
#define _POSIX_C_SOURCE 200809L /* sigwait */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <telpher.h>

#define PORTS 2

static int check(int result) {
    if (result < 0) {
        fprintf(stderr, "vhost_switch: %s\n", telpher_last_error());
        exit(1);
    }
    return result;
}

int main(int argc, char **argv) {
    if (argc < 1 + PORTS) {
        fprintf(stderr, "usage: vhost_switch SOCKET SOCKET [DEVICE]\n");
        return 2;
    }
    /* Blocked before any thread starts, so that only sigwait receives them. */
    sigset_t signals;
    int signal;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);

    telpher_device *device;
    telpher_switch *packet_switch;
    const telpher_switch_port ports[PORTS] = {{.path = argv[1]}, {.path = argv[2]}};
    check(telpher_device_open(&device, argc > 1 + PORTS ? argv[1 + PORTS] : "cpu", NULL));
    check(telpher_switch_new(&packet_switch, device, ports, PORTS, "threshold=512"));
    /* The switch keeps the queues of the device. */
    telpher_device_close(device);

    sigwait(&signals, &signal);

    check(telpher_switch_stop(packet_switch));
    for (uint32_t port = 0; port < PORTS; port++) {
        telpher_switch_stats stats;
        telpher_vhost_stats in, out;
        check(telpher_switch_stats_of(packet_switch, port, &stats));
        check(telpher_switch_queue_stats_of(packet_switch, port, 0, &out));
        check(telpher_switch_queue_stats_of(packet_switch, port, 1, &in));
        printf("port %u: %llu packets from the guest, %llu to it, %llu lost, %llu by the device\n", (unsigned)port,
               (unsigned long long)stats.received, (unsigned long long)stats.sent,
               (unsigned long long)(stats.no_room + stats.no_receiver), (unsigned long long)(in.by_device + out.by_device));
        for (uint32_t reason = 0; telpher_vhost_drop_text(reason) != NULL; reason++)
            if (in.drops[reason] + out.drops[reason] > 0)
                printf("port %u: %llu dropped: %s\n", (unsigned)port,
                       (unsigned long long)(in.drops[reason] + out.drops[reason]), telpher_vhost_drop_text(reason));
    }
    telpher_switch_free(packet_switch);
    return 0;
}
