// The poll-mode layer: one thread, one queue, a ring of copies that never blocks and never allocates.
//
//     c++ -std=c++20 poll_ring.cpp $(pkg-config --cflags --libs telpher) -o poll_ring && ./poll_ring model:spr

#include <array>
#include <cstdio>
#include <exception>
#include <telpher.hpp>
#include <vector>

namespace {

constexpr std::size_t BLOCK = 4096, BLOCKS = 1000, PLACES = 32;

void copy_blocks(const telpher::device &device) {
    std::vector<unsigned char> src(BLOCKS * BLOCK), dst(BLOCKS * BLOCK);
    for (std::size_t i = 0; i < src.size(); i++)
        src[i] = static_cast<unsigned char>(i % 251);
    const telpher::bytes from = telpher::read(src);
    const telpher::writable to = telpher::write(dst);
    // Declared after the buffers, so that it is always destroyed before them.
    telpher::channel channel(device, 0, PLACES);

    std::size_t prepared = 0, ended = 0;
    unsigned long long sum = 0;
    while (ended < BLOCKS) {
        for (; prepared < BLOCKS; prepared++) {
            const std::size_t at = prepared * BLOCK;
            telpher_op op = telpher::ops::copy(to.subspan(at, BLOCK), from.subspan(at, BLOCK));
            op.user_data = prepared;
            if (!channel.put(op))
                break; // the channel is full
        }
        channel.submit();

        std::array<telpher_completion, PLACES> room;
        for (const telpher_completion &done : channel.completed(room)) {
            telpher::success(done.result);
            sum += done.user_data;
            ended++;
        }
    }
    std::printf("%zu blocks of %zu bytes, numbers add up to %llu, %s\n", ended, BLOCK, sum,
                src == dst ? "equal" : "different");
}

} // namespace

int main(int argc, char **argv) try {
    const telpher::device device(argc > 1 ? argv[1] : "model:spr");
    copy_blocks(device);
} catch (const std::exception &error) {
    std::fprintf(stderr, "poll_ring: %s\n", error.what());
    return 1;
}
