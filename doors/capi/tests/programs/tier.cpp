// Heaps and arenas in C++: handles that free themselves in any order, spans with stable addresses, and errors as exceptions.

#include "check.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace {

using telpher::tier::arena, telpher::tier::heap, telpher::tier::memory, telpher::tier::pages;

constexpr std::size_t PAGE = 4096, MIB = 1024 * 1024;
const std::array<memory, 2> TIERS{{{.name = "fast, with a name that is longer than what a structure has", .size = 8 * MIB}, {}}};

void number(std::span<std::uint64_t> words) {
    for (std::size_t word = 0; word < words.size(); word++)
        words[word] = word + 1;
}

bool is_numbered(std::span<const std::uint64_t> words) {
    for (std::size_t word = 0; word < words.size(); word++)
        if (words[word] != word + 1)
            return false;
    return true;
}

void pages_of_each_kind_move_both_ways(const telpher::mover &mover) {
    const heap tiers(mover, TIERS, "batch=100");
    for (const pages kind : {pages::small, pages::huge, pages::shared}) {
        arena first(tiers, 3 * MIB, kind);
        CHECK(first.bytes().size() == 4 * MIB && std::ranges::all_of(first.bytes(), [](std::byte b) { return b == std::byte{}; }));
        number(first.as<std::uint64_t>());
        const arena second = std::move(first);
        const std::span words = second.as<std::uint64_t>();
        const telpher_tier_moved moved = tiers.migrate(second.bytes().first(2 * MIB), 0);
        CHECK(moved.pages == 512 && is_numbered(words));
        CHECK((tiers.residency(second.bytes()) == std::vector<std::uint64_t>{512, 512}));
        CHECK(tiers.migrate(second.bytes(), 1).pages == 512 && is_numbered(words));
        if (kind == pages::shared)
            CHECK(throws(EOPNOTSUPP, [&] { second.discard(0, PAGE); }));
        else
            CHECK((second.discard(0, PAGE), words[0] == 0 && words[511] == 0 && words[512] == 513));
    }
    CHECK(tiers.stats().moved.pages == 6 * 512 && tiers.stats().lost == 0);
    CHECK(tiers.mechanism() == telpher::tier::mechanism::exchange);
    CHECK(tiers.name(0) == TIERS[0].name && tiers.name(1) == "1" && tiers.info(1).home == 1);
    CHECK(TIERS[0].name.starts_with(tiers.info(0).name) && std::strlen(tiers.info(0).name) == 31);
}

void handles_are_freed_in_any_order(const telpher::mover &mover) {
    std::optional<heap> tiers(std::in_place, mover, TIERS);
    std::optional<arena> memory(std::in_place, *tiers, MIB);
    number(memory->as<std::uint64_t>());
    tiers->migrate(memory->bytes(), 0);
    heap other = std::move(*tiers);
    tiers.reset();
    CHECK(other.residency(memory->bytes())[0] == 512);
    { const heap gone = std::move(other); }
    CHECK(is_numbered(memory->as<std::uint64_t>()));
    memory.reset();
    const heap by_cpu = heap::cpu(TIERS);
    CHECK(arena(by_cpu, 1).bytes().size() == 2 * MIB);
}

void existing_mappings_are_adopted(const telpher::mover &mover) {
    const heap tiers(mover, TIERS);
    void *const start = mmap(nullptr, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED);
    const std::span words(static_cast<std::uint64_t *>(start), MIB / 8);
    const telpher::writable bytes = std::as_writable_bytes(words);
    number(words);
    tiers.adopt(bytes);
    CHECK(throws(EEXIST, [&] { tiers.adopt(bytes); }));
    CHECK(tiers.migrate(bytes, 0).pages == 256 && is_numbered(words));
    tiers.release(bytes);
    CHECK(tiers.migrate(bytes, 1).pages == 0 && is_numbered(words));
    munmap(start, MIB);
}

void a_manager_follows_advice(const telpher::mover &mover) {
    const heap tiers(mover, TIERS);
    const arena memory(tiers, 2 * MIB);
    number(memory.as<std::uint64_t>());
    const telpher::bytes part = memory.bytes().first(MIB);
    tiers.pin(memory.bytes(), 0);
    tiers.unpin(memory.bytes());
    tiers.pin(part, 0);
    tiers.cold(memory.bytes().subspan(MIB));
    std::optional<telpher::tier::manager> first(std::in_place, tiers, "pass=10ms window=2ms residence=1ms");
    telpher::tier::manager manager = std::move(*first);
    first.reset();
    // The manager counts pages after they have moved; the move is visible earlier.
    telpher_tier_report report = manager.report();
    for (int tries = 0; tries < 3000 && (tiers.residency(part)[0] < 256 || report.promoted < 256); tries++) {
        usleep(10000);
        report = manager.report();
    }
    CHECK(tiers.residency(memory.bytes().subspan(MIB))[0] == 0);
    CHECK(tiers.residency(part)[0] == 256 && report.promoted >= 256 && report.failed == 0);
    CHECK(is_numbered(memory.as<std::uint64_t>()));
    CHECK(throws(EINVAL, [&] { tiers.pin(part, 2); }) && throws(EINVAL, [&] { tiers.hot(part.first(0)); }));
}

void errors_are_exceptions(const telpher::mover &mover) {
    CHECK(throws(EINVAL, [&] { heap(mover, std::span(TIERS).first(1)); }));
    CHECK(throws(EINVAL, [&] { heap(mover, TIERS, "colour=red"); }));
    CHECK(throws(EINVAL, [&] { heap::cpu(TIERS, "mechanism=move-pages"); }));
    const heap tiers(mover, TIERS);
    CHECK(throws(EINVAL, [&] { arena(tiers, 0); }));
    const arena memory(tiers, MIB);
    CHECK(throws(EINVAL, [&] { tiers.migrate(memory.bytes(), 2); }));
    CHECK(throws(EINVAL, [&] { tiers.info(2); }) && throws(EINVAL, [&] { tiers.name(2); }));
    CHECK(throws(EINVAL, [&] { memory.discard(2 * MIB, 1); }));
    CHECK(throws(EINVAL, [&] { tiers.adopt(memory.bytes().subspan(1)); }));
}

} // namespace

int main(int argc, char **argv) try {
    const telpher::device device(argc > 1 ? argv[1] : "model:spr");
    const telpher::mover mover(device, "threshold=16k");
    pages_of_each_kind_move_both_ways(mover);
    handles_are_freed_in_any_order(mover);
    existing_mappings_are_adopted(mover);
    a_manager_follows_advice(mover);
    errors_are_exceptions(mover);
    std::printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
} catch (const std::exception &error) {
    std::printf("%s\n", error.what());
    return 1;
}
