// Jobs in a poll(2) loop.
#include "check.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <poll.h>
#include <vector>

int main(int, char **argv) {
    const telpher::device device(argv[1]);
    const telpher::mover mover(device, "threshold=always");
    const std::vector<std::byte> source(4096, std::byte{9});
    std::vector<std::vector<std::byte>> copies(100, std::vector<std::byte>(source.size()));
    pollfd one{mover.fd(), POLLIN, 0};
    std::map<telpher_job *, telpher::job> jobs;
    for (auto &copy : copies) {
        auto job = mover.start(telpher::ops::copy(copy, source));
        telpher_job *const key = job.get();
        jobs.emplace(key, std::move(job));
    }
    std::array<telpher_job *, 8> room{};
    while (!jobs.empty() && failures == 0) {
        CHECK(poll(&one, 1, 60000) == 1);
        for (telpher_job *ended : mover.ended(room)) {
            const auto at = jobs.find(ended);
            CHECK(at != jobs.end() && at->second.result().status == 0);
            jobs.erase(ended);
        }
    }
    CHECK(poll(&one, 1, 0) == 0);
    CHECK(mover.ended({}).empty());
    CHECK(std::all_of(copies.begin(), copies.end(), [&](const auto &copy) { return copy == source; }));
    std::printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
