// Caches in C++: handles that free themselves, also when an exception is thrown, memory resources, policies that are lambdas, and
// coroutines that await blocks.

#include "check.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory_resource>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr std::size_t BLOCK = 64 * 1024;
std::vector<unsigned char> some(std::size_t blocks) {
    std::vector<unsigned char> bytes(blocks * BLOCK);
    for (std::size_t i = 0; i < bytes.size(); i++)
        bytes[i] = static_cast<unsigned char>(i * 13 + i / BLOCK);
    return bytes;
}

telpher::bytes part(const std::vector<unsigned char> &source, std::size_t block) {
    return telpher::read(source).subspan(block * BLOCK, BLOCK);
}

bool same(telpher::bytes a, telpher::bytes b) { return std::ranges::equal(a, b); }

// A memory resource that counts its allocated bytes and has a limit.
class counting : public std::pmr::memory_resource {
  public:
    explicit counting(std::size_t most) : most_(most) {}
    std::size_t held() const { return held_; }

  private:
    void *do_allocate(std::size_t size, std::size_t alignment) override {
        if (held_.fetch_add(size) + size > most_) {
            held_ -= size;
            throw std::bad_alloc();
        }
        return std::pmr::new_delete_resource()->allocate(size, alignment);
    }
    void do_deallocate(void *start, std::size_t size, std::size_t alignment) override {
        std::pmr::new_delete_resource()->deallocate(start, size, alignment);
        held_ -= size;
    }
    bool do_is_equal(const memory_resource &other) const noexcept override { return this == &other; }
    std::size_t most_;
    std::atomic<std::size_t> held_ = 0;
};

void handles_free_themselves(const telpher::mover &mover) {
    counting heap(3 * BLOCK);
    const auto source = some(4);
    std::optional<telpher::entry> survivor;
    try {
        const telpher::cache cache(mover, telpher::tiers::from(heap));
        const telpher::entry first = cache.access(part(source, 0)).wait();
        CHECK(first.fast() && same(first.location(), part(source, 0)) && heap.held() == BLOCK);
        CHECK(!cache.peek(part(source, 1)) && cache.peek(part(source, 0))->fast());
        const telpher::entry copy = first;
        CHECK(copy.location().data() == first.location().data());
        telpher::entry moved = cache.access(part(source, 1)).wait();
        survivor = copy;
        moved = first;
        CHECK(same(moved.location(), part(source, 0)));
        // The second block is unused: it is evicted for the fourth. Blocks beyond the resource's limit stay in their source.
        const telpher::entry third = cache.access(part(source, 2)).wait(), fourth = cache.access(part(source, 3)).wait();
        CHECK(fourth.fast() && cache.stats().evictions == 1);
        const telpher::entry second = cache.access(part(source, 1)).wait();
        CHECK(!second.fast() && second.location().data() == part(source, 1).data() && cache.stats().fallbacks == 1);
        CHECK(cache.flush() == 0 && cache.clear() == 3);
        throw 7;
    } catch (int) {
    }
    CHECK(heap.held() == BLOCK && survivor->stale() && same(survivor->location(), part(source, 0)));
    survivor.reset();
    CHECK(heap.held() == 0);
}

void a_block_is_read_as_typed_values(const telpher::mover &mover) {
    std::vector<std::int64_t> column(BLOCK / sizeof(std::int64_t));
    for (std::size_t i = 0; i < column.size(); i++)
        column[i] = static_cast<std::int64_t>(i) - 5;
    const telpher::cache cache(mover, telpher::tiers::pages(BLOCK, TELPHER_TIER_ABSENT));
    const telpher::entry block = cache.access(telpher::read(column)).wait();
    CHECK(std::ranges::equal(block.as<std::int64_t>(), column));
    const telpher::entry odd = cache.access(telpher::read(column).subspan(1, 16));
    CHECK(odd.as<char>().size() == 16 && throws(EINVAL, [&] { odd.as<std::int64_t>(); }));
}

void policies_are_lambdas(const telpher::mover &mover) {
    counting heaps[2] = {counting(2 * BLOCK), counting(2 * BLOCK)};
    const auto source = some(6);
    const telpher_tier tiers[] = {telpher::tiers::from(heaps[0]), telpher::tiers::near_to(0, telpher::tiers::from(heaps[1]))};
    int asked = 0;
    const std::byte *const start = part(source, 0).data();
    telpher::cache cache(mover, tiers, "in-flight=2",
                         {.place = [&](telpher::bytes block, std::int32_t) -> std::uint32_t {
                              asked++;
                              return block.data() < start + 3 * BLOCK ? 0 : 99;
                          },
                          .worth = [&](const telpher_resident &entry) {
                              return static_cast<std::uint64_t>(static_cast<const std::byte *>(entry.address) - start);
                          }});
    telpher::cache other = std::move(cache);
    for (std::size_t block : {1, 0, 2, 3})
        CHECK(other.access(part(source, block)).wait().fast());
    CHECK(asked == 4 && heaps[0].held() == 2 * BLOCK && heaps[1].held() == BLOCK);
    CHECK(!other.peek(part(source, 0)) && other.peek(part(source, 1)) && other.access_in(1, part(source, 0)).wait().fast());
    CHECK(throws(EINVAL, [&] { other.access_in(2, part(source, 0)); }));
    other = telpher::cache(mover, telpher::tiers::pages(BLOCK));
    CHECK(heaps[0].held() == 0 && heaps[1].held() == 0 && other.stats().entries == 0);
    CHECK(throws(EINVAL, [&] { telpher::cache(mover, std::span<const telpher_tier>()); }));
    CHECK(throws(EINVAL, [&] { telpher::cache(mover, telpher::tiers::pages(BLOCK), "placement=fixed:1"); }));
    CHECK(throws(EINVAL, [&] { other.access({}); }) || throws(EFAULT, [&] { other.access({}); }));
}

// An unbounded resource is given a limit.
void an_unbounded_resource_gets_a_limit(const telpher::mover &mover) {
    counting heap(100 * BLOCK);
    const auto source = some(4);
    const telpher::cache cache(mover, telpher::tiers::from(heap, 2 * BLOCK));
    for (std::size_t block = 0; block < 4; block++)
        CHECK(cache.access(part(source, block)).wait().fast());
    CHECK(heap.held() == 2 * BLOCK && cache.stats().evictions == 2 && cache.stats().bytes == 2 * BLOCK);
    const telpher::entry whole = cache.access(telpher::read(source)).wait();
    CHECK(!whole.fast() && whole.location().data() == telpher::read(source).data());
    CHECK(cache.apart(part(source, 0)) == std::nullopt);
    const telpher::cache pages(mover, telpher::tiers::pages(BLOCK));
    CHECK(pages.apart(part(source, 0)).has_value() && throws(EINVAL, [&] { (void)pages.apart(part(source, 0).first(0)); }));
}

// Handles hold memory; the location of an expiring handle would dangle.
template <class E> constexpr bool gives_location = requires(E &&entry) { std::forward<E>(entry).location(); };
template <class E> constexpr bool gives_values = requires(E &&entry) { std::forward<E>(entry).template as<int>(); };
static_assert(gives_location<const telpher::entry &> && !gives_location<telpher::entry> && !gives_location<const telpher::entry>);
static_assert(gives_values<telpher::entry &> && !gives_values<telpher::entry>);
static_assert(std::is_copy_constructible_v<telpher::entry> && std::is_nothrow_move_constructible_v<telpher::entry>);
static_assert(!std::is_copy_constructible_v<telpher::cache> && std::is_nothrow_move_assignable_v<telpher::cache>);
static_assert(!std::is_copy_constructible_v<telpher::prefetched> && std::is_nothrow_move_assignable_v<telpher::prefetched>);

// An exception in a function that is passed to the C interface ends the program. The functions of a
// telpher::cache_policy terminate the program themselves.
void an_exception_in_a_policy_ends_the_program() {
    const pid_t child = fork();
    if (child == 0) {
        std::fclose(stderr); // where the message goes
        const telpher::device cpu("cpu");
        const telpher::mover mover(cpu);
        telpher_cache_policy policy{};
        policy.place = [](void *, const void *, std::size_t, std::int32_t) -> std::uint32_t { throw 7; };
        telpher_cache *cache;
        telpher_entry *entry;
        const telpher_tier tier = telpher::tiers::pages(BLOCK);
        if (telpher_cache_new(&cache, mover.get(), &tier, 1, &policy, nullptr) == 0)
            (void)telpher_cache_access(cache, &tier, 1, &entry);
        _exit(0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

void prefetches_can_be_cancelled(const telpher::mover &mover) {
    const auto source = some(3);
    const telpher::cache cache(mover, telpher::tiers::pages(BLOCK));
    const telpher::prefetched first = cache.prefetch(part(source, 0), 9);
    telpher::prefetched second = cache.prefetch(part(source, 1));
    while (!first.done())
        cache.drive();
    CHECK(!second.done() && std::move(second).cancel());
    CHECK(cache.access(part(source, 0)).wait().fast() && cache.stats().cancelled == 1 && cache.stats().hits == 1);
}

void blocks_are_invalidated_before_writes(const telpher::mover &mover) {
    auto source = some(2);
    const auto before = source;
    const telpher::cache cache(mover, telpher::tiers::pages(4 * BLOCK));
    const telpher::entry old = cache.access(telpher::read(source)).wait();
    CHECK(cache.invalidate(part(source, 1)) == 1 && old.stale());
    std::ranges::fill(source, static_cast<unsigned char>(1));
    CHECK(same(old.location(), telpher::read(before)));
    const telpher::entry anew = cache.access(telpher::read(source)).wait();
    CHECK(same(anew.location(), telpher::read(source)));
}

telpher::task read_all(const telpher::cache &cache, const std::vector<unsigned char> &source, int &right) {
    for (std::size_t block = 0; block < source.size() / BLOCK; block++) {
        // An rvalue handle is returned; for an lvalue, the bytes.
        const telpher::entry entry = co_await cache.access(part(source, block));
        right += same(entry.location(), part(source, block));
        right += same(co_await entry, part(source, block)) && entry.done();
    }
}

void coroutines_await_blocks(const telpher::mover &mover) {
    const auto source = some(20);
    const telpher::cache cache(mover, telpher::tiers::pages(5 * BLOCK), "in-flight=3");
    int right[3] = {};
    telpher::loop loop;
    for (int &each : right)
        loop.spawn(read_all(cache, source, each));
    loop.run();
    CHECK(right[0] == 40 && right[1] == 40 && right[2] == 40 && cache.stats().evictions > 0);
}

// An await outside of a loop throws if there is anything to wait for.
void an_await_outside_of_a_loop_throws(const telpher::mover &mover) {
    const auto source = some(64);
    const telpher::cache cache(mover, telpher::tiers::pages(64 * BLOCK));
    bool ended = false;
    auto work = [&]() -> telpher::task {
        const telpher::entry entry = cache.access(telpher::read(source));
        try {
            co_await entry;
            CHECK(entry.done());
        } catch (const telpher::error &error) {
            CHECK(error.code().value() == EINVAL);
        }
        ended = true;
    };
    {
        telpher::task task = work();
        struct nothing {
            struct promise_type {
                nothing get_return_object() { return {}; }
                std::suspend_never initial_suspend() noexcept { return {}; }
                std::suspend_never final_suspend() noexcept { return {}; }
                void return_void() noexcept {}
                void unhandled_exception() noexcept { std::abort(); }
            };
        };
        [](telpher::task &waited) -> nothing { co_await waited; }(task);
    }
    CHECK(ended);
}

void threads_share_a_cache(const telpher::mover &mover) {
    const auto source = some(12);
    const telpher::cache cache(mover, telpher::tiers::pages(6 * BLOCK));
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    const telpher::entry shared = cache.access(part(source, 11));
    for (std::size_t number = 0; number < 4; number++)
        threads.emplace_back([&, number, mine = shared] {
            wrong += !same(mine.wait().location(), part(source, 11));
            for (std::size_t round = 0; round < 100; round++) {
                const std::size_t block = (round * 5 + number) % 12;
                const telpher::entry entry = cache.access(part(source, block));
                wrong += !same(entry.location(), part(source, block));
                (void)entry.wait_for(std::chrono::microseconds(5));
                wrong += !same(entry.wait().location(), part(source, block));
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    CHECK(wrong == 0 && cache.stats().hits + cache.stats().misses == 401);
}

} // namespace

int main(int argc, char **argv) try {
    an_exception_in_a_policy_ends_the_program();
    for (const char *runner : {"runner=inline", "runner=threaded"}) {
        const telpher::device device(argc > 1 ? argv[1] : "model:spr", runner);
        const telpher::mover mover(device, "threshold=4k");
        handles_free_themselves(mover);
        a_block_is_read_as_typed_values(mover);
        policies_are_lambdas(mover);
        an_unbounded_resource_gets_a_limit(mover);
        prefetches_can_be_cancelled(mover);
        blocks_are_invalidated_before_writes(mover);
        coroutines_await_blocks(mover);
        an_await_outside_of_a_loop_throws(mover);
        threads_share_a_cache(mover);
    }
    std::printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
} catch (const std::exception &error) {
    std::printf("%s\n", error.what());
    return 1;
}
