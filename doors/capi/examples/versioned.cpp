// Prices that one thread changes while others add them up from copies in fast memory: each sum is of the version that its reader holds.
// Then a block that is modified in fast memory, and copied back where it differs.
//
//     c++ -std=c++20 versioned.cpp $(pkg-config --cflags --libs telpher) -o versioned && ./versioned model:spr

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <telpher.hpp>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t PRICES = 100'000, BLOCK = 20'000;
constexpr int CHANGES = 50;

void show(const telpher::mover &mover) {
    std::vector<std::byte> prices(PRICES);
    const telpher_tier fast = telpher::tiers::pages(2 * PRICES);
    {
        const telpher::cache cache(mover, fast);
        const telpher::versioned versioned(cache, prices);
        std::atomic<int> wrong = 0;
        const auto add_up = [&] {
            for (std::uint64_t version = 0; version < CHANGES;) {
                const telpher::reading reading = versioned.read();
                version = reading.version();
                std::uint64_t sum = 0;
                for (std::size_t offset = 0; offset < PRICES; offset += BLOCK) {
                    const telpher::entry block = reading.access(offset, BLOCK).wait();
                    for (const std::byte price : block.location())
                        sum += std::to_integer<std::uint64_t>(price);
                }
                wrong += sum != version * PRICES;
            }
        };
        std::array readers{std::thread(add_up), std::thread(add_up), std::thread(add_up)};
        // Every price is the number of the version.
        for (int version = 1; version <= CHANGES; version++) {
            const telpher::writing writing = versioned.write();
            std::ranges::fill(writing.data(), static_cast<std::byte>(version));
        }
        for (std::thread &reader : readers)
            reader.join();
        std::printf("%llu versions, %d sums of another one\n", static_cast<unsigned long long>(versioned.version()),
                    wrong.load());
    }
    const telpher::pool pool(fast);
    telpher::write_back block(mover, pool, prices);
    std::ranges::fill(block.write(50'000, 20'000).first(10), std::byte{7});
    const telpher_synced synced = block.sync(TELPHER_FIND_DIFFERING);
    std::printf("%d bytes written, %llu compared, %llu copied back; price 50000 is %d\n", 10,
                static_cast<unsigned long long>(synced.compared), static_cast<unsigned long long>(synced.copied),
                std::to_integer<int>(prices[50'000]));
}

} // namespace

int main(int argc, char **argv) try {
    const telpher::device device(argc > 1 ? argv[1] : "model:spr");
    show(telpher::mover(device, "threshold=16k"));
} catch (const std::exception &error) {
    std::fprintf(stderr, "versioned: %s\n", error.what());
    return 1;
}
