// Copies a buffer and computes its CRC32C in the same pass, while the program does other work: a coroutine awaits the job.
//
//     c++ -std=c++20 copy_crc.cpp $(pkg-config --cflags --libs telpher) -o copy_crc && ./copy_crc model:spr

#include <cstdio>
#include <exception>
#include <string>
#include <telpher.hpp>
#include <vector>

namespace {

constexpr std::size_t LEN = 1024 * 1024;

telpher::task copy(const telpher::mover &mover) {
    std::vector<unsigned char> src(LEN), dst(LEN);
    for (std::size_t i = 0; i < LEN; i++)
        src[i] = static_cast<unsigned char>(i * 7);

    // Until the job has ended src and dst must not be used; other tasks of the loop continue.
    const telpher_result result =
        co_await mover.start(telpher::ops::copy_crc(telpher::write(dst), telpher::read(src)));

    std::printf("%zu bytes, CRC32C %08x, %s\n", LEN, result.crc, src == dst ? "equal" : "different");
}

} // namespace

int main(int argc, char **argv) try {
    const telpher::device device(argc > 1 ? argv[1] : "model:spr");
    const telpher::mover mover(device, "threshold=16k");
    telpher::loop loop;
    loop.spawn(copy(mover));
    loop.run();
} catch (const std::exception &error) {
    std::fprintf(stderr, "copy_crc: %s\n", error.what());
    return 1;
}
