// Packets and ports in C++: handles that free themselves, also when an exception is thrown, and bursts that return their remaining packets.

#include "check.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace {

using telpher::vhost::burst, telpher::vhost::dma_queue, telpher::vhost::pool, telpher::vhost::port, telpher::vhost::queue;

void bursts_return_their_remaining_packets() {
    pool packets(64, 1500);
    try {
        burst first(packets, 40), second(packets, 40);
        CHECK(first.alloc() == 40 && first.alloc() == 0 && second.alloc(10) == 10 && second.alloc() == 14);
        CHECK(packets.available() == 0 && first.size() == 40 && second.size() == 24 && first.room() == 40);
        for (telpher_packet &packet : first) {
            packet.len = 1500;
            std::ranges::fill(telpher::vhost::bytes_of(packet), std::byte{7});
        }
        CHECK(throws(EBUSY, [&] { packets.close(); }));
        burst third = std::move(first);
        CHECK(first.empty() && third.size() == 40 && third[39].len == 1500);
        third = std::move(second);
        CHECK(third.size() == 24 && packets.available() == 40);
        // A packet that was returned with the C function is skipped.
        CHECK(telpher_vhost_free_burst(packets.get(), third.begin() + 5, 1) == 1);
        throw 7;
    } catch (int) {
    }
    CHECK(packets.available() == 64);
    packets.close();
    std::vector<std::byte> memory(pool::size_of(4, 100));
    pool within(4, 100, memory);
    burst some(within, 4);
    CHECK(some.alloc() == 4 && some[0].data >= memory.data() && some[3].data < memory.data() + memory.size());
    CHECK(throws(EINVAL, [&] { pool(5, 100, memory); }) && throws(EINVAL, [] { pool(0, 100); }));
}

void a_port_without_a_frontend_moves_nothing(const telpher::device &device) {
    const pool packets(64, 1500);
    std::optional<dma_queue> line(std::in_place, device, 0, 16);
    const queue works[] = {{.dma_queues = {&*line}, .device_from = 256, .in_flight = 16}, {}};
    const port two(packets, works, "pairs=2 without=event_idx");
    CHECK(line->stats().copies == 0);
    line.reset();
    burst mine(packets, 32);
    mine.alloc();
    const std::vector before(mine.begin(), mine.end());
    CHECK(two.submit_enqueue_burst(mine, 1) == 0 && mine.size() == 32);
    CHECK(std::ranges::equal(mine, before, [](const telpher_packet &a, const telpher_packet &b) { return a.id == b.id; }));
    CHECK(two.poll_enqueue_completed() == 0 && two.try_dequeue_burst(mine) == 0);
    mine.clear();
    CHECK(two.poll_enqueue_completed(mine, 1) == 0 && two.try_dequeue_burst(mine, 1) == 0 && mine.empty());
    CHECK(throws(EINVAL, [&] { two.try_dequeue_burst(mine, 2); }) && throws(EINVAL, [&] { (void)two.stats(4); }));
    CHECK(two.state(3).running == 0 && two.broken(3).empty() && two.stats(0).packets == 0 && !two.announcement());
    two.wait(1, std::chrono::hours(1)); // it does not run
    const queue none{.dma_queues = {nullptr}};
    CHECK(throws(EFAULT, [&] { port(packets, none); }) && throws(EINVAL, [&] { port(packets, queue{}, "pairs=999"); }));
    const std::string path = "/tmp/telpher-vhost-cpp-" + std::to_string(getpid()) + ".sock";
    const telpher::vhost::socket socket(two, path);
    CHECK(socket.state().sessions == 0 && socket.last().empty() && access(path.c_str(), F_OK) == 0);
    CHECK(throws(EADDRINUSE, [&] { telpher::vhost::socket(two, path); }));
    const telpher::vhost::socket client(two, path + "2", telpher::vhost::role::client);
    CHECK(client.state().connected == 0 && std::string(telpher::vhost::drop_text(TELPHER_VHOST_DROP_RUNT)).size() > 5);
}

static_assert(!std::is_copy_constructible_v<burst> && std::is_nothrow_move_constructible_v<burst>);
static_assert(!std::is_copy_constructible_v<port> && std::is_nothrow_move_assignable_v<burst>);

} // namespace

int main(int argc, char **argv) try {
    bursts_return_their_remaining_packets();
    for (const char *runner : {"runner=inline", "runner=threaded"})
        a_port_without_a_frontend_moves_nothing(telpher::device(argc > 1 ? argv[1] : "model:spr", runner));
    std::printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
} catch (const std::exception &error) {
    std::printf("%s\n", error.what());
    return 1;
}
