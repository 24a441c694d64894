// Windows and durable files in C++. The owner is this process; the window is opened in it, too.
#include "check.hpp"

#include <cstdlib>
#include <unistd.h>
#include <vector>

int main(int argc, char **argv) {
    if (argc < 2)
        return 1;
    telpher::device device(argv[1]);
    telpher::mover mover(device);
    std::vector<unsigned char> memory(20000, 7), bytes(20000);
    {
        telpher::grant grant(mover, telpher::write(memory));
        telpher::window window(mover, grant.files());
        CHECK(window.size() == memory.size());
        window.read(0, telpher::write(bytes));
        CHECK(bytes == std::vector<unsigned char>(20000, 7));
        bytes.assign(20000, 8);
        window.write(0, telpher::read(bytes));
        CHECK(!window.compare(0, telpher::read(bytes)));
        window.fill(100, 5000, 0x0909090909090909);
        CHECK(!window.compare_pattern(100, 5000, 0x0909090909090909));
        CHECK(window.compare(0, telpher::read(bytes)) == 100);
        CHECK(window.compare_pattern(99, 5000, 0x0909090909090909) == 0);
        CHECK(throws(EINVAL, [&] { window.write(1, telpher::read(bytes)); }));
        grant.revoke();
        CHECK(throws(ESTALE, [&] { window.fill(0, 8, 0); }));
    }
    CHECK(memory[99] == 8 && memory[100] == 9 && memory[5099] == 9 && memory[5100] == 8);
    {
        // The destructor revokes it.
        const auto grant = telpher::grant::readable(mover, telpher::read(memory));
        telpher::window window(mover, grant.files());
        CHECK(throws(EPERM, [&] { window.fill(0, 8, 0); }));
    }
    memory.clear();
    memory.shrink_to_fit();
    CHECK(throws(EINVAL, [&] { telpher::window(mover, std::vector<std::int32_t>()); }));
    const std::string path = std::string("/var/tmp/telpher-durable-cpp-") + std::to_string(getpid());
    try {
        auto file = telpher::durable_file::create(path, 10000);
        const std::string text = "survives";
        file.store(mover, 4090, telpher::read(text));
        CHECK(file.content().size() == 10000 && file.content()[4090] == std::byte('s'));
        CHECK(throws(EINVAL, [&] { file.store(mover, 9999, telpher::read(text)); }));
        CHECK(throws(EBUSY, [&] { telpher::durable_file::open(path); }));
        (void)file.direct();
        unlink(path.c_str());
    } catch (const telpher::error &error) {
        // The folder is in memory.
        CHECK(std::string(error.what()).find("file system in memory") != std::string::npos);
    }
    std::printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
