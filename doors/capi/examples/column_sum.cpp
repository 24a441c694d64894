// select sum(b) where a < 50, with b prefetched: while column a is filtered, a device copies the blocks of b to fast memory.
//
//     c++ -std=c++20 column_sum.cpp $(pkg-config --cflags --libs telpher) -o column_sum && ./column_sum model:spr
//
// On a machine with HBM the tier is bound to its node: telpher::tiers::pages_on(8, size).

#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <telpher.hpp>
#include <vector>

namespace {

constexpr std::size_t ROWS = 1024 * 1024, BLOCK_ROWS = 16 * 1024, BLOCKS = ROWS / BLOCK_ROWS;

void query(const telpher::mover &mover) {
    std::vector<std::int32_t> a(ROWS), b(ROWS);
    for (std::size_t row = 0; row < ROWS; row++) {
        a[row] = static_cast<std::int32_t>(row * 7 % 100);
        b[row] = static_cast<std::int32_t>(row % 1000);
    }
    // Declared after the columns, so that it is destroyed before them.
    const telpher::cache cache(mover, telpher::tiers::pages(ROWS * sizeof(std::int32_t)));
    const auto part = [](const std::vector<std::int32_t> &column, std::size_t block) {
        return std::span(column).subspan(block * BLOCK_ROWS, BLOCK_ROWS);
    };

    // From here until its invalidation b must not be written. The first blocks have the highest priority.
    for (std::size_t block = 0; block < BLOCKS; block++)
        cache.prefetch(telpher::read(part(b, block)), static_cast<std::uint8_t>(255 - block));

    std::int64_t rows = 0, sum = 0;
    std::vector<unsigned char> selected(BLOCK_ROWS);
    for (std::size_t block = 0; block < BLOCKS; block++) {
        for (std::size_t row = 0; row < BLOCK_ROWS; row++)
            selected[row] = part(a, block)[row] < 50;

        const telpher::entry entry = cache.access(telpher::read(part(b, block))).wait();
        // The copy, or the source if there was no memory for one.
        const std::span values = entry.as<std::int32_t>();
        for (std::size_t row = 0; row < BLOCK_ROWS; row++) {
            rows += selected[row];
            sum += selected[row] ? values[row] : 0;
        }
    }
    std::printf("%lld of %zu rows, sum %lld, %llu of %zu blocks fetched ahead\n", static_cast<long long>(rows), ROWS,
                static_cast<long long>(sum), static_cast<unsigned long long>(cache.stats().hits), BLOCKS);
}

} // namespace

int main(int argc, char **argv) try {
    const telpher::device device(argc > 1 ? argv[1] : "model:spr");
    query(telpher::mover(device, "threshold=16k"));
} catch (const std::exception &error) {
    std::fprintf(stderr, "column_sum: %s\n", error.what());
    return 1;
}
