// A switch of two ports: each virtual machine receives what the other sends. A device's queues copy packets of 512 bytes
// and more, if there is a device; the switch's thread copies smaller ones. All packets keep their order.
//
//     c++ -std=c++20 vhost_switch.cpp $(pkg-config --cflags --libs telpher) -o vhost_switch && ./vhost_switch /tmp/a.sock /tmp/b.sock
//
// Ends on SIGINT or SIGTERM, and prints its counters. See vhost_switch.c for the virtual machines.

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <telpher.hpp>

namespace {

void run(const char *device, const char *const *paths, const sigset_t &signals) {
    const telpher::switch_port ports[] = {{.path = paths[0]}, {.path = paths[1]}};
    telpher::packet_switch packet_switch(telpher::device(device), ports, "threshold=512");

    int signal;
    sigwait(&signals, &signal);

    packet_switch.stop();
    for (std::uint32_t port = 0; port < 2; port++) {
        const telpher_switch_stats stats = packet_switch.stats(port);
        const telpher_vhost_stats out = packet_switch.queue_stats(port, 0), in = packet_switch.queue_stats(port, 1);
        std::printf("port %u: %llu packets from the guest, %llu to it, %llu lost, %llu by the device\n",
                    static_cast<unsigned>(port), static_cast<unsigned long long>(stats.received),
                    static_cast<unsigned long long>(stats.sent),
                    static_cast<unsigned long long>(stats.no_room + stats.no_receiver),
                    static_cast<unsigned long long>(in.by_device + out.by_device));
        for (std::uint32_t reason = 0; telpher::vhost::drop_text(reason) != nullptr; reason++)
            if (in.drops[reason] + out.drops[reason] > 0)
                std::printf("port %u: %llu dropped: %s\n", static_cast<unsigned>(port),
                            static_cast<unsigned long long>(in.drops[reason] + out.drops[reason]),
                            telpher::vhost::drop_text(reason));
    }
}

} // namespace

int main(int argc, char **argv) try {
    if (argc < 3) {
        std::fprintf(stderr, "usage: vhost_switch SOCKET SOCKET [DEVICE]\n");
        return 2;
    }
    // Blocked before any thread starts, so that only sigwait receives them.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    run(argc > 3 ? argv[3] : "cpu", argv + 1, signals);
} catch (const std::exception &error) {
    std::fprintf(stderr, "vhost_switch: %s\n", error.what());
    return 1;
}
