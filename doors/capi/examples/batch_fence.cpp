// Several operations submitted together. The members after a fence wait for those before it, and are abandoned if one of
// those failed.
//
//     c++ -std=c++20 batch_fence.cpp $(pkg-config --cflags --libs telpher) -o batch_fence && ./batch_fence model:spr

#include <algorithm>
#include <cstdio>
#include <exception>
#include <telpher.hpp>
#include <vector>

namespace {

constexpr std::size_t LEN = 65536;
using buffer = std::vector<unsigned char>;

// Overwrites place if seen is as expected, and clears some scratch memory.
void round_of(const telpher::mover &mover, const buffer &seen, const buffer &next, buffer &place) {
    const buffer expected(LEN, 0);
    buffer scratch(LEN, 1);
    telpher::batch batch(mover);
    batch.add(telpher::ops::fill(telpher::write(scratch), 0));
    // A difference counts as a failure at the fence.
    const auto compare = telpher::ops::compare(telpher::read(seen), telpher::read(expected));
    batch.add(telpher::ops::with(compare, TELPHER_EXPECT_EQUAL));
    batch.add_fenced(telpher::ops::copy(telpher::write(place), telpher::read(next)));

    telpher::job job = std::move(batch).submit();
    job.wait();
    for (std::uint32_t i = 0; i < job.size(); i++)
        std::printf("member %u: %s\n", i, telpher::text(job.result(i)).c_str());
}

} // namespace

int main(int argc, char **argv) try {
    const telpher::device device(argc > 1 ? argv[1] : "model:spr");
    const telpher::mover mover(device, "threshold=4k");
    buffer seen(LEN, 0), next(LEN, 7), place(LEN, 0);
    round_of(mover, seen, next, place);
    std::printf("the place has %d\n", place[0]);
    std::fill(next.begin(), next.end(), static_cast<unsigned char>(8));
    seen[1234] = 1;
    round_of(mover, seen, next, place);
    std::printf("the place has %d\n", place[0]);
} catch (const std::exception &error) {
    std::fprintf(stderr, "batch_fence: %s\n", error.what());
    return 1;
}
