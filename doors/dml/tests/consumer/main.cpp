// Copies by the C++ interface.
#include <dml/dml.hpp>

#include <vector>

int main() {
    std::vector<int> src(1000, 42), dst(1000);
    const auto copied = dml::execute<dml::software>(dml::mem_move, dml::make_view(src), dml::make_view(dst));
    auto summed = dml::submit<dml::automatic>(dml::crc, dml::make_view(dst), 0U);
    return copied.status == dml::status_code::ok && summed.get().status == dml::status_code::ok && src == dst ? 0 : 1;
}
