// Every operation by dml::execute and dml::submit on one path, against naive loops; wrong arguments; batches.
//
//     operations software|automatic|hardware|faults|absent
//
// faults: the hardware path, where page faults may end an operation early. absent: the hardware path without a
// device.
#include "check.hpp"

#include <algorithm>
#include <limits>

namespace {

using dml::comparison_result;
using dml::make_view;
using dml::status_code;

bool with_faults, without_device;
unsigned unsupported, too_long, partial, configurations;

enum class chosen_path { software, automatic, hardware };
chosen_path path;

// The checks choose the path here, so that only these two are compiled for each path.
template <typename... args_t> auto execute(const args_t &...args) {
    switch (path) {
    case chosen_path::software: return dml::execute<dml::software>(args...);
    case chosen_path::automatic: return dml::execute<dml::automatic>(args...);
    default: return dml::execute<dml::hardware>(args...);
    }
}

template <typename... args_t> auto submit(const args_t &...args) {
    switch (path) {
    case chosen_path::software: return dml::submit<dml::software>(args...);
    case chosen_path::automatic: return dml::submit<dml::automatic>(args...);
    default: return dml::submit<dml::hardware>(args...);
    }
}

// Runs an operation by both entry points and gives each result to `judge`, if the operation was executed to its end.
template <typename prepare_t, typename run_t, typename judge_t>
void both(prepare_t prepare, run_t run, judge_t judge) {
    for (const bool submitted : {false, true}) {
        prepare();
        auto result = run([&](auto operation, const auto &...args) {
            if (!submitted) {
                return execute(operation, args...);
            }
            auto handler = submit(operation, args...);
            auto first = handler.get();
            CHECK(handler.is_finished());
            const auto again = handler.get();
            CHECK(again.status == first.status);
            return first;
        });
        if (path == chosen_path::hardware) {
            if (without_device) {
                CHECK(result.status == status_code::error);
                continue;
            }
            if (result.status == status_code::unsupported_operation) {
                unsupported++;
                continue;
            }
            if (result.status == status_code::bad_size) {
                too_long++;
                continue;
            }
            if (with_faults && result.status == status_code::partial_completion) {
                partial++;
                continue;
            }
        }
        judge(result);
    }
}

void moves() {
    for (const std::size_t size : {1, 3, 8, 15, 64, 255, 1024, 4096, 70000}) {
        for (const std::size_t shift : {0, 1, 7}) {
            const bytes src = made_up(size + shift, 1);
            bytes dst;
            const auto clear = [&] { dst.assign(size + 8, 0xEE); };
            const auto copied = [&](auto result) {
                CHECK(result.status == status_code::ok);
                CHECK(std::memcmp(dst.data(), src.data() + shift, size) == 0);
                CHECK(std::all_of(dst.data() + size, dst.data() + dst.size(), [](auto byte) { return byte == 0xEE; }));
            };
            const auto from = make_view(src.data() + shift, size);
            both(clear, [&](auto run) { return run(dml::mem_move, from, make_view(dst.data(), size)); }, copied);
            both(clear, [&](auto run) { return run(dml::mem_copy, from, make_view(dst.data(), size)); }, copied);
        }
    }
    // Overlapping ranges, both ways.
    for (const std::size_t size : {16, 5000}) {
        const bytes before = made_up(size + 100, 2);
        for (const bool up : {true, false}) {
            const std::size_t from = up ? 0 : 100;
            const std::size_t to = 100 - from;
            bytes expected = before;
            std::memmove(expected.data() + to, before.data() + from, size);
            bytes data;
            both([&] { data = before; },
                       [&](auto run) {
                           return run(dml::mem_move, make_view(data.data() + from, size),
                                      make_view(data.data() + to, size));
                       },
                       [&](auto result) { CHECK(result.status == status_code::ok && data == expected); });
        }
    }
}

void fills() {
    constexpr std::uint64_t pattern = 0x0123456789ABCDEFU;
    for (const std::size_t size : {1, 7, 8, 13, 4097}) {
        bytes dst;
        both([&] { dst.assign(size + 3, 0); },
                   [&](auto run) { return run(dml::fill, pattern, make_view(dst.data() + 1, size)); },
                   [&](auto result) {
                       CHECK(result.status == status_code::ok && dst[0] == 0 && dst[size + 1] == 0);
                       for (std::size_t at = 0; at < size; at++) {
                           CHECK(dst[at + 1] == static_cast<std::uint8_t>(pattern >> at % 8 * 8));
                       }
                   });
    }
}

void dualcasts() {
    constexpr std::size_t page = 4096;
    for (const std::size_t size : {1, 100, 4096}) {
        const bytes src = made_up(size, 3);
        bytes memory(page * 5);
        const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % page;
        std::uint8_t *dst1 = memory.data() + (page - past) % page;
        std::uint8_t *dst2 = dst1 + 2 * page;
        both([&] { std::fill(memory.begin(), memory.end(), std::uint8_t{0}); },
                   [&](auto run) {
                       return run(dml::dualcast, make_view(src), make_view(dst1, size), make_view(dst2, size));
                   },
                   [&](auto result) {
                       CHECK(result.status == status_code::ok);
                       CHECK(std::memcmp(dst1, src.data(), size) == 0 && std::memcmp(dst2, src.data(), size) == 0);
                   });
    }
}

// Compares with each expectation. `mismatch` is the first difference, or the size if there is none.
template <typename operation_t, typename run_t>
void expectations(operation_t operation, std::size_t size, std::size_t mismatch, std::size_t slack, run_t compare) {
    const bool equal = mismatch == size;
    const auto judge = [&](status_code expected) {
        return [=](dml::compare_result result) {
            CHECK(result.status == expected);
            CHECK(result.result == (equal ? comparison_result::equal : comparison_result::not_equal));
            CHECK(equal ? result.mismatch == 0 : result.mismatch <= mismatch && result.mismatch + slack >= mismatch);
        };
    };
    const auto nothing = [] {};
    const auto ok = status_code::ok, other = status_code::false_predicate;
    both(nothing, [&](auto run) { return compare(run, operation); }, judge(ok));
    const auto same = operation.expect_equal(), different = operation.expect_not_equal();
    both(nothing, [&](auto run) { return compare(run, same); }, judge(equal ? ok : other));
    both(nothing, [&](auto run) { return compare(run, different); }, judge(equal ? other : ok));
}

void compares() {
    constexpr std::uint64_t pattern = 0x1122334455667788U;
    for (const std::size_t size : {1, 3, 8, 15, 64, 255, 1024, 9000}) {
        const bytes a = made_up(size, 4);
        bytes repeated(size);
        for (std::size_t at = 0; at < size; at++) {
            repeated[at] = static_cast<std::uint8_t>(pattern >> at % 8 * 8);
        }
        for (const std::size_t mismatch : {std::size_t{0}, size / 2, size - 1, size}) {
            bytes b = a, c = repeated;
            if (mismatch < size) {
                b[mismatch] ^= 1;
                c[mismatch] ^= 1;
            }
            expectations(dml::compare, size, mismatch, 0, [&](auto run, auto operation) {
                return run(operation, make_view(a), make_view(b));
            });
            expectations(dml::compare_pattern, size, mismatch, 7, [&](auto run, auto operation) {
                return run(operation, pattern, make_view(c));
            });
        }
    }
}

void deltas() {
    for (const std::size_t size : {8, 64, 4096, 0x80000}) {
        const bytes from = made_up(size, 5);
        for (const std::size_t step : {std::size_t{8}, std::size_t{120}, size * 2}) {
            bytes to = from;
            for (std::size_t at = 3; at < size; at += step) {
                to[at] ^= 0xFF;
            }
            if (step > size) {
                to = from;
            }
            const bytes expected = naive_delta(from, to);
            bytes record, whole, target;
            dml::create_delta_result created;
            both([&] { record.assign(std::max<std::size_t>(80, size / 8 * 10), 0); },
                       [&](auto run) {
                           return run(dml::create_delta, make_view(from), make_view(to), make_view(record));
                       },
                       [&](auto result) {
                           created = result;
                           whole = record;
                           CHECK(result.status == status_code::ok && result.bytes_completed == 0);
                           CHECK(result.delta_record_size == expected.size());
                           CHECK((result.result == comparison_result::equal) == expected.empty());
                           CHECK(std::equal(expected.begin(), expected.end(), record.begin()));
                       });
            if (created.status != status_code::ok) {
                continue;
            }
            both([&] { target = from; },
                       [&](auto run) { return run(dml::apply_delta, make_view(whole), make_view(target), created); },
                       [&](auto result) {
                           const auto empty = status_code::delta_delta_empty;
                           CHECK(result.status == (expected.empty() ? empty : status_code::ok) && target == to);
                       });
        }
    }
    // 100 words differ, and 8 fit.
    const bytes from(800), to(800, 1);
    bytes record(80);
    both([] {},
               [&](auto run) { return run(dml::create_delta, make_view(from), make_view(to), make_view(record)); },
               [&](auto result) {
                   CHECK(result.result == comparison_result::overflow && result.bytes_completed <= 72);
               });
    both([] {},
               [&](auto run) {
                   return run(dml::create_delta.expect_equal(), make_view(from), make_view(from), make_view(record));
               },
               [&](auto result) {
                   CHECK(result.status == status_code::ok && result.result == comparison_result::equal);
               });
}

void crcs() {
    for (const std::size_t size : {1, 2, 9, 64, 1000, 65537}) {
        const bytes src = made_up(size, 6);
        bytes dst;
        for (const std::uint32_t seed : {0U, 0x12345678U}) {
            for (const bool bypass : {false, true}) {
                for (const bool bypass_data : {false, true}) {
                    auto crc = dml::crc;
                    auto copy_crc = dml::copy_crc;
                    if (bypass) {
                        crc = crc.bypass_reflection();
                        copy_crc = copy_crc.bypass_reflection();
                    }
                    if (bypass_data) {
                        crc = crc.bypass_data_reflection();
                        copy_crc = copy_crc.bypass_data_reflection();
                    }
                    const std::uint32_t expected = naive_crc(src.data(), size, seed, bypass, bypass_data);
                    const auto right = [&](dml::crc_result result) {
                        CHECK(result.status == status_code::ok && result.crc_value == expected);
                    };
                    both([] {}, [&](auto run) { return run(crc, make_view(src), seed); }, right);
                    both([&] { dst.assign(size, 0); },
                               [&](auto run) { return run(copy_crc, make_view(src), make_view(dst), seed); },
                               [&](auto result) {
                                   right(result);
                                   CHECK(dst == src);
                               });
                }
            }
        }
    }
}

void others() {
    bytes data = made_up(4000, 7);
    const bytes before = data;
    const auto fine = [](auto result) { CHECK(result.status == status_code::ok); };
    both([] {}, [](auto run) { return run(dml::nop); }, fine);
    both([] {}, [&](auto run) { return run(dml::cache_flush, make_view(data)); }, fine);
    CHECK(data == before);
    // A queue that does not allow Block On Fault answers config_error.
    bytes copy(data.size());
    both([] {}, [&](auto run) { return run(dml::mem_move.block_on_fault(), make_view(data), make_view(copy)); },
               [&](auto result) {
                   configurations += result.status == status_code::config_error ? 1 : 0;
                   CHECK(result.status == status_code::config_error || copy == data);
               });
}

// Refused before any device is asked, so on every path and machine alike.
void refusals() {
    bytes a(4096), b(4096), c(4096);
    const auto null = make_view<std::uint8_t>(nullptr, 16);
    const auto none = make_view(a.data(), 0);
    const auto is = [](status_code expected, auto... args) {
        CHECK(execute(args...).status == expected);
        auto handler = submit(args...);
        CHECK(!handler.valid() && handler.is_finished());
        CHECK(handler.get().status == expected && handler.get().status == expected);
    };
    const auto part = [](bytes &of, std::size_t size) { return make_view(of.data(), size); };
    is(status_code::nullptr_error, dml::mem_move, null, part(a, 16));
    is(status_code::nullptr_error, dml::mem_move, part(a, 16), null);
    is(status_code::inconsistent_size, dml::mem_move, part(a, 15), part(b, 16));
    is(status_code::bad_size, dml::mem_move, none, none);
    is(status_code::nullptr_error, dml::mem_copy, part(a, 16), null);
    is(status_code::inconsistent_size, dml::mem_copy, part(a, 16), part(b, 15));
    is(status_code::bad_size, dml::mem_copy, none, none);
    is(status_code::nullptr_error, dml::fill, 1U, null);
    is(status_code::bad_size, dml::fill, 1U, none);
    is(status_code::bad_size, dml::fill, 1U, make_view(a.data(), a.data()));
    is(status_code::nullptr_error, dml::dualcast, null, part(a, 16), part(b, 16));
    is(status_code::inconsistent_size, dml::dualcast, part(a, 16), part(b, 15), part(c, 16));
    is(status_code::inconsistent_size, dml::dualcast, part(a, 16), part(b, 16), part(c, 15));
    is(status_code::nullptr_error, dml::compare, part(a, 16), null);
    is(status_code::inconsistent_size, dml::compare, part(a, 16), part(b, 17));
    is(status_code::bad_size, dml::compare, none, none);
    is(status_code::nullptr_error, dml::compare_pattern, 1U, null);
    is(status_code::bad_size, dml::compare_pattern, 1U, none);
    is(status_code::nullptr_error, dml::crc, null, 0U);
    is(status_code::bad_size, dml::crc, none, 0U);
    is(status_code::nullptr_error, dml::copy_crc, part(a, 16), null, 0U);
    is(status_code::inconsistent_size, dml::copy_crc, part(a, 16), part(b, 8), 0U);
    is(status_code::bad_size, dml::copy_crc, none, none, 0U);
    is(status_code::buffers_overlapping, dml::copy_crc, part(a, 16), make_view(a.data() + 8, 16), 0U);
    is(status_code::buffers_overlapping, dml::copy_crc, make_view(a.data() + 8, 16), part(a, 16), 0U);
    is(status_code::nullptr_error, dml::cache_flush, null);
    is(status_code::bad_size, dml::cache_flush, none);
    // Dualcast's bits 11:0.
    bytes room(16384);
    std::uint8_t *const page = room.data() + (4096 - reinterpret_cast<std::uintptr_t>(room.data()) % 4096) % 4096;
    is(status_code::dualcast_bad_padding, dml::dualcast, part(a, 16), make_view(page, 16), make_view(page + 4097, 16));
    is(status_code::bad_size, dml::dualcast, none, make_view(page, 0), make_view(page + 4096, 0));
    is(status_code::buffers_overlapping, dml::dualcast, make_view(page, 16), make_view(page, 16),
       make_view(page + 4096, 16));
    // Deltas.
    is(status_code::nullptr_error, dml::create_delta, null, part(b, 16), part(c, 80));
    is(status_code::nullptr_error, dml::create_delta, part(a, 16), null, part(c, 80));
    is(status_code::nullptr_error, dml::create_delta, part(a, 16), part(b, 16), make_view<std::uint8_t>(nullptr, 80));
    is(status_code::inconsistent_size, dml::create_delta, part(a, 16), part(b, 8), part(c, 80));
    is(status_code::bad_size, dml::create_delta, none, none, part(c, 80));
    is(status_code::bad_size, dml::create_delta, part(a, 15), part(b, 15), part(c, 80));
    is(status_code::bad_alignment, dml::create_delta, make_view(a.data() + 1, 16), part(b, 16), part(c, 80));
    is(status_code::delta_bad_size, dml::create_delta, part(a, 16), part(b, 16), part(c, 79));
    is(status_code::delta_bad_size, dml::create_delta, part(a, 16), part(b, 16), part(c, 17));
    is(status_code::delta_bad_size, dml::create_delta, part(a, 16), part(b, 16), part(c, 85));
    const auto delta = [](comparison_result result, dml::size_t size) {
        return dml::create_delta_result{status_code::ok, result, 0U, size};
    };
    const auto differ = comparison_result::not_equal;
    is(status_code::nullptr_error, dml::apply_delta, make_view<std::uint8_t>(nullptr, 80), part(b, 16),
       delta(differ, 10));
    is(status_code::nullptr_error, dml::apply_delta, part(a, 80), null, delta(differ, 10));
    is(status_code::bad_size, dml::apply_delta, part(a, 80), none, delta(differ, 10));
    is(status_code::bad_size, dml::apply_delta, part(a, 80), part(b, 16), delta(differ, 0));
    is(status_code::delta_bad_size, dml::apply_delta, part(a, 80), part(b, 16), delta(differ, 9));
    is(status_code::inconsistent_size, dml::apply_delta, part(a, 80), part(b, 16), delta(differ, 90));
    is(status_code::delta_delta_empty, dml::apply_delta, part(a, 80), part(b, 16), delta(comparison_result::equal, 10));
    is(status_code::delta_delta_empty, dml::apply_delta, part(a, 80), part(b, 16),
       delta(comparison_result::overflow, 10));
    // Batches.
    for (const dml::size_t members : {0U, 3U}) {
        dml::sequence short_one(10);
        for (dml::size_t at = 0; at < members; at++) {
            CHECK(short_one.add(dml::mem_move, part(a, 16), part(b, 16)) == status_code::ok);
        }
        CHECK(execute(dml::batch, short_one).status == status_code::bad_length);
        CHECK(execute(dml::batch, short_one).operations_completed == 0);
        auto handler = submit(dml::batch, short_one);
        CHECK(!handler.valid() && handler.get().status == status_code::bad_length);
    }
}

// A sequence refuses what execute refuses, and keeps its length.
void additions() {
    bytes a(4096), b(4096);
    const auto null = make_view<std::uint8_t>(nullptr, 16);
    dml::sequence none(0, std::allocator<int>());
    CHECK(none.add(dml::nop) == status_code::batch_overflow);
    CHECK(none.add(dml::mem_move, null, null) == status_code::batch_overflow);
    CHECK(none.add(dml::apply_delta, null, null, {{}, comparison_result::not_equal, {}, {}})
          == status_code::batch_overflow);
    dml::sequence one(1);
    CHECK(one.add(dml::mem_move, null, make_view(a.data(), 16)) == status_code::nullptr_error);
    CHECK(one.add(dml::mem_copy, make_view(b.data(), 15), make_view(a.data(), 16)) == status_code::inconsistent_size);
    CHECK(one.add(dml::fill, 1U, make_view(a.data(), 0)) == status_code::bad_size);
    CHECK(one.add(dml::copy_crc, make_view(a), make_view(a), 0U) == status_code::buffers_overlapping);
    CHECK(one.add(dml::apply_delta, make_view(a), make_view(b), {}) == status_code::delta_delta_empty);
    CHECK(one.length() == 0);
    CHECK(one.add(dml::cache_flush, make_view(a)) == status_code::ok && one.length() == 1);
    CHECK(one.add(dml::nop) == status_code::batch_overflow && one.length() == 1);
    const dml::sequence moved = std::move(one);
    CHECK(moved.length() == 1 && one.length() == 0); // NOLINT: a moved sequence is empty
}

void batches() {
    constexpr std::uint64_t pattern = 0xABCDEF0123456789U;
    const bytes src = made_up(1024, 8);
    bytes filled(1024), copy1(1024), copy2(1024), crc_copy(1024), room(4096 * 4);
    std::uint8_t *const dst1 = room.data() + (4096 - reinterpret_cast<std::uintptr_t>(room.data()) % 4096) % 4096;
    std::uint8_t *const dst2 = dst1 + 4096;
    dml::sequence sequence(10);
    CHECK(sequence.add(dml::fill, pattern, make_view(filled)) == status_code::ok);
    CHECK(sequence.add(dml::mem_move, make_view(src), make_view(copy1)) == status_code::ok);
    CHECK(sequence.add(dml::dualcast, make_view(src), make_view(dst1, 1024), make_view(dst2, 1024)) == status_code::ok);
    CHECK(sequence.add(dml::copy_crc, make_view(src), make_view(crc_copy), 0U) == status_code::ok);
    CHECK(sequence.add(dml::nop) == status_code::ok);
    CHECK(sequence.add(dml::mem_copy, make_view(copy1), make_view(copy2)) == status_code::ok);
    CHECK(sequence.add(dml::compare, make_view(src), make_view(crc_copy)) == status_code::ok);
    CHECK(sequence.add(dml::compare_pattern, pattern, make_view(filled)) == status_code::ok);
    CHECK(sequence.add(dml::crc, make_view(src), 0U) == status_code::ok);
    CHECK(sequence.add(dml::cache_flush, make_view(filled)) == status_code::ok);
    for (int round = 0; round < 2; round++) {
        both(
            [&] {
                filled.assign(1024, 0);
                copy1 = copy2 = crc_copy = filled;
                std::fill(room.begin(), room.end(), std::uint8_t{0});
            },
            [&](auto run) { return run(dml::batch, sequence); },
            [&](dml::batch_result result) {
                // A member that a page fault ends makes the batch fail.
                if (with_faults && result.status == status_code::error) {
                    partial++;
                    return;
                }
                CHECK(result.status == status_code::ok && result.operations_completed == 10);
                CHECK(copy1 == src && copy2 == src && crc_copy == src);
                CHECK(std::memcmp(dst1, src.data(), 1024) == 0 && std::memcmp(dst2, src.data(), 1024) == 0);
                std::uint64_t last = 0;
                std::memcpy(&last, filled.data() + 1016, 8);
                CHECK(last == pattern);
            });
    }
}

void everything() {
    refusals();
    moves();
    fills();
    dualcasts();
    compares();
    deltas();
    crcs();
    others();
    batches();
}

} // namespace

int main(int argc, char **argv) {
    const std::string word = argc > 1 ? argv[1] : "";
    with_faults = word == "faults";
    without_device = word == "absent";
    path = word == "software"    ? chosen_path::software
           : word == "automatic" ? chosen_path::automatic
                                 : chosen_path::hardware;
    additions();
    everything();
    std::printf("%u not offered, %u too long, %u ended by a page fault, %u refused for Block On Fault\n", unsupported,
                too_long, partial, configurations);
    return verdict();
}
