// A switch of two ports: each virtual machine receives what the other sends, with the Ethernet addresses swapped.
// A device's queues copy packets of 512 bytes and more, if there is a device; this thread copies smaller ones. All
// packets keep their order.
//
//     c++ -std=c++20 vhost_switch.cpp $(pkg-config --cflags --libs telpher) -o vhost_switch && ./vhost_switch /tmp/a.sock /tmp/b.sock
//
// Ends on SIGINT or SIGTERM, and prints its counters. See vhost_switch.c for the virtual machines.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <telpher.hpp>

namespace {

volatile std::sig_atomic_t ended;

void exchange_addresses(telpher::writable packet) {
    if (packet.size() >= 12)
        std::swap_ranges(packet.begin(), packet.begin() + 6, packet.begin() + 6);
}

// Forwards the packets of `from` to `to`. Packets that `to` does not accept now are dropped: they return to the pool.
std::uint64_t forward(telpher::vhost::burst &packets, const telpher::vhost::port &from, const telpher::vhost::port &to) {
    // Shows the guest its completed packets; their buffers become free again.
    to.poll_enqueue_completed();
    from.try_dequeue_burst(packets);
    for (const telpher_packet &packet : packets)
        exchange_addresses(telpher::vhost::bytes_of(packet));
    to.submit_enqueue_burst(packets);
    const std::uint64_t lost = packets.size();
    packets.clear();
    return lost;
}

void run(const telpher::device &device, const char *const *paths) {
    using namespace telpher::vhost;
    const pool packets(16 * 1024, 2048);
    std::optional<lane> line;
    queue copies;
    if (device.queues() > 0)
        copies = {.lanes = {&line.emplace(device, 0, 1024)}, .device_from = 512};
    const port ports[] = {port(packets, copies), port(packets, copies)};
    burst burst(packets, 32);
    std::uint64_t lost[2] = {0, 0};
    {
        const socket sockets[] = {socket(ports[0], paths[0]), socket(ports[1], paths[1])};
        while (!ended) {
            lost[1] += forward(burst, ports[0], ports[1]);
            lost[0] += forward(burst, ports[1], ports[0]);
        }
    }
    for (int i = 0; i < 2; i++) {
        const telpher_vhost_stats in = ports[i].stats(1), out = ports[i].stats(0);
        std::printf("port %d: %llu packets from the guest, %llu to it, %llu lost, %llu by the device\n", i,
                    static_cast<unsigned long long>(in.packets), static_cast<unsigned long long>(out.packets),
                    static_cast<unsigned long long>(lost[i]), static_cast<unsigned long long>(in.by_lane + out.by_lane));
        for (std::uint32_t reason = 0; drop_text(reason) != nullptr; reason++)
            if (in.drops[reason] + out.drops[reason] > 0)
                std::printf("port %d: %llu dropped: %s\n", i,
                            static_cast<unsigned long long>(in.drops[reason] + out.drops[reason]), drop_text(reason));
    }
}

} // namespace

int main(int argc, char **argv) try {
    if (argc < 3) {
        std::fprintf(stderr, "usage: vhost_switch SOCKET SOCKET [DEVICE]\n");
        return 2;
    }
    for (int signal : {SIGINT, SIGTERM})
        std::signal(signal, [](int) { ended = 1; });
    run(telpher::device(argc > 3 ? argv[3] : "cpu"), argv + 1);
} catch (const std::exception &error) {
    std::fprintf(stderr, "vhost_switch: %s\n", error.what());
    return 1;
}
