// A program's hot pages move to a faster tier while another thread counts in them; addresses and contents do not change.
//
//     c++ -std=c++20 page_tiers.cpp $(pkg-config --cflags --libs telpher) -pthread -o page_tiers && ./page_tiers model:spr
//
// Here both tiers are the machine's only memory. With HBM on node 1: {.name = "hbm", .size = ..., .node = 1}.

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <telpher.hpp>
#include <thread>

namespace {

constexpr std::size_t PAGES = 2048, WORDS = 4096 / sizeof(std::uint64_t), ROUNDS = 50;

void move_under_a_counter(const telpher::mover &mover) {
    const std::array<telpher::tier::memory, 2> tiers{{{.name = "fast", .size = 16 << 20}, {.name = "slow"}}};
    const telpher::tier::heap heap(mover, tiers);
    const telpher::tier::arena arena(heap, PAGES * 4096);
    const std::span words = arena.as<std::uint64_t>();
    for (std::size_t page = 0; page < PAGES; page++)
        words[page * WORDS] = page + 1;

    // Increments the first word of every page, repeatedly.
    std::thread counts([&] {
        for (std::size_t round = 0; round < ROUNDS; round++)
            for (std::size_t page = 0; page < PAGES; page++)
                words[page * WORDS]++;
    });
    // The first half is hot. A thread that touches a page being moved waits for it.
    telpher_tier_moved moved{};
    std::exception_ptr failure;
    try {
        moved = heap.migrate(arena.bytes().first(PAGES / 2 * 4096), 0);
    } catch (...) {
        failure = std::current_exception();
    }
    counts.join();
    if (failure)
        std::rethrow_exception(failure);

    const auto on = heap.residency(arena.bytes());
    std::uint64_t wrong = 0;
    for (std::size_t page = 0; page < PAGES; page++)
        wrong += words[page * WORDS] != page + 1 + ROUNDS;
    std::printf("%llu pages moved; %llu fast, %llu slow, %llu wrong\n", static_cast<unsigned long long>(moved.pages),
                static_cast<unsigned long long>(on[0]), static_cast<unsigned long long>(on[1]),
                static_cast<unsigned long long>(wrong));
}

} // namespace

int main(int argc, char **argv) try {
    const telpher::device device(argc > 1 ? argv[1] : "model:spr");
    move_under_a_counter(telpher::mover(device, "threshold=16k"));
} catch (const std::exception &error) {
    std::fprintf(stderr, "page_tiers: %s\n", error.what());
    return 1;
}
