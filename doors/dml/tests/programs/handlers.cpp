// Handlers, allocators and executors on one path, and functions in the manner of known users.
//
//     handlers software|automatic|hardware
#include "check.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

namespace {

using dml::make_view;
using dml::status_code;

// An allocator that always throws.
template <typename element_t> struct throwing_allocator {
    using value_type = element_t;
    throwing_allocator() = default;
    template <typename other_t> constexpr throwing_allocator(const throwing_allocator<other_t> &) noexcept {}
    element_t *allocate(std::size_t) const { throw std::runtime_error("thrown by the test's allocator"); }
    void deallocate(element_t *, std::size_t) const noexcept {}
};

// An allocator that counts what is not freed, is not assignable, and whose memory is aligned to one byte.
template <typename element_t> struct counting_allocator {
    using value_type = element_t;
    long *const outstanding;
    explicit counting_allocator(long *counter) : outstanding(counter) {}
    template <typename other_t>
    counting_allocator(const counting_allocator<other_t> &other) : outstanding(other.outstanding) {}
    element_t *allocate(std::size_t count) {
        ++*outstanding;
        auto *const memory = static_cast<unsigned char *>(std::malloc(count * sizeof(element_t) + 1));
        if (memory == nullptr) {
            throw std::bad_alloc();
        }
        return reinterpret_cast<element_t *>(memory + 1);
    }
    void deallocate(element_t *pointer, std::size_t) noexcept {
        --*outstanding;
        std::free(reinterpret_cast<unsigned char *>(pointer) - 1);
    }
};

// The status, also if every queue was full for a while.
template <typename submit_t> auto until_taken(submit_t submit) {
    auto handler = submit();
    while (handler.get().status == status_code::queue_busy) {
        std::this_thread::yield();
        handler = submit();
    }
    return handler;
}

// The result of `execute`, also if every queue was full for a while.
template <typename execute_t> auto until_executed(execute_t execute) {
    auto result = execute();
    while (result.status == status_code::queue_busy) {
        std::this_thread::yield();
        result = execute();
    }
    return result;
}

// What Mooncake's transport does: one copy with a CRC, and the status as an int.
template <typename path> int execute_copy_crc(void *dest, void *src, std::size_t size) {
    auto crc_seed = std::uint32_t(0U);
    char *const from = static_cast<char *>(src);
    char *const to = static_cast<char *>(dest);
    if (size < 1) {
        return -2;
    }
    auto result = until_executed(
        [&] { return dml::execute<path>(dml::copy_crc, make_view(from, size), make_view(to, size), crc_seed); });
    return result.status == status_code::ok ? 0 : -1;
}

// What Envoy's extension does: copies from a size on by DML, all at once, and each that fails by memcpy.
template <typename path>
void batch_memory_copy(const std::vector<void *> &dests, const std::vector<const void *> &srcs,
                       const std::vector<std::size_t> &sizes) {
    using copy_handler = dml::handler<dml::mem_copy_operation, std::allocator<unsigned char>>;
    std::vector<copy_handler> handlers;
    std::vector<std::size_t> submitted;
    for (std::size_t at = 0; at < srcs.size(); at++) {
        if (sizes[at] < 1024) {
            std::memcpy(dests[at], srcs[at], sizes[at]);
            continue;
        }
        dml::const_data_view src = make_view(static_cast<const std::uint8_t *>(srcs[at]), sizes[at]);
        dml::data_view dest = make_view(static_cast<std::uint8_t *>(dests[at]), sizes[at]);
        handlers.push_back(dml::submit<path>(dml::mem_copy, src, dest));
        submitted.push_back(at);
    }
    for (std::size_t at = 0; at < handlers.size(); at++) {
        if (handlers[at].get().status != status_code::ok) {
            std::memcpy(dests[submitted[at]], srcs[submitted[at]], sizes[submitted[at]]);
        }
    }
}

template <typename path> void users() {
    bytes src = made_up(100000, 1), dst(src.size());
    CHECK(execute_copy_crc<path>(dst.data(), src.data(), src.size()) == 0 && dst == src);
    CHECK(execute_copy_crc<path>(dst.data(), src.data(), 0) == -2);

    std::vector<bytes> from, to;
    std::vector<void *> dests;
    std::vector<const void *> srcs;
    std::vector<std::size_t> sizes;
    for (std::size_t at = 0; at < 64; at++) {
        from.push_back(made_up(100 + at * 997, std::uint32_t(at)));
        to.emplace_back(from.back().size());
    }
    for (std::size_t at = 0; at < 64; at++) {
        dests.push_back(to[at].data());
        srcs.push_back(from[at].data());
        sizes.push_back(from[at].size());
    }
    batch_memory_copy<path>(dests, srcs, sizes);
    CHECK(to == from);
}

template <typename path> void lifetimes() {
    using interface_t = dml::default_execution_interface<path>;
    using handler_t = dml::handler<dml::mem_move_operation, typename interface_t::allocator_type>;
    const bytes src = made_up(1 << 20, 2);
    bytes dst(src.size());
    const auto copy = [&] { return dml::submit<path>(dml::mem_move, make_view(src), make_view(dst)); };

    handler_t none;
    CHECK(!none.valid() && none.is_finished() && none.get().status == status_code::error);

    // The destructor waits.
    { const auto running = until_taken(copy); }
    CHECK(dst == src);

    // So does an assignment, for the operation that it replaces.
    dst.assign(dst.size(), 0);
    auto first = until_taken(copy);
    first = handler_t();
    CHECK(dst == src && !first.valid());

    // A moved handler continues elsewhere.
    dst.assign(dst.size(), 0);
    handler_t moved = until_taken(copy);
    handler_t target(std::move(moved));
    CHECK(!moved.valid() && target.valid()); // NOLINT: a moved handler is empty
    none = std::move(target);
    CHECK(none.get().status == status_code::ok && none.get().status == status_code::ok && dst == src);
    while (!none.is_finished()) {
    }

    // On another thread.
    dst.assign(dst.size(), 0);
    handler_t travels = until_taken(copy);
    std::thread([&] { CHECK(travels.get().status == status_code::ok); }).join();
    CHECK(dst == src);
}

template <typename path> void memory() {
    bytes src = made_up(5000, 3), dst(src.size());
    const auto runs = [](auto &&task) { return task(); };

    // Exceptions of the allocator leave submit, and nothing has happened.
    int thrown = 0;
    try {
        const auto handler = dml::submit<path>(dml::mem_move, make_view(src), make_view(dst),
                                               dml::execution_interface(runs, throwing_allocator<int>()));
    } catch (const std::runtime_error &) {
        thrown++;
    }
    dml::sequence sequence(4, std::allocator<dml::byte_t>());
    for (int at = 0; at < 4; at++) {
        CHECK(sequence.add(dml::nop) == status_code::ok);
    }
    try {
        const auto handler =
            dml::submit<path>(dml::batch, sequence, dml::execution_interface(runs, throwing_allocator<int>()));
    } catch (const std::runtime_error &) {
        thrown++;
    }
    try {
        const dml::sequence refused(4, throwing_allocator<int>());
    } catch (const std::runtime_error &) {
        thrown++;
    }
    CHECK(thrown == 3 && std::all_of(dst.begin(), dst.end(), [](auto byte) { return byte == 0; }));

    // An allocator with state, whose memory is badly aligned, and that cannot be assigned.
    long outstanding = 0;
    {
        const auto counted = dml::execution_interface(runs, counting_allocator<std::uint64_t>(&outstanding));
        CHECK(counted.get_allocator().outstanding == &outstanding);
        {
            // As submit does: the handler takes over the memory of the task.
            dml::detail::task<counting_allocator<std::uint64_t>> task(counted.get_allocator());
            CHECK(outstanding == 1);
            auto made = counted.template make_handler<dml::nop_operation>(std::move(task));
            CHECK(outstanding == 1 && made.valid());
        }
        CHECK(outstanding == 0);
        auto handler =
            until_taken([&] { return dml::submit<path>(dml::mem_move, make_view(src), make_view(dst), counted); });
        CHECK(outstanding == 1 && handler.get().status == status_code::ok && dst == src);
        auto moved = std::move(handler);
        CHECK(outstanding == 1 && moved.get().status == status_code::ok);
        dml::sequence members(4, counting_allocator<char>(&outstanding));
        CHECK(outstanding == 2);
        dml::sequence elsewhere = std::move(members);
        CHECK(outstanding == 2 && elsewhere.add(dml::nop) == status_code::ok);
    }
    CHECK(outstanding == 0);
    alignas(64) std::byte room[4096];
    std::pmr::monotonic_buffer_resource resource(room, sizeof(room), std::pmr::null_memory_resource());
    const auto local = dml::execution_interface(runs, std::pmr::polymorphic_allocator<std::byte>(&resource));
    CHECK(until_taken([&] { return dml::submit<path>(dml::fill, 7U, make_view(dst), local); }).get().status
          == status_code::ok);

    // The node can be named after the interface, and in execute after the arguments.
    const auto any = std::numeric_limits<std::uint32_t>::max();
    auto named = until_taken([&] {
        return dml::submit<path>(dml::mem_move, make_view(src), make_view(dst),
                                 dml::default_execution_interface<path>(), any);
    });
    CHECK(named.get().status == status_code::ok);
    const auto moved = until_executed(
        [&] { return dml::execute<path>(dml::mem_move, make_view(src), make_view(dst), any); });
    CHECK(moved.status == status_code::ok);

    // A sequence can be submitted again.
    for (int round = 0; round < 3; round++) {
        auto batch = until_taken([&] { return dml::submit<path>(dml::batch, sequence); });
        CHECK(batch.get().status == status_code::ok && batch.get().operations_completed == 4);
    }
}

// Threads share nothing but the library.
template <typename path> void threads() {
    std::vector<std::thread> running;
    std::vector<int> wrong(4);
    for (std::size_t thread = 0; thread < wrong.size(); thread++) {
        running.emplace_back([thread, &wrong] {
            for (std::uint32_t round = 0; round < 50; round++) {
                const bytes src = made_up(1000 + round * 37, round);
                bytes dst(src.size());
                auto crc = until_taken(
                    [&] { return dml::submit<path>(dml::copy_crc, make_view(src), make_view(dst), 0U); });
                const auto result = crc.get();
                const bool right = result.status == status_code::ok && dst == src
                                   && result.crc_value == naive_crc(src.data(), src.size(), 0, false, false);
                wrong[thread] += right ? 0 : 1;
            }
        });
    }
    for (auto &thread : running) {
        thread.join();
    }
    CHECK(wrong == std::vector<int>(wrong.size()));
}

// What a cache across memory nodes does: a copy by the device of each node, all at once, whichever nodes there are.
template <typename path> void nodes() {
    constexpr std::uint32_t count = 8, part = 10000;
    const bytes src = made_up(count * part, 4);
    bytes dst(src.size());
    std::vector<dml::handler<dml::mem_copy_operation, std::allocator<dml::byte_t>>> running;
    for (std::uint32_t node = 0; node < count; node++) {
        const auto from = make_view(src.data() + node * part, part);
        const auto to = make_view(dst.data() + node * part, part);
        do {
            auto copy = dml::submit<path>(dml::mem_copy, from, to, dml::default_execution_interface<path>(), node);
            if (!copy.valid()) {
                CHECK(copy.get().status == status_code::queue_busy);
                std::this_thread::yield();
                continue;
            }
            running.push_back(std::move(copy));
        } while (running.size() == node);
    }
    for (auto &copy : running) {
        CHECK(copy.get().status == status_code::ok);
    }
    CHECK(dst == src);
}

template <typename path> void everything() {
    users<path>();
    nodes<path>();
    lifetimes<path>();
    memory<path>();
    threads<path>();
}

} // namespace

int main(int argc, char **argv) {
    const std::string path = argc > 1 ? argv[1] : "";
    if (path == "software") {
        everything<dml::software>();
    } else if (path == "automatic") {
        everything<dml::automatic>();
    } else {
        everything<dml::hardware>();
    }
    return verdict();
}
