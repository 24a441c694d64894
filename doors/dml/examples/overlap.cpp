// Copies the rows of a table with one submission each, and adds up the table meanwhile, as a program written for
// Intel's DML does it.
//
//     c++ -std=c++17 overlap.cpp $(pkg-config --cflags --libs dml) -o overlap && ./overlap hardware|software|automatic
#include <dml/dml.hpp>

#include <cstdint>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

namespace {

constexpr std::size_t ROWS = 32;
constexpr std::size_t COLUMNS = 4096;

template <typename path> int copy_rows() {
    std::vector<std::uint32_t> table(ROWS * COLUMNS), copy(table.size());
    std::iota(table.begin(), table.end(), 1U);

    using handler = dml::handler<dml::mem_copy_operation, std::allocator<dml::byte_t>>;
    std::vector<handler> rows;
    for (std::size_t row = 0; row < ROWS; row++) {
        const auto src = dml::make_view(table.data() + row * COLUMNS, COLUMNS);
        const auto dst = dml::make_view(copy.data() + row * COLUMNS, COLUMNS);
        rows.push_back(dml::submit<path>(dml::mem_copy, src, dst));
    }
    // Until get() returns, the table may only be read, and the copy must not be used.
    const std::uint64_t sum = std::accumulate(table.begin(), table.end(), std::uint64_t{0});

    for (std::size_t row = 0; row < ROWS; row++) {
        dml::mem_copy_result result = rows[row].get();
        const auto src = dml::make_view(table.data() + row * COLUMNS, COLUMNS);
        const auto dst = dml::make_view(copy.data() + row * COLUMNS, COLUMNS);
        // A full queue takes it later; a page fault left a part of it.
        while (result.status == dml::status_code::queue_busy || result.status == dml::status_code::partial_completion) {
            result = dml::execute<dml::automatic>(dml::mem_copy, src, dst);
        }
        if (result.status != dml::status_code::ok) {
            std::cerr << "overlap: row " << row << " has status " << static_cast<std::uint32_t>(result.status) << '\n';
            return 1;
        }
    }
    std::cout << ROWS << " rows, sum " << sum << ", " << (table == copy ? "equal" : "different") << '\n';
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    const std::string path = argc > 1 ? argv[1] : "automatic";
    if (path == "hardware") {
        return copy_rows<dml::hardware>();
    }
    return path == "software" ? copy_rows<dml::software>() : copy_rows<dml::automatic>();
}
