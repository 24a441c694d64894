// A packet switch in C++: the constructor starts it, the destructor stops it, and failures are exceptions.

#include "check.hpp"

#include <cstdio>
#include <exception>
#include <string>
#include <type_traits>
#include <unistd.h>

namespace {

using telpher::packet_switch, telpher::switch_port;

void a_switch_stops_with_its_object(const telpher::device &device, const std::string &path) {
    const switch_port ports[] = {{.path = path}};
    {
        packet_switch first(device, ports, "forward=txonly buffers=4096");
        CHECK(first.socket_state(0).sessions == 0);
        // It connects to find out that the socket is in use, which counts as a session.
        CHECK(throws(EADDRINUSE, [&] { packet_switch second(ports); }));
        while (first.stats(0).generated == 0) {
        }
        packet_switch moved = std::move(first);
        CHECK(first.get() == nullptr && moved.queue_stats(0, 1).packets == 0);
        moved.stop();
        moved.stop();
        CHECK(moved.stats(0).generated > 0 && moved.stats(0).generated == moved.stats(0).held);
        CHECK(throws(EINVAL, [&] { (void)moved.stats(1); }));
        CHECK(access(path.c_str(), F_OK) == 0);
    }
    CHECK(access(path.c_str(), F_OK) != 0);
    packet_switch by_the_cpu(ports);
    CHECK(access(path.c_str(), F_OK) == 0);
}

void failures_are_exceptions() {
    const switch_port none[] = {{.path = "/nonexistent/telpher.sock"}}, strange[] = {{.path = "a/b", .kind = TELPHER_SWITCH_TAP}};
    CHECK(throws(ENOENT, [&] { packet_switch refused(none); }));
    CHECK(throws(EINVAL, [&] { packet_switch refused(strange); }));
    CHECK(throws(EINVAL, [&] { packet_switch refused(none, "burst=0"); }));
    static_assert(!std::is_copy_constructible_v<packet_switch> && std::is_nothrow_move_constructible_v<packet_switch>);
}

} // namespace

int main(int argc, char **argv) try {
    const telpher::device device(argc > 1 ? argv[1] : "model:spr");
    a_switch_stops_with_its_object(device, "/tmp/telpher-switch-" + std::to_string(getpid()));
    failures_are_exceptions();
    std::printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
} catch (const std::exception &error) {
    std::printf("%s\n", error.what());
    return 1;
}
