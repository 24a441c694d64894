// Programs in the manner of the original's own test suites and examples: what they call, and how they call it.
//
//     suite software|hardware|automatic|absent
//
// Each function names the uses that it stands for. On the hardware path without a queue every submission fails.
#include "check.hpp"

#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>

namespace {

// Always throws, and knows nothing but what an allocator must have.
template <typename value_t> class throwing_allocator {
  public:
    using value_type = value_t;
    throwing_allocator() = default;
    template <typename other_t> constexpr throwing_allocator(const throwing_allocator<other_t> &) noexcept {}
    value_t *allocate(std::size_t) const { throw std::runtime_error("no memory"); }
    void deallocate(value_t *, std::size_t) const noexcept {}
};

template <typename callable_t> bool throws(callable_t &&call) {
    try {
        call();
    } catch (const std::exception &) {
        return true;
    }
    return false;
}

struct by_submit {};
struct by_execute {};

// The suites are typed over pairs of a path and a way, and forward all arguments.
template <typename path_t, typename way_t, typename... args_t> auto run(args_t &&...args) {
    if constexpr (std::is_same_v<way_t, by_submit>) {
        return dml::submit<path_t>(std::forward<args_t>(args)...).get();
    } else {
        return dml::execute<path_t>(std::forward<args_t>(args)...);
    }
}

constexpr auto size = 16U;

// Wrong arguments are answered before any queue, so alike on every path.
template <typename path_t, typename way_t> void wrong_arguments() {
    auto src = made_up(size, 1), dst = made_up(size, 2);
    auto record = bytes(80);
    using code = dml::status_code;
    const auto null = dml::make_view<std::uint8_t>(nullptr, size);
    const auto none = dml::make_view(src.data(), 0U), less = dml::make_view(src.data(), size - 1U);
    const auto go = [](auto &&...args) { return run<path_t, way_t>(std::forward<decltype(args)>(args)...).status; };
    CHECK(go(dml::mem_move, null, dml::make_view(dst)) == code::nullptr_error);
    CHECK(go(dml::mem_copy, dml::make_view(src), null) == code::nullptr_error);
    CHECK(go(dml::mem_move, less, dml::make_view(dst)) == code::inconsistent_size);
    CHECK(go(dml::mem_move, none, dml::make_view(dst.data(), 0U)) == code::bad_size);
    CHECK(go(dml::fill, std::uint64_t{7}, null) == code::nullptr_error);
    CHECK(go(dml::fill, 7U, none) == code::bad_size);
    CHECK(go(dml::compare, dml::make_view(src), null) == code::nullptr_error);
    CHECK(go(dml::compare, dml::make_view(src), less) == code::inconsistent_size);
    CHECK(go(dml::compare_pattern, 7U, none) == code::bad_size);
    CHECK(go(dml::crc, null, 0U) == code::nullptr_error);
    CHECK(go(dml::copy_crc, dml::make_view(src), less, 0U) == code::inconsistent_size);
    CHECK(go(dml::copy_crc, dml::make_view(src), dml::make_view(src), 0U) == code::buffers_overlapping);
    CHECK(go(dml::cache_flush, null) == code::nullptr_error);
    CHECK(go(dml::create_delta, dml::make_view(src), dml::make_view(dst), dml::make_view(record.data(), 79U)) ==
          code::delta_bad_size);
    CHECK(go(dml::create_delta, less, dml::make_view(dst.data(), size - 1U), dml::make_view(record)) == code::bad_size);
    CHECK(go(dml::create_delta, dml::make_view(src), less, dml::make_view(record)) == code::inconsistent_size);
    const auto apply = [&](dml::comparison_result result, dml::size_t length) {
        const auto created = dml::create_delta_result{code::ok, result, 0U, length};
        return go(dml::apply_delta, dml::make_view(record), dml::make_view(src), created);
    };
    CHECK(apply(dml::comparison_result::not_equal, 0U) == code::bad_size);
    CHECK(apply(dml::comparison_result::not_equal, 9U) == code::delta_bad_size);
    CHECK(apply(dml::comparison_result::equal, 10U) == code::delta_delta_empty);
    // Batches of too few operations.
    for (auto count = 0U; count < 4U; count++) {
        auto members = dml::sequence(10U, std::allocator<dml::byte_t>());
        for (auto at = 0U; at < count; at++) members.add(dml::mem_move, dml::make_view(src), dml::make_view(dst));
        const auto result = run<path_t, way_t>(dml::batch, members);
        CHECK(result.status == code::bad_length && result.operations_completed == 0U);
    }
}

// Exceptions of an allocator leave submit, and the constructor of a sequence.
void exceptions() {
    auto src = made_up(size, 1), dst = made_up(size, 2);
    const auto inline_call = [](auto &&task) { task(); };
    CHECK(throws([&] {
        auto started = dml::submit<dml::software>(dml::mem_move, dml::make_view(src), dml::make_view(dst),
                                                  dml::execution_interface(inline_call, throwing_allocator<int>()));
    }));
    CHECK(throws([&] {
        auto started = dml::submit<dml::software>(dml::crc, dml::make_view(src), 0U,
                                                  dml::execution_interface(inline_call, throwing_allocator<int>()));
    }));
    CHECK(throws([] { auto members = dml::sequence(1U, throwing_allocator<int>()); }));
}

// A full sequence, for every operation; sequences with allocators of other types.
void full_sequences() {
    auto src = made_up(size, 1), dst = made_up(size, 2), record = bytes(80);
    auto members = dml::sequence(0, std::allocator<int>());
    const auto full = dml::status_code::batch_overflow;
    CHECK(members.add(dml::nop) == full);
    CHECK(members.add(dml::mem_move, dml::make_view(src), dml::make_view(dst)) == full);
    CHECK(members.add(dml::fill, 1U, dml::make_view(dst)) == full);
    CHECK(members.add(dml::compare, dml::make_view(src), dml::make_view(dst)) == full);
    CHECK(members.add(dml::create_delta, dml::make_view(src), dml::make_view(dst), dml::make_view(record)) == full);
    CHECK(members.add(dml::apply_delta, dml::make_view(record), dml::make_view(src),
                      {{}, dml::comparison_result::not_equal, {}, {}}) == full);
    CHECK(members.add(dml::crc, dml::make_view(src), 7U) == full);
    auto one = dml::sequence(1, std::allocator<int>());
    CHECK(one.add(dml::mem_move, dml::make_view<std::uint8_t>(nullptr, size), dml::make_view(dst)) ==
          dml::status_code::nullptr_error);
    CHECK(one.length() == 0U && one.add(dml::cache_flush, dml::make_view(dst)) == dml::status_code::ok);
    CHECK(one.length() == 1U && one.add(dml::nop) == full);
}

struct two_numbers {
    int a, b = 0;
    bool operator==(const two_numbers &other) const { return std::tie(a, b) == std::tie(other.a, other.b); }
};

// Views of elements of several types, by pointer, by iterators, and of ranges; empty ones.
template <typename element_t> void views() {
    const auto src = std::vector<element_t>(size, element_t{1});
    const auto moved = [&src](auto &&from, auto &&make) {
        auto dst = std::vector<element_t>(size);
        const auto result = dml::execute<dml::software>(dml::mem_move, from, make(dst));
        return result.status == dml::status_code::ok && src == dst;
    };
    CHECK(moved(dml::make_view(src.data(), src.size()),
                [](auto &dst) { return dml::make_view(dst.data(), dst.size()); }));
    CHECK(moved(dml::make_view(src.begin(), src.end()),
                [](auto &dst) { return dml::make_view(dst.begin(), dst.end()); }));
    CHECK(moved(dml::make_view(src), [](auto &dst) { return dml::make_view(dst); }));
    // An empty range of a vector that has memory is empty; a vector without memory has no address.
    const std::vector<element_t> nothing;
    const auto half = src.begin() + static_cast<std::ptrdiff_t>(size / 2);
    CHECK(dml::make_view(half, half).data() == static_cast<const void *>(src.data() + size / 2));
    CHECK(dml::make_view(half, half).size() == 0U && dml::make_view(nothing).data() == nullptr);
    auto dst = std::vector<element_t>(size);
    const auto empty = dml::make_view(dst.begin(), dst.begin());
    CHECK(dml::execute<dml::software>(dml::mem_move, dml::make_view(half, half), empty).status ==
          dml::status_code::bad_size);
}

// The functional programs: an operation is changed step by step, and runs at once or is polled.
template <typename path_t> void functional() {
    for (const bool at_once : {true, false}) {
        for (const auto length : {8U, 64U, 4096U, 0x80000U}) {
            const auto first = made_up(length, 3);
            auto second = first;
            second[length - 1] ^= 1U;
            auto record = bytes(length / 8 * 10 < 80 ? 80 : length / 8 * 10);
            auto operation = dml::create_delta;
            operation = operation.expect_not_equal();
            dml::create_delta_result created;
            if (at_once) {
                created = dml::execute<path_t>(operation, dml::make_view(first), dml::make_view(second),
                                               dml::make_view(record));
            } else {
                auto running = dml::submit<path_t>(operation, dml::make_view(first), dml::make_view(second),
                                                   dml::make_view(record), dml::default_execution_interface<path_t>());
                while (!running.is_finished()) {
                }
                created = running.get();
            }
            // Some devices lack the delta operations.
            if (created.status == dml::status_code::unsupported_operation) continue;
            CHECK(created.status == dml::status_code::ok && static_cast<std::uint8_t>(created.result) == 1);
            CHECK(created.delta_record_size == 10U && created.bytes_completed == 0U);
            auto changed = first;
            const auto applied = dml::execute<path_t>(dml::apply_delta, dml::make_view(record), dml::make_view(changed),
                                                      created);
            CHECK(applied.status == dml::status_code::ok && changed == second);
        }
    }
    auto pattern = std::uint64_t{0x0102030405060708};
    auto dst = bytes(100);
    CHECK(dml::execute<path_t>(dml::fill, pattern, dml::make_view(dst)).status == dml::status_code::ok);
    auto comparing = dml::compare_pattern;
    comparing = comparing.expect_equal();
    const auto compared = dml::execute<path_t>(comparing, pattern, dml::make_view(dst));
    CHECK(compared.status == dml::status_code::ok && compared.mismatch == 0U);
    dst[60] ^= 1U;
    const auto differs = dml::execute<path_t>(comparing, pattern, dml::make_view(dst));
    CHECK(differs.status == dml::status_code::false_predicate && differs.mismatch == 60U);
}

// Handlers with a named allocator in a reserved vector, for several nodes; the results in another vector.
template <typename path_t> void sockets() {
    constexpr auto nodes = 4U;
    using allocator_t = typename dml::default_execution_interface<path_t>::allocator_type;
    const auto src = made_up(1U << 16U, 5);
    auto dst = bytes(src.size());
    auto handlers = std::vector<dml::handler<dml::mem_move_operation, allocator_t>>();
    handlers.reserve(nodes);
    auto results = std::vector<dml::mem_move_result>();
    const auto part = src.size() / nodes;
    for (auto node = 0U; node < nodes; node++) {
        auto interface = dml::default_execution_interface<path_t>();
        handlers.emplace_back(dml::submit<path_t>(dml::mem_move, dml::make_view(src.data() + node * part, part),
                                                  dml::make_view(dst.data() + node * part, part), interface, node));
    }
    for (auto &handler : handlers) results.emplace_back(handler.get());
    for (const auto &result : results) CHECK(result.status == dml::status_code::ok);
    CHECK(src == dst);
}

// A batch of every operation, and one with a fence between operations that depend on each other.
template <typename path_t, typename way_t> void batches() {
    auto src = made_up(size, 1), dst = bytes(size), sum = bytes(size), filled = bytes(size);
    auto members = dml::sequence(7U, std::allocator<dml::byte_t>());
    const auto added = [&](auto &&...args) {
        CHECK(members.add(std::forward<decltype(args)>(args)...) == dml::status_code::ok);
    };
    added(dml::mem_move, dml::make_view(src), dml::make_view(dst));
    added(dml::fill, std::uint64_t{7}, dml::make_view(filled));
    added(dml::nop);
    added(dml::compare, dml::make_view(src), dml::make_view(dst));
    added(dml::compare_pattern, std::uint64_t{7}, dml::make_view(filled));
    added(dml::crc, dml::make_view(src), 777U);
    added(dml::copy_crc, dml::make_view(src), dml::make_view(sum), 777U);
    const auto result = run<path_t, way_t>(dml::batch, members);
    CHECK(result.status == dml::status_code::ok && result.operations_completed == 7U);
    CHECK(src == dst && src == sum && filled[0] == 7 && filled[8] == 7 && filled[9] == 0);
}

template <typename path_t> void every_way(bool works) {
    wrong_arguments<path_t, by_submit>();
    wrong_arguments<path_t, by_execute>();
    if (works) {
        functional<path_t>();
        sockets<path_t>();
        batches<path_t, by_submit>();
        batches<path_t, by_execute>();
    } else {
        auto src = made_up(size, 1), dst = bytes(size);
        auto refused = dml::submit<path_t>(dml::mem_move, dml::make_view(src), dml::make_view(dst));
        CHECK(!refused.valid() && refused.is_finished() && refused.get().status == dml::status_code::error);
    }
}

} // namespace

int main(int, char **argv) {
    const std::string path = argv[1];
    exceptions();
    full_sequences();
    views<char>();
    views<int>();
    views<float>();
    views<two_numbers>();
    if (path == "software") {
        every_way<dml::software>(true);
    } else if (path == "hardware") {
        every_way<dml::hardware>(true);
    } else if (path == "automatic") {
        every_way<dml::automatic>(true);
    } else {
        every_way<dml::hardware>(false);
        every_way<dml::automatic>(true);
    }
    return verdict();
}
