// The C++ interface: handles that free themselves, exceptions with errno and message, and coroutines that await jobs.
#include <array>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <telpher.hpp>
#include <vector>

namespace {

int failures, checks;

void check(bool good, int line, const char *what) {
    checks++;
    if (!good) {
        std::printf("line %d: %s\n", line, what);
        failures++;
    }
}
#define CHECK(condition) check((condition), __LINE__, #condition)

using buffer = std::vector<unsigned char>;

buffer some(std::size_t len, int seed) {
    buffer bytes(len);
    for (std::size_t i = 0; i < len; i++)
        bytes[i] = static_cast<unsigned char>(i * 13 + static_cast<std::size_t>(seed));
    return bytes;
}

template <class F> int thrown(F f, std::string *said = nullptr) {
    try {
        f();
    } catch (const telpher::error &error) {
        if (said != nullptr)
            *said = error.what();
        return error.code().value();
    }
    return 0;
}

void functions(const telpher::mover &mover) {
    const buffer src = some(50000, 1);
    buffer dst(50000), other(50000);
    mover.copy(telpher::write(dst), telpher::read(src));
    CHECK(src == dst && !mover.compare(telpher::read(src), telpher::read(dst)));
    dst[777]++;
    CHECK(mover.compare(telpher::read(src), telpher::read(dst)) == 777);
    const std::uint32_t crc = mover.crc32c(telpher::read(src));
    CHECK(mover.copy_crc32c(telpher::write(dst), telpher::read(src)) == crc && src == dst);

    dst.assign(dst.size(), 0);
    mover.run(telpher::ops::copy_durable(telpher::write(dst), telpher::read(src)));
    CHECK(src == dst);

    const std::vector<std::uint32_t> list{2, 0};
    const std::vector<std::int32_t> table{1, 2, 3, 4, 5, 6};
    std::vector<std::int32_t> rows(4), there(6), total(2);
    const telpher_arithmetic add{TELPHER_INT32, TELPHER_INT32, TELPHER_ADD, TELPHER_SIGNED};
    using namespace telpher;
    mover.run(ops::gather(write(rows), read(table), read(list), 8, TELPHER_LIST_INDEX32));
    CHECK((rows == std::vector<std::int32_t>{5, 6, 1, 2}));
    mover.run(ops::scatter(write(there), read(rows), read(list), 8, TELPHER_LIST_INDEX32));
    CHECK((there == std::vector<std::int32_t>{1, 2, 0, 0, 5, 6}));
    mover.run(ops::gather_reduce(write(total), read(table), read(list), 8, TELPHER_LIST_INDEX32, add));
    CHECK((total == std::vector<std::int32_t>{6, 8}));
    mover.run(ops::scatter_fill(write(there), read(list), 8, TELPHER_LIST_INDEX32, 0));
    CHECK((there == std::vector<std::int32_t>(6)));
    std::vector<std::int64_t> wide(6);
    mover.run(ops::convert(write(wide), read(table), {TELPHER_INT32, TELPHER_INT64, 0, TELPHER_SIGNED}));
    CHECK(wide[5] == 6);
    std::vector<std::int32_t> sum(6);
    mover.run(ops::reduce(write(sum), read(table), read(table), add));
    CHECK(sum[5] == 12 && mover.run(ops::crc64(read(std::string("123456789")))).crc64 == 0xae8b14860a799888);
    mover.fill(telpher::write(dst), 0x0101010101010101);
    CHECK(dst == buffer(50000, 1));
    mover.move(telpher::write(dst).subspan(10, 40000), telpher::write(dst).subspan(0, 40000));

    // Any operation.
    CHECK(mover.run(telpher::ops::dualcast(telpher::write(dst), telpher::write(other), telpher::read(src))).status == 0);
    CHECK(dst == src && other == src);
    other[123] ^= 1;
    buffer delta(62500);
    telpher_result result = mover.run(telpher::ops::create_delta(telpher::write(delta), telpher::read(dst), telpher::read(other)));
    CHECK(result.outcome == TELPHER_DELTA_COMPLETE && result.bytes == 10);
    CHECK(telpher::text(result) == "a delta record of 10 bytes");
    mover.run(telpher::ops::apply_delta(telpher::write(dst), telpher::read(delta).first(result.bytes)));
    CHECK(dst == other);

    std::string said;
    CHECK(thrown([&] { mover.copy(telpher::write(dst).first(1), telpher::read(src)); }, &said) == EINVAL);
    CHECK(said.find("must be equally long") != std::string::npos);
    CHECK(thrown([&] { mover.copy(telpher::write(dst), telpher::read(dst)); }, &said) == EINVAL);
    CHECK(said.find("overlap") != std::string::npos);
    CHECK(thrown([&] { mover.run(telpher_op_of(0x99)); }) == EINVAL);
    CHECK(thrown([&] { telpher::device("gpu"); }) == EINVAL);
    CHECK(thrown([&] { telpher::mover::cpu("colour=red"); }) == EINVAL);
    CHECK(mover.option("threshold") == "8k" && thrown([&] { (void)mover.option("colour"); }) == EINVAL);
}

void jobs(const telpher::mover &mover) {
    const buffer src = some(100000, 2);
    buffer dst(100000);
    {
        telpher::job job = mover.start(telpher::ops::copy(telpher::write(dst), telpher::read(src)));
        // Its destructor waits.
    }
    CHECK(src == dst);
    telpher::job job = mover.start(telpher::ops::compare(telpher::read(src), telpher::read(dst)));
    while (!job.wait_for(std::chrono::microseconds(10)))
        ;
    CHECK(job.done() && job.size() == 1 && job.result().outcome == TELPHER_EQUAL);
    CHECK(thrown([&] { (void)job.result(1); }) == EINVAL);
    // Move construction and assignment.
    telpher::job moved = std::move(job);
    job = mover.start(telpher::ops::nop());
    CHECK(job.wait().result().status == 0 && moved.result().status == 0);
    dst.assign(dst.size(), 0);
    mover.start(telpher::ops::copy(telpher::write(dst), telpher::read(src))).abandon();
    while (mover.outstanding() > 0)
        mover.drive();
    CHECK(src == dst);

    // A failed member is a result; the batch is not.
    telpher::batch batch(mover);
    CHECK(batch.add(telpher::ops::with(telpher::ops::compare(telpher::read(src), telpher::read(dst)), TELPHER_EXPECT_DIFFERENT)) == 0);
    CHECK(batch.add_fenced(telpher::ops::fill(telpher::write(dst), 0)) == 1);
    telpher::job both = std::move(batch).submit();
    both.wait();
    CHECK(both.result(0).outcome == TELPHER_EQUAL && both.result(1).status == -ECANCELED);
    CHECK(thrown([&] { telpher::success(both.result(1)); }) == ECANCELED && dst == src);
}

// --- coroutines

telpher::task copies(const telpher::mover &mover, int seed, int rounds, std::vector<int> &order) {
    for (int round = 0; round < rounds; round++) {
        const buffer src = some(40000 + static_cast<std::size_t>(seed), seed + round);
        buffer dst(src.size());
        const telpher_result result = co_await mover.start(telpher::ops::copy(telpher::write(dst), telpher::read(src)));
        CHECK(result.status == 0 && src == dst);
    }
    order.push_back(seed);
}

telpher::task outer(const telpher::mover &mover, std::vector<int> &order) {
    // A task within a task, and jobs that are awaited by name, out of order.
    co_await copies(mover, 1000, 2, order);
    const buffer src = some(30000, 5);
    buffer a(30000), b(30000);
    telpher::job first = mover.start(telpher::ops::copy(telpher::write(a), telpher::read(src)));
    telpher::job second = mover.start(telpher::ops::copy(telpher::write(b), telpher::read(src)));
    co_await second;
    co_await first;
    CHECK(a == src && b == src);
    order.push_back(1001);
}

telpher::task failing(const telpher::mover &mover) {
    buffer dst(64, 1);
    const buffer delta(10, 0xff);
    // An entry beyond its destination.
    co_await mover.start(telpher::ops::apply_delta(telpher::write(dst), telpher::read(delta)));
    CHECK(!"a failed job throws where it is awaited");
}

telpher::task catching(const telpher::mover &mover, int &caught) {
    try {
        co_await failing(mover);
    } catch (const telpher::error &error) {
        caught = error.code().value();
    }
}

void coroutines(const telpher::mover &mover) {
    telpher::loop loop;
    std::vector<int> order;
    for (int seed = 0; seed < 10; seed++)
        loop.spawn(copies(mover, seed, 10 - seed, order));
    loop.spawn(outer(mover, order));
    int caught = 0;
    loop.spawn(catching(mover, caught));
    loop.run();
    CHECK(order.size() == 12 && caught == EBADMSG);

    // An uncaught exception leaves the loop, after the other tasks have ended.
    order.clear();
    loop.spawn(failing(mover));
    loop.spawn(copies(mover, 7, 3, order));
    CHECK(thrown([&] { loop.run(); }) == EBADMSG && order == std::vector<int>{7});
    loop.run(); // nothing left

    // Never started, never finished: nothing leaks.
    loop.spawn(copies(mover, 1, 1, order));
    const telpher::task unused = copies(mover, 1, 1, order);
}

// Another kind of coroutine, which starts at once and is destroyed by its owner.
struct foreign {
    struct promise_type {
        foreign get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
    std::coroutine_handle<promise_type> self;
};

foreign copy_into(const telpher::mover &mover, buffer &dst, const buffer &src) {
    co_await mover.start(telpher::ops::copy(telpher::write(dst), telpher::read(src)));
}

telpher::task destroying(const telpher::mover &mover) {
    const buffer src = some(1 << 20, 3);
    buffer a(src.size()), b(src.size()), c(src.size());
    const foreign first = copy_into(mover, a, src), second = copy_into(mover, b, src);
    first.self.destroy(); // waits for its job, which the loop polls too
    CHECK(a == src);
    co_await mover.start(telpher::ops::copy(telpher::write(c), telpher::read(src)));
    while (!second.self.done())
        co_await mover.start(telpher::ops::nop());
    second.self.destroy();
    CHECK(b == src && c == src);
}

telpher::task batches(const telpher::mover &mover) {
    const buffer src = some(40000, 4), bad(10, 0xff);
    buffer dst(src.size()), other(64);
    telpher::batch good(mover);
    good.add(telpher::ops::copy(telpher::write(dst), telpher::read(src)));
    good.add(telpher::ops::nop());
    CHECK((co_await std::move(good).submit()).outcome == TELPHER_DONE && src == dst);
    // A failed member is reported although another one succeeded.
    telpher::batch half(mover);
    half.add(telpher::ops::nop());
    half.add(telpher::ops::apply_delta(telpher::write(other), telpher::read(bad)));
    telpher::job job = std::move(half).submit();
    int caught = 0;
    try {
        co_await job;
    } catch (const telpher::error &error) {
        caught = error.code().value();
    }
    CHECK(caught == EBADMSG && job.result(0).status == 0 && job.result(1).status == -EBADMSG);
}

void loops_and_foreign_coroutines(const telpher::mover &mover) {
    {
        telpher::loop loop;
        loop.spawn(destroying(mover));
        loop.spawn(batches(mover));
        loop.run();
    }
    CHECK(thrown([&] {
              telpher::job job = mover.start(telpher::ops::nop());
              auto awaiter = job.operator co_await();
              awaiter.await_suspend(std::noop_coroutine());
          }) == EINVAL);
}

void channels(const telpher::device &device) {
    const buffer src = some(8 * 4096, 9);
    buffer dst(src.size());
    telpher::channel channel(device, 0, 4);
    std::array<telpher_completion, 4> room;
    std::size_t put = 0, fetched = 0;
    while (fetched < 8) {
        while (put < 8) {
            const auto op = telpher::ops::copy(telpher::write(dst).subspan(put * 4096, 4096), telpher::read(src).subspan(put * 4096, 4096));
            if (!channel.put(op))
                break;
            put++;
        }
        channel.submit();
        for (const telpher_completion &done : channel.completed(room))
            CHECK(telpher::success(done.result).status == 0 && done.ticket == fetched++);
    }
    CHECK(src == dst && channel.pending() == 0 && channel.quarantined() == 0);
    CHECK(thrown([&] { channel.put(telpher::ops::copy(telpher::write(dst), telpher::read(dst))); }) == EINVAL);
}

} // namespace

int main(int argc, char **argv) try {
    const std::string name = argc > 1 ? argv[1] : "model:spr";
    for (const char *runner : {"runner=inline", "runner=threaded"}) {
        const telpher::device device(name, runner);
        CHECK(device.queues() > 0 && std::string(device.queue(0).name).starts_with("wq0."));
        {
            const telpher::mover mover(device, "threshold=8k");
            functions(mover);
            jobs(mover);
            coroutines(mover);
            loops_and_foreign_coroutines(mover);
        }
        channels(device);
    }
    functions(telpher::mover::cpu("threshold=8k"));
    coroutines(telpher::mover::cpu());
    loops_and_foreign_coroutines(telpher::mover::cpu());
    std::printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
} catch (const std::exception &error) {
    std::printf("%s\n", error.what());
    return 1;
}
