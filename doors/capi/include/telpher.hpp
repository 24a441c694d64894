// SPDX-License-Identifier: MIT OR Apache-2.0
//
// telpher.hpp: telpher.h for C++20. Handles that end themselves, errors as exceptions, spans for ranges, and jobs that a
// coroutine awaits. Everything here is inline over the C functions; the rules of telpher.h hold, above all its page on what must
// stay alive between submit and complete.
//
//     telpher::device device("model:spr");
//     telpher::mover mover(device, "threshold=16k");
//     mover.copy(dst, src);                                        // done when it returns
//
//     telpher::task work(telpher::mover &mover) {
//         co_await mover.start(telpher::ops::copy(dst, src));      // others go on meanwhile
//     }
//     telpher::loop loop;
//     loop.spawn(work(mover));
//     loop.run();
//
// Errors. What the C function answers with a negative errno is thrown as telpher::error, a std::system_error whose code() is
// that errno and whose what() has the sentence. A difference found is a result, not an error.
//
// Lifetimes. A job's destructor waits for its end, a channel's for everything it was given, and a cache's for the copies that are
// under way; a queue that does not answer is given up at their option limit (30 s). So declare buffers before the job, batch,
// channel or cache that uses them: then they outlive it, also when an exception passes by or a coroutine is destroyed half-way.
//
// Threads. As in telpher.h: device, mover, cache, entry, prefetched and those of tier and vhost any thread, any time; job, batch,
// channel, loop and vhost::burst one thread at a time.
#ifndef TELPHER_HPP
#define TELPHER_HPP

#include <telpher.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace telpher {

// What a C function answered with a negative errno.
class error : public std::system_error {
  public:
    error(int negative_errno, const std::string &sentence)
        : std::system_error(-negative_errno, std::generic_category(), sentence) {}
};

namespace detail {

// The answer, or the exception that it means.
inline int check(int answer) {
    if (answer < 0)
        throw error(answer, telpher_last_error());
    return answer;
}

struct closer {
    void operator()(telpher_device *device) const noexcept { telpher_device_close(device); }
    // A mover of which something was abandoned stays, with its handle, rather than giving memory back too early.
    void operator()(telpher_mover *mover) const noexcept { (void)telpher_mover_free(mover); }
    void operator()(telpher_job *job) const noexcept { (void)telpher_job_free(job); }
    void operator()(telpher_batch *batch) const noexcept { telpher_batch_free(batch); }
    void operator()(telpher_channel *channel) const noexcept {
        // Its ranges may go out of scope next, so it goes on until no device has them.
        while (telpher_channel_free(channel) == -EBUSY) {
        }
    }
    void operator()(telpher_cache *cache) const noexcept { (void)telpher_cache_free(cache); }
    void operator()(telpher_entry *entry) const noexcept { telpher_entry_free(entry); }
    void operator()(telpher_prefetch *prefetch) const noexcept { telpher_prefetch_free(prefetch); }
    void operator()(telpher_tier_heap *heap) const noexcept { telpher_tier_heap_free(heap); }
    void operator()(telpher_tier_arena *arena) const noexcept { telpher_tier_arena_free(arena); }
    void operator()(telpher_tier_manager *manager) const noexcept { telpher_tier_manager_free(manager); }
    // As a mover of which something was abandoned.
    void operator()(telpher_vhost_pool *pool) const noexcept { (void)telpher_vhost_pool_free(pool); }
    void operator()(telpher_vhost_lane *lane) const noexcept { telpher_vhost_lane_free(lane); }
    void operator()(telpher_vhost_port *port) const noexcept { telpher_vhost_port_free(port); }
    void operator()(telpher_vhost_socket *socket) const noexcept { telpher_vhost_socket_free(socket); }
};

template <class T> using handle = std::unique_ptr<T, closer>;

// A text that a C function writes as snprintf does, also when it grows between two calls.
template <class Write> std::string text(Write write) {
    std::string whole;
    for (;;) {
        const auto size = static_cast<std::size_t>(check(write(whole.data(), whole.empty() ? 0 : whole.size() + 1)));
        const bool fits = size <= whole.size();
        whole.resize(size);
        if (fits)
            return whole;
    }
}

inline void same(std::size_t a, std::size_t b) {
    if (a != b)
        throw error(-EINVAL, "buffers of " + std::to_string(a) + " and " + std::to_string(b) +
                                 " bytes must be equally long");
}

} // namespace detail

// Bytes to read and bytes to write, from anything a span can be made of: std::as_bytes and std::as_writable_bytes do it.
using bytes = std::span<const std::byte>;
using writable = std::span<std::byte>;

// A vector, an array or a span of values that are their bytes.
template <class Range>
concept plain = std::ranges::contiguous_range<Range> && std::is_trivially_copyable_v<std::ranges::range_value_t<Range>>;

// Its bytes.
template <plain Range> bytes read(const Range &range) {
    return std::as_bytes(std::span(range));
}
template <plain Range> writable write(Range &range) {
    return std::as_writable_bytes(std::span(range));
}

// Operations, as telpher_op_* with spans. Lengths that must agree are looked at here.
namespace ops {

inline telpher_op nop() { return telpher_op_nop(); }
inline telpher_op drain() { return telpher_op_drain(); }
inline telpher_op copy(writable dst, bytes src) {
    detail::same(src.size(), dst.size());
    return telpher_op_copy(dst.data(), src.data(), src.size());
}
inline telpher_op move(writable dst, bytes src) {
    detail::same(src.size(), dst.size());
    return telpher_op_move(dst.data(), src.data(), src.size());
}
inline telpher_op fill(writable dst, std::uint64_t pattern) {
    return telpher_op_fill(dst.data(), pattern, dst.size());
}
inline telpher_op fill16(writable dst, const std::uint64_t (&pattern)[2]) {
    return telpher_op_fill16(dst.data(), pattern, dst.size());
}
inline telpher_op compare(bytes a, bytes b) {
    detail::same(a.size(), b.size());
    return telpher_op_compare(a.data(), b.data(), a.size());
}
inline telpher_op compare_pattern(bytes src, std::uint64_t pattern) {
    return telpher_op_compare_pattern(src.data(), pattern, src.size());
}
inline telpher_op create_delta(writable delta, bytes old, bytes new_) {
    detail::same(old.size(), new_.size());
    return telpher_op_create_delta(delta.data(), delta.size(), old.data(), new_.data(), old.size());
}
inline telpher_op apply_delta(writable dst, bytes delta) {
    return telpher_op_apply_delta(dst.data(), dst.size(), delta.data(), delta.size());
}
inline telpher_op dualcast(writable dst, writable dst2, bytes src) {
    detail::same(src.size(), dst.size());
    detail::same(src.size(), dst2.size());
    return telpher_op_dualcast(dst.data(), dst2.data(), src.data(), src.size());
}
inline telpher_op crc(bytes src, std::uint32_t seed = 0) { return telpher_op_crc(src.data(), src.size(), seed); }
inline telpher_op copy_crc(writable dst, bytes src, std::uint32_t seed = 0) {
    detail::same(src.size(), dst.size());
    return telpher_op_copy_crc(dst.data(), src.data(), src.size(), seed);
}
inline telpher_op dif_check(bytes src, telpher_dif dif, telpher_tags tags) {
    return telpher_op_dif_check(src.data(), src.size(), dif, tags);
}
inline telpher_op dif_insert(writable dst, bytes src, telpher_dif dif, telpher_tags tags) {
    return telpher_op_dif_insert(dst.data(), dst.size(), src.data(), src.size(), dif, tags);
}
inline telpher_op dif_strip(writable dst, bytes src, telpher_dif dif, telpher_tags tags) {
    return telpher_op_dif_strip(dst.data(), dst.size(), src.data(), src.size(), dif, tags);
}
inline telpher_op dif_update(writable dst, bytes src, telpher_dif dif, telpher_tags tags, telpher_tags new_tags) {
    return telpher_op_dif_update(dst.data(), dst.size(), src.data(), src.size(), dif, tags, new_tags);
}
inline telpher_op flush(bytes src) { return telpher_op_flush(src.data(), src.size()); }

// The same operation with flags of enum telpher_flag.
inline telpher_op with(telpher_op op, std::uint32_t flags) {
    op.flags |= flags;
    return op;
}

} // namespace ops

// A result as a sentence.
inline std::string text(const telpher_result &result) {
    return detail::text([&](char *buffer, std::size_t size) { return telpher_result_text(&result, buffer, size); });
}

// The result, or the exception that its failure means.
inline const telpher_result &success(const telpher_result &result) {
    if (result.status < 0)
        throw error(result.status, text(result));
    return result;
}

// The queues behind a device's name. Moves, does not copy. Movers and channels made of it go on when it is gone.
class device {
  public:
    // Throws if the name, an option, or the machine says no.
    explicit device(const std::string &name, const std::string &options = "") {
        telpher_device *raw;
        detail::check(telpher_device_open(&raw, name.c_str(), options.c_str()));
        handle_.reset(raw);
    }

    // How many queues it has.
    std::uint32_t queues() const { return static_cast<std::uint32_t>(detail::check(telpher_device_queues(get()))); }

    // What a queue accepts. Throws if there is none of this index.
    telpher_queue_info queue(std::uint32_t index) const {
        telpher_queue_info info;
        detail::check(telpher_device_queue(get(), index, &info));
        return info;
    }

    telpher_device *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_device> handle_;
};

class mover;

// An operation or a batch under way, then its results. Its destructor waits for its end: until then the ranges are lent.
// One thread at a time. `co_await` gives the result of its first operation, and throws if any of them failed; it needs a loop
// that runs.
class job {
  public:
    // 1 step; true if it has ended.
    bool done() { return detail::check(telpher_job_done(get())) == 1; }

    // Waits until it has ended.
    job &wait() {
        detail::check(telpher_job_wait(get(), -1));
        return *this;
    }

    // Waits until it has ended, or so long; true if it has ended.
    bool wait_for(std::chrono::nanoseconds at_most) {
        return detail::check(telpher_job_wait(get(), std::max<std::int64_t>(at_most.count(), 0))) == 1;
    }

    // How many results it has; 0 before its end.
    std::uint32_t size() const { return static_cast<std::uint32_t>(detail::check(telpher_job_results(get()))); }

    // What operation `index` came to, failed or not. Throws if the job has not ended or has no such operation.
    telpher_result result(std::uint32_t index = 0) const {
        telpher_result result;
        result.outcome = TELPHER_DONE;
        result.status = 0;
        const int answer = telpher_job_result(get(), index, &result);
        // A failure that is not the result's own is the call's.
        if (answer < 0 && result.status != answer)
            throw error(answer, telpher_last_error());
        return result;
    }

    // Gives the handle up without waiting, and whatever no queue has taken yet; the ranges stay lent until the mover has nothing
    // outstanding.
    void abandon() { detail::check(telpher_job_abandon(handle_.release())); }

    telpher_job *get() const noexcept { return handle_.get(); }

    struct awaiter;
    awaiter operator co_await() &;
    awaiter operator co_await() &&;

  private:
    friend class mover;
    friend class batch;
    explicit job(telpher_job *raw) noexcept : handle_(raw) {}
    detail::handle<telpher_job> handle_;
};

// A list of operations that are submitted together.
class batch {
  public:
    explicit batch(const mover &mover);

    // Adds an operation and gives its number, the index of its result.
    std::uint32_t add(const telpher_op &op) {
        return static_cast<std::uint32_t>(detail::check(telpher_batch_add(handle_.get(), &op)));
    }

    // The same behind a fence: it begins when everything before it has succeeded.
    std::uint32_t add_fenced(const telpher_op &op) { return add(ops::with(op, TELPHER_FENCE)); }

    // Submits the list, which is gone then.
    job submit() && {
        telpher_job *raw;
        detail::check(telpher_batch_submit(handle_.release(), &raw));
        return job(raw);
    }

  private:
    detail::handle<telpher_batch> handle_;
};

// Decides where, whether and how, and does it. Moves, does not copy; any thread, any time.
class mover {
  public:
    // Over the device's queues. Throws for an option that is none, and for a dedicated queue that somebody has.
    explicit mover(const device &device, const std::string &options = "") : mover(device.get(), options) {}

    // By the CPU alone.
    static mover cpu(const std::string &options = "") { return mover(nullptr, options); }

    // Each does its work and waits; the ranges are lent until it returns.
    void copy(writable dst, bytes src) const {
        detail::same(src.size(), dst.size());
        detail::check(telpher_copy(get(), dst.data(), src.data(), src.size()));
    }
    void move(writable dst, bytes src) const {
        detail::same(src.size(), dst.size());
        detail::check(telpher_move(get(), dst.data(), src.data(), src.size()));
    }
    void fill(writable dst, std::uint64_t pattern) const {
        detail::check(telpher_fill(get(), dst.data(), pattern, dst.size()));
    }
    // The offset of the first difference, or nothing if the ranges are equal.
    std::optional<std::uint64_t> compare(bytes a, bytes b) const {
        detail::same(a.size(), b.size());
        std::uint64_t at = 0;
        const bool differ = detail::check(telpher_compare(get(), a.data(), b.data(), a.size(), &at)) == 1;
        return differ ? std::optional(at) : std::nullopt;
    }
    std::uint32_t crc32c(bytes src, std::uint32_t seed = 0) const {
        std::uint32_t crc;
        detail::check(telpher_crc32c(get(), src.data(), src.size(), seed, &crc));
        return crc;
    }
    std::uint32_t copy_crc32c(writable dst, bytes src, std::uint32_t seed = 0) const {
        detail::same(src.size(), dst.size());
        std::uint32_t crc;
        detail::check(telpher_copy_crc32c(get(), dst.data(), src.data(), src.size(), seed, &crc));
        return crc;
    }
    // Any operation. Throws if it fails.
    telpher_result run(const telpher_op &op) const {
        telpher_result result;
        detail::check(telpher_run(get(), &op, &result));
        return result;
    }

    // Puts an operation on its way; the ranges are lent until the job has ended.
    job start(const telpher_op &op) const {
        telpher_job *raw;
        detail::check(telpher_start(get(), &op, &raw));
        return job(raw);
    }

    // A setting as it is.
    std::string option(const std::string &key) const {
        return detail::text([&](char *buffer, std::size_t size) { return telpher_mover_option(get(), key.c_str(), buffer, size); });
    }

    // Abandoned operations whose ranges a device may still use.
    int outstanding() const { return detail::check(telpher_mover_outstanding(get())); }

    // Lets devices without a thread work.
    void drive() const { detail::check(telpher_mover_drive(get())); }

    telpher_mover *get() const noexcept { return handle_.get(); }

  private:
    mover(telpher_device *device, const std::string &options) {
        telpher_mover *raw;
        detail::check(telpher_mover_new(&raw, device, options.c_str()));
        handle_.reset(raw);
    }
    detail::handle<telpher_mover> handle_;
};

inline batch::batch(const mover &mover) {
    telpher_batch *raw;
    detail::check(telpher_batch_new(mover.get(), &raw));
    handle_.reset(raw);
}

// One thread's ring to one queue: nothing but construction and destruction blocks or allocates. Its destructor waits for
// everything it was given.
class channel {
  public:
    channel(const device &device, std::uint32_t queue, std::uint32_t capacity, const std::string &options = "") {
        telpher_channel *raw;
        detail::check(telpher_channel_new(&raw, device.get(), queue, capacity, options.c_str()));
        handle_.reset(raw);
    }

    // Prepares an operation and gives its ticket, or nothing if every place is taken.
    std::optional<std::uint64_t> put(const telpher_op &op) {
        std::uint64_t ticket;
        const int answer = telpher_channel_put(get(), &op, &ticket);
        if (answer == -EAGAIN)
            return std::nullopt;
        detail::check(answer);
        return ticket;
    }

    // Sends what was prepared; how many operations left.
    std::uint32_t submit() { return static_cast<std::uint32_t>(detail::check(telpher_channel_submit(get()))); }

    // Fetches what has ended: the part of `room` that was filled.
    std::span<telpher_completion> completed(std::span<telpher_completion> room) {
        const auto max = static_cast<std::uint32_t>(std::min<std::size_t>(room.size(), UINT32_MAX));
        return room.first(static_cast<std::size_t>(detail::check(telpher_channel_completed(get(), room.data(), max))));
    }

    // Prepared, and not fetched.
    int pending() const { return detail::check(telpher_channel_pending(get())); }
    // Fetched as late, and the device may still use the ranges.
    int quarantined() const { return detail::check(telpher_channel_quarantined(get())); }

    telpher_channel *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_channel> handle_;
};

// ---------------------------------------------------------------------------------------------------- caches

// Fast memory of one kind, as a cache's tier.
namespace tiers {

// `size` bytes of pages; flags of enum telpher_tier_flag that need no node.
inline telpher_tier pages(std::uint64_t size, std::uint32_t flags = 0) {
    telpher_tier tier{};
    tier.size = size;
    tier.flags = flags;
    return tier;
}

// The same on one NUMA node, as HBM has one of its own.
inline telpher_tier pages_on(std::uint32_t node, std::uint64_t size, std::uint32_t flags = 0) {
    telpher_tier tier = pages(size, flags | TELPHER_TIER_ON_NODE);
    tier.node = node;
    return tier;
}

// Whatever a memory resource has, or `most` bytes of it at a time. Without a `most` the resource itself has to end somewhere:
// nothing is given up before it throws. Any thread may use it at any time, so it is one that sees to that, such as
// std::pmr::synchronized_pool_resource; it outlives the cache and its entries.
inline telpher_tier from(std::pmr::memory_resource &resource, std::uint64_t most = 0) {
    constexpr std::size_t LINE = 64;
    telpher_tier tier{};
    tier.size = most;
    tier.user = &resource;
    tier.obtain = [](void *user, std::size_t len) noexcept -> void * {
        try {
            return static_cast<std::pmr::memory_resource *>(user)->allocate(len, LINE);
        } catch (...) {
            return nullptr;
        }
    };
    tier.release = [](void *user, void *start, std::size_t len) noexcept {
        static_cast<std::pmr::memory_resource *>(user)->deallocate(start, len, LINE);
    };
    return tier;
}

// The same tier for the threads of a node (option placement=near).
inline telpher_tier near_to(std::uint32_t node, telpher_tier tier) {
    tier.flags |= TELPHER_TIER_NEAR;
    tier.near_node = node;
    return tier;
}

} // namespace tiers

// Functions that decide, where the options are not enough; see telpher_cache_policy. An exception in one ends the program.
struct cache_policy {
    // The number of the tier that has a block; the node is the asking thread's, -1 if unknown.
    std::function<std::uint32_t(bytes block, std::int32_t node)> place;
    // What an unused entry is worth: the least goes first.
    std::function<std::uint64_t(const telpher_resident &entry)> worth;
};

// A block of a cache, wherever it is; a copy is another handle to the same. Any thread, any time. `co_await` waits for it in a
// loop that runs, and gives the bytes, or, of a handle that nobody else has, the handle.
class entry {
  public:
    entry(const entry &other) {
        telpher_entry *raw;
        detail::check(telpher_entry_share(other.get(), &raw));
        handle_.reset(raw);
    }
    entry(entry &&other) noexcept = default;
    entry &operator=(entry other) noexcept {
        handle_ = std::move(other.handle_);
        return *this;
    }
    ~entry() = default;

    // Its bytes where they are at the moment: the copy if it is there, the source otherwise. Valid as long as the handle, hence
    // not of one that is about to end.
    bytes location() const & noexcept {
        return {static_cast<const std::byte *>(telpher_entry_location(get(), nullptr)), telpher_entry_size(get())};
    }
    bytes location() const && = delete;

    // The same as values. Throws if they are not aligned there: copies are to 64 bytes, parts of blocks as in the source.
    template <class T>
        requires std::is_trivially_copyable_v<T>
    std::span<const T> as() const & {
        const bytes all = location();
        if (reinterpret_cast<std::uintptr_t>(all.data()) % alignof(T) != 0)
            throw error(-EINVAL, "a block is not aligned to its values");
        return {reinterpret_cast<const T *>(all.data()), all.size() / sizeof(T)};
    }
    template <class T> std::span<const T> as() const && = delete;

    // The copy is there.
    bool fast() const noexcept {
        int fast = 0;
        (void)telpher_entry_location(get(), &fast);
        return fast == 1;
    }

    // Weak wait: 1 step; true if there is nothing left to wait for.
    bool done() const { return detail::check(telpher_entry_done(get())) == 1; }

    // Waits until there is nothing left to wait for.
    const entry &wait() const & {
        detail::check(telpher_entry_wait(get(), -1));
        return *this;
    }
    entry wait() && {
        detail::check(telpher_entry_wait(get(), -1));
        return std::move(*this);
    }

    // The same, or so long; true if there is nothing left to wait for.
    bool wait_for(std::chrono::nanoseconds at_most) const {
        return detail::check(telpher_entry_wait(get(), std::max<std::int64_t>(at_most.count(), 0))) == 1;
    }

    // The block was said to have changed since.
    bool stale() const { return detail::check(telpher_entry_stale(get())) == 1; }

    telpher_entry *get() const noexcept { return handle_.get(); }

    struct awaiter;
    struct giver;
    awaiter operator co_await() const &;
    giver operator co_await() &&;

  private:
    friend class cache;
    explicit entry(telpher_entry *raw) noexcept : handle_(raw) {}
    detail::handle<telpher_entry> handle_;
};

// A block that was asked for ahead of time. Dropping it changes nothing. Moves, does not copy.
class prefetched {
  public:
    // The copy is there; takes one step.
    bool done() const { return detail::check(telpher_prefetch_done(handle_.get())) == 1; }

    // Calls it off; true if its copy had not begun.
    bool cancel() && { return detail::check(telpher_prefetch_cancel(handle_.release())) == 1; }

  private:
    friend class cache;
    explicit prefetched(telpher_prefetch *raw) noexcept : handle_(raw) {}
    detail::handle<telpher_prefetch> handle_;
};

// Copies of blocks in fast memory, lent to many threads. Moves, does not copy; any thread, any time. Blocks are declared before
// it, and `invalidate` is called before one of them is written or goes: see "caches" in telpher.h.
class cache {
  public:
    // Throws for an option or a tier that is none, and for memory that cannot be had.
    cache(const mover &mover, std::span<const telpher_tier> tiers, const std::string &options = "", cache_policy policy = {})
        : policy_(std::make_unique<cache_policy>(std::move(policy))) {
        telpher_cache_policy functions{};
        functions.user = policy_.get();
        if (policy_->place)
            functions.place = [](void *user, const void *start, std::size_t len, std::int32_t node) noexcept {
                return static_cast<const cache_policy *>(user)->place({static_cast<const std::byte *>(start), len}, node);
            };
        if (policy_->worth)
            functions.worth = [](void *user, const telpher_resident *entry) noexcept {
                return static_cast<const cache_policy *>(user)->worth(*entry);
            };
        telpher_cache *raw;
        const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(tiers.size(), UINT32_MAX));
        detail::check(telpher_cache_new(&raw, mover.get(), tiers.data(), count, &functions, options.c_str()));
        handle_.reset(raw);
    }
    cache(const mover &mover, const telpher_tier &tier, const std::string &options = "", cache_policy policy = {})
        : cache(mover, std::span(&tier, 1), options, std::move(policy)) {}
    cache(cache &&other) noexcept = default;
    cache &operator=(cache &&other) noexcept {
        // In this order: the functions go after the cache that calls them.
        handle_ = std::move(other.handle_);
        policy_ = std::move(other.policy_);
        return *this;
    }
    ~cache() = default;

    // The block, whose copy begins if no entry has it.
    entry access(bytes block) const {
        telpher_entry *raw;
        detail::check(telpher_cache_access(get(), block.data(), block.size(), &raw));
        return entry(raw);
    }

    // The same in a tier of one's choice.
    entry access_in(std::uint32_t tier, bytes block) const {
        telpher_entry *raw;
        detail::check(telpher_cache_access_in(get(), tier, block.data(), block.size(), &raw));
        return entry(raw);
    }

    // Weak access: the block if an entry has it.
    std::optional<entry> peek(bytes block) const {
        telpher_entry *raw;
        if (detail::check(telpher_cache_peek(get(), block.data(), block.size(), &raw)) == 0)
            return std::nullopt;
        return entry(raw);
    }

    // Says that a block will be asked for, the sooner the higher the priority.
    prefetched prefetch(bytes block, std::uint8_t priority = 0) const {
        telpher_prefetch *raw;
        detail::check(telpher_cache_prefetch(get(), block.data(), block.size(), priority, &raw));
        return prefetched(raw);
    }

    // Says that bytes are about to change or to go; how many entries are gone. Nobody reads them for the cache any more then.
    int invalidate(bytes block) const { return detail::check(telpher_cache_invalidate(get(), block.data(), block.size())); }

    // Whether a copy would lie on another NUMA node than the block; nothing if that is not known.
    std::optional<bool> apart(bytes block) const {
        const int answer = telpher_cache_apart(get(), block.data(), block.size());
        return answer == -ENODATA ? std::nullopt : std::optional(detail::check(answer) == 1);
    }

    // Forgets the entries nobody uses, or all; how many.
    int flush() const { return detail::check(telpher_cache_flush(get())); }
    int clear() const { return detail::check(telpher_cache_clear(get())); }

    // Begins copies that may begin.
    void drive() const { detail::check(telpher_cache_drive(get())); }

    // What it has done and has.
    telpher_stats stats() const {
        telpher_stats stats;
        detail::check(telpher_cache_stats(get(), &stats));
        return stats;
    }

    telpher_cache *get() const noexcept { return handle_.get(); }

  private:
    std::unique_ptr<cache_policy> policy_;
    // After the functions, so that it goes before them.
    detail::handle<telpher_cache> handle_;
};

// ---------------------------------------------------------------------------------------------------- tiers

// Memory on several tiers, whose pages change theirs while the program goes on: see "tiers" in telpher.h.
namespace tier {

// One kind of memory.
struct memory {
    // What people call it; nothing for its number.
    std::string name{};
    // The most bytes the heap takes of it; the home tier has no bound of the heap's.
    std::uint64_t size = 0;
    // Its NUMA node; nothing for wherever the system has some.
    std::optional<std::uint32_t> node{};
    // What shared arenas have there: reserved huge pages, or a device or file of this path.
    bool huge_pages = false;
    std::string path{};
};

// What an arena's memory is.
enum class pages : std::uint32_t { small = 0, huge = TELPHER_TIER_ARENA_HUGE_PAGES, shared = TELPHER_TIER_ARENA_SHARED };

// By which mechanism pages change their tier.
enum class mechanism : std::uint32_t {
    exchange = TELPHER_TIER_EXCHANGE,
    move_pages = TELPHER_TIER_MOVE_PAGES,
    remap = TELPHER_TIER_REMAP,
    other = TELPHER_TIER_OTHER_WAY
};

class heap;

// Zeroed memory of a heap. Moves, does not copy; goes on when its heap is gone. Its bytes are the program's.
class arena {
  public:
    // At least so many bytes, rounded up to 2 MiB.
    arena(const heap &heap, std::size_t size, pages pages = pages::small);

    // Its bytes, which stay where they are.
    writable bytes() const noexcept {
        std::size_t size = 0;
        void *const start = telpher_tier_arena_memory(get(), &size);
        return {static_cast<std::byte *>(start), size};
    }

    // The same as values that are their bytes, as many as fit. Their bytes are zero at first.
    template <class T> std::span<T> as() const noexcept {
        static_assert(std::is_trivially_copyable_v<T>);
        const writable all = bytes();
        return {static_cast<T *>(static_cast<void *>(all.data())), all.size() / sizeof(T)};
    }

    // Gives the whole pages of a part back: they read as zeros.
    void discard(std::size_t offset, std::size_t len) const { detail::check(telpher_tier_arena_discard(get(), offset, len)); }

    telpher_tier_arena *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_tier_arena> handle_;
};

// Memory on several tiers, the fastest first. Moves, does not copy.
class heap {
  public:
    // Copies by a mover. Throws if the options make no sense, or the system refuses what moving pages wants.
    heap(const mover &mover, std::span<const memory> tiers, const std::string &options = "") : heap(mover.get(), tiers, options) {}

    // Copies by the CPU.
    static heap cpu(std::span<const memory> tiers, const std::string &options = "") { return heap(nullptr, tiers, options); }

    // Moves the pages of a range to a tier, as many as can be.
    telpher_tier_moved migrate(bytes range, std::uint32_t to) const {
        telpher_tier_moved moved;
        detail::check(telpher_tier_migrate(get(), range.data(), range.size(), to, &moved));
        return moved;
    }

    // Pages of a range that are on each tier.
    std::vector<std::uint64_t> residency(bytes range) const {
        std::vector<std::uint64_t> pages(tiers_);
        detail::check(telpher_tier_residency(get(), range.data(), range.size(), pages.data(), tiers_));
        return pages;
    }

    // Takes memory over that the program has mapped itself, and lets it go, or a part of it.
    void adopt(writable range) const { detail::check(telpher_tier_adopt(get(), range.data(), range.size())); }
    void release(writable range) const { detail::check(telpher_tier_release(get(), range.data(), range.size())); }

    // Says what the program knows of a range, for a manager that there is or will be.
    void hot(bytes range) const { advise(range, TELPHER_TIER_HOT); }
    void cold(bytes range) const { advise(range, TELPHER_TIER_COLD); }
    void pin(bytes range, std::uint32_t to) const { advise(range, TELPHER_TIER_PIN, to); }
    void unpin(bytes range) const { advise(range, TELPHER_TIER_UNPIN); }

    // By which mechanism its pages change their tier.
    tier::mechanism mechanism() const { return static_cast<tier::mechanism>(detail::check(telpher_tier_mechanism_of(get()))); }

    // How a tier stands, and what it is called.
    telpher_tier_info info(std::uint32_t tier) const {
        telpher_tier_info info;
        detail::check(telpher_tier_info_of(get(), tier, &info));
        return info;
    }
    std::string name(std::uint32_t tier) const {
        return detail::text([&](char *buffer, std::size_t size) { return telpher_tier_name(get(), tier, buffer, size); });
    }

    // What it has done.
    telpher_tier_stats stats() const {
        telpher_tier_stats stats;
        detail::check(telpher_tier_stats_of(get(), &stats));
        return stats;
    }

    telpher_tier_heap *get() const noexcept { return handle_.get(); }

  private:
    void advise(bytes range, std::uint32_t advice, std::uint32_t to = 0) const {
        detail::check(telpher_tier_advise(get(), range.data(), range.size(), advice, to));
    }
    heap(const telpher_mover *mover, std::span<const memory> tiers, const std::string &options)
        : tiers_(static_cast<std::uint32_t>(tiers.size())) {
        std::vector<telpher_tier_options> all;
        for (const memory &each : tiers) {
            telpher_tier_options raw{};
            raw.name = each.name.empty() ? nullptr : each.name.c_str();
            raw.size = each.size;
            raw.flags = each.node ? std::uint32_t{TELPHER_TIER_ON_NODE} : 0U;
            raw.flags |= each.huge_pages ? std::uint32_t{TELPHER_TIER_HUGE_PAGES} : 0U;
            raw.path = each.path.empty() ? nullptr : each.path.c_str();
            raw.node = each.node.value_or(0);
            all.push_back(raw);
        }
        telpher_tier_heap *raw;
        detail::check(telpher_tier_heap_new(&raw, mover, all.data(), tiers_, options.c_str()));
        handle_.reset(raw);
    }
    std::uint32_t tiers_;
    detail::handle<telpher_tier_heap> handle_;
};

inline arena::arena(const heap &heap, std::size_t size, pages pages) {
    telpher_tier_arena *raw;
    detail::check(telpher_tier_arena_new(&raw, heap.get(), size, static_cast<std::uint32_t>(pages)));
    handle_.reset(raw);
}

// Looks at a heap's memory and moves it, until it ends. Moves, does not copy.
class manager {
  public:
    explicit manager(const heap &heap, const std::string &options = "") {
        telpher_tier_manager *raw;
        detail::check(telpher_tier_manager_new(&raw, heap.get(), options.c_str()));
        handle_.reset(raw);
    }

    // What it has found and done.
    telpher_tier_report report() const {
        telpher_tier_report report;
        detail::check(telpher_tier_report_of(get(), &report));
        return report;
    }

    telpher_tier_manager *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_tier_manager> handle_;
};

} // namespace tier

// ---------------------------------------------------------------------------------------------------- virtual machines

// A vhost-user backend: see "virtual machines" in telpher.h. Everything but a burst any thread, any time.
namespace vhost {

// A packet's bytes, while the caller has it.
inline writable bytes_of(const telpher_packet &packet) {
    return {static_cast<std::byte *>(packet.data), packet.len};
}

// A reason for a drop, an index of telpher_vhost_stats::drops, as a sentence; nullptr for what is none.
inline const char *drop_text(std::uint32_t reason) {
    return telpher_vhost_drop_text(reason);
}

// Memory for packets. Declared before everything that has some: one that is not whole when it ends stays, with its memory.
class pool {
  public:
    // So many buffers for packets of so many bytes, in memory of its own.
    pool(std::uint32_t buffers, std::uint32_t longest) : pool(buffers, longest, writable()) {}
    // The same in memory of the caller's, which outlives it: at least size_of.
    pool(std::uint32_t buffers, std::uint32_t longest, writable memory) {
        telpher_vhost_pool *raw;
        detail::check(telpher_vhost_pool_new(&raw, buffers, longest, memory.data(), memory.size()));
        handle_.reset(raw);
    }

    // Bytes of memory that a pool takes; 0 if there can be no such pool.
    static std::size_t size_of(std::uint32_t buffers, std::uint32_t longest) { return telpher_vhost_pool_size(buffers, longest); }

    // How many buffers are free.
    std::uint32_t available() const { return static_cast<std::uint32_t>(detail::check(telpher_vhost_pool_available(get()))); }

    // Ends it now. Throws if somebody has packets of it; it stays then.
    void close() {
        detail::check(telpher_vhost_pool_free(get()));
        (void)handle_.release();
    }

    telpher_vhost_pool *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_vhost_pool> handle_;
};

// Packets that the caller has, up to so many; those left at its end go back to the pool. Moves, does not copy. One thread at a
// time. Nothing is allocated after its construction.
class burst {
  public:
    burst(const pool &pool, std::uint32_t room)
        : pool_(pool.get()), packets_(std::make_unique_for_overwrite<telpher_packet[]>(room)), room_(room) {}
    burst(burst &&other) noexcept
        : pool_(other.pool_), packets_(std::move(other.packets_)), room_(std::exchange(other.room_, 0)),
          size_(std::exchange(other.size_, 0)) {}
    burst &operator=(burst &&other) noexcept {
        if (this != &other) {
            clear();
            pool_ = other.pool_;
            packets_ = std::move(other.packets_);
            room_ = std::exchange(other.room_, 0);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    ~burst() { clear(); }

    // How many there are, and can be.
    std::uint32_t size() const noexcept { return size_; }
    std::uint32_t room() const noexcept { return room_; }
    bool empty() const noexcept { return size_ == 0; }

    telpher_packet *begin() noexcept { return packets_.get(); }
    telpher_packet *end() noexcept { return packets_.get() + size_; }
    const telpher_packet *begin() const noexcept { return packets_.get(); }
    const telpher_packet *end() const noexcept { return packets_.get() + size_; }
    telpher_packet &operator[](std::uint32_t index) noexcept { return packets_[index]; }
    const telpher_packet &operator[](std::uint32_t index) const noexcept { return packets_[index]; }

    // Lends packets without bytes, at most so many and as many as are free and have room; how many.
    std::uint32_t alloc(std::uint32_t most = UINT32_MAX) {
        const std::uint32_t wanted = std::min(most, room_ - size_);
        return add(telpher_vhost_alloc_burst(pool_, packets_.get() + size_, wanted));
    }

    // Gives all back to the pool. What was given away by hand is passed over.
    void clear() noexcept {
        for (std::uint32_t from = 0; from < size_;) {
            const int freed = telpher_vhost_free_burst(pool_, packets_.get() + from, size_ - from);
            from += freed > 0 ? static_cast<std::uint32_t>(freed) : 1;
        }
        size_ = 0;
    }

  private:
    friend class port;
    std::uint32_t add(int more) {
        const auto count = static_cast<std::uint32_t>(detail::check(more));
        size_ += count;
        return count;
    }
    telpher_vhost_pool *pool_;
    std::unique_ptr<telpher_packet[]> packets_;
    std::uint32_t room_, size_ = 0;
};

// One queue of a device, with room for so many copies in flight, shared by any number of virtqueues.
class lane {
  public:
    lane(const device &device, std::uint32_t queue, std::uint32_t room) {
        telpher_vhost_lane *raw;
        detail::check(telpher_vhost_lane_new(&raw, device.get(), queue, room));
        handle_.reset(raw);
    }

    // What it has done.
    telpher_vhost_lane_stats stats() const {
        telpher_vhost_lane_stats stats;
        detail::check(telpher_vhost_lane_stats_of(get(), &stats));
        return stats;
    }

    telpher_vhost_lane *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_vhost_lane> handle_;
};

// How one virtqueue works. Without lanes the thread that polls copies everything.
struct queue {
    // The lanes its copies ride; a port goes on with them when they have ended.
    std::vector<const lane *> lanes{};
    // Packets of so many bytes or more ride a lane.
    std::uint32_t device_from = 0;
    // Packets in flight at most; 0 is 1024.
    std::uint32_t in_flight = 0;
};

// The virtqueues of one frontend after another.
class port {
  public:
    // queues: how each virtqueue works, by its number; the last is for those that follow.
    explicit port(const pool &pool, std::span<const queue> queues = {}, const std::string &options = "") {
        std::vector<std::vector<telpher_vhost_lane *>> lanes;
        std::vector<telpher_vhost_queue> raw_queues;
        for (const queue &each : queues) {
            auto &own = lanes.emplace_back();
            for (const lane *one : each.lanes)
                own.push_back(one != nullptr ? one->get() : nullptr);
            telpher_vhost_queue raw{};
            raw.lanes = own.data();
            raw.lane_count = static_cast<std::uint32_t>(own.size());
            raw.device_from = each.device_from;
            raw.in_flight = each.in_flight;
            raw_queues.push_back(raw);
        }
        telpher_vhost_port *raw;
        const auto count = static_cast<std::uint32_t>(raw_queues.size());
        detail::check(telpher_vhost_port_new(&raw, pool.get(), raw_queues.data(), count, options.c_str()));
        handle_.reset(raw);
    }
    // All virtqueues alike.
    port(const pool &pool, const queue &queue, const std::string &options = "") : port(pool, std::span(&queue, 1), options) {}

    // Begins to copy packets to the guest; those that were taken leave the burst, from its first on. How many.
    std::uint32_t submit_enqueue_burst(burst &packets, std::uint32_t pair = 0) const {
        const int answer = telpher_vhost_submit_enqueue_burst(get(), pair, packets.begin(), packets.size_);
        const auto taken = static_cast<std::uint32_t>(detail::check(answer));
        std::copy(packets.begin() + taken, packets.end(), packets.begin());
        packets.size_ -= taken;
        return taken;
    }

    // Shows the guest what has landed, and appends the packets that it has got to a burst, as many as have room. How many.
    std::uint32_t poll_enqueue_completed(burst &done, std::uint32_t pair = 0) const {
        return done.add(telpher_vhost_poll_enqueue_completed(get(), pair, done.end(), done.room_ - done.size_));
    }
    // The same; the packets go back to the pool.
    std::uint32_t poll_enqueue_completed(std::uint32_t pair = 0) const {
        return static_cast<std::uint32_t>(detail::check(telpher_vhost_poll_enqueue_completed(get(), pair, nullptr, 0)));
    }

    // Appends packets that the guest has sent to a burst, as many as have room. How many.
    std::uint32_t try_dequeue_burst(burst &packets, std::uint32_t pair = 0) const {
        const std::uint32_t room = packets.room_ - packets.size_;
        return packets.add(telpher_vhost_try_dequeue_burst(get(), pair, packets.end(), room));
    }

    // Waits until the driver kicks a virtqueue, at most so long.
    void wait(std::uint32_t queue, std::chrono::nanoseconds at_most) const {
        detail::check(telpher_vhost_wait(get(), queue, at_most.count()));
    }

    // How a virtqueue stands, what it has done, and why nothing is taken from it any more ("" if it is not so).
    telpher_vhost_state state(std::uint32_t queue) const {
        telpher_vhost_state state;
        detail::check(telpher_vhost_state_of(get(), queue, &state));
        return state;
    }
    telpher_vhost_stats stats(std::uint32_t queue) const {
        telpher_vhost_stats stats;
        detail::check(telpher_vhost_stats_of(get(), queue, &stats));
        return stats;
    }
    std::string broken(std::uint32_t queue) const {
        return detail::text([&](char *buffer, std::size_t size) { return telpher_vhost_broken(get(), queue, buffer, size); });
    }

    // The address of a guest that moved here and is to be announced, once.
    std::optional<std::array<std::uint8_t, 6>> announcement() const {
        std::array<std::uint8_t, 6> address;
        return detail::check(telpher_vhost_announcement(get(), address.data())) == 1 ? std::optional(address) : std::nullopt;
    }

    telpher_vhost_port *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_vhost_port> handle_;
};

// Who listens and who connects.
enum class role : std::uint32_t { server = TELPHER_VHOST_SERVER, client = TELPHER_VHOST_CLIENT };

// What a port's frontends talk through, served by a thread of its own. Declared after its port, so that it ends before.
class socket {
  public:
    socket(const port &port, const std::string &path, role role = role::server) {
        telpher_vhost_socket *raw;
        detail::check(telpher_vhost_socket_new(&raw, port.get(), path.c_str(), static_cast<std::uint32_t>(role)));
        handle_.reset(raw);
    }

    // What has become of it, and why the last session ended or the last request was refused ("" if neither was).
    telpher_vhost_socket_state state() const {
        telpher_vhost_socket_state state;
        detail::check(telpher_vhost_socket_state_of(get(), &state));
        return state;
    }
    std::string last() const {
        return detail::text([&](char *buffer, std::size_t size) { return telpher_vhost_socket_last(get(), buffer, size); });
    }

    telpher_vhost_socket *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_vhost_socket> handle_;
};

} // namespace vhost

// ---------------------------------------------------------------------------------------------------- coroutines

class loop;

// What a coroutine that awaits jobs returns: lazily started, owned by whoever has it. Give it to a loop, or co_await it in
// another task.
class [[nodiscard]] task {
  public:
    struct promise_type {
        std::exception_ptr failure;
        std::coroutine_handle<> next = std::noop_coroutine();

        task get_return_object() { return task(std::coroutine_handle<promise_type>::from_promise(*this)); }
        std::suspend_always initial_suspend() noexcept { return {}; }
        struct last {
            bool await_ready() noexcept { return false; }
            std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) noexcept {
                return self.promise().next;
            }
            void await_resume() noexcept {}
        };
        last final_suspend() noexcept { return {}; }
        void return_void() noexcept {}
        void unhandled_exception() noexcept { failure = std::current_exception(); }
    };

    task(task &&other) noexcept : self_(std::exchange(other.self_, nullptr)) {}
    task &operator=(task &&other) noexcept {
        std::swap(self_, other.self_);
        return *this;
    }
    // A task that is dropped half-way destroys its locals; jobs among them are waited for.
    ~task() {
        if (self_)
            self_.destroy();
    }

    bool await_ready() const noexcept { return self_.done(); }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiting) noexcept {
        self_.promise().next = waiting;
        return self_;
    }
    void await_resume() const {
        if (self_.promise().failure)
            std::rethrow_exception(self_.promise().failure);
    }

  private:
    friend class loop;
    explicit task(std::coroutine_handle<promise_type> self) noexcept : self_(self) {}
    std::coroutine_handle<promise_type> self_;
};

// Runs tasks on the calling thread. A mover has no thread of its own, so somebody must look at the jobs: the loop looks at
// those that its tasks await, in turn, and when none of them goes on it waits for one as the mover's option "wait" says.
class loop {
  public:
    loop() = default;
    loop(const loop &) = delete;
    loop &operator=(const loop &) = delete;
    ~loop() {
        // Coroutines that are not the loop's own may outlive it; nobody goes on with them.
        for (waiter *one : waiting_)
            one->in = nullptr;
    }

    // Takes a task; it begins when the loop runs.
    void spawn(task task) { fresh_.push_back(std::move(task)); }

    // Runs until every task has ended. Rethrows the first exception that one ended with, after all have ended.
    void run() {
        const outer now(this);
        while (!fresh_.empty() || !waiting_.empty()) {
            while (!fresh_.empty()) {
                running_.push_back(std::move(fresh_.front()));
                fresh_.pop_front();
                running_.back().self_.resume();
            }
            look();
            sweep();
        }
        if (failure_)
            std::rethrow_exception(std::exchange(failure_, nullptr));
    }

    // The loop that runs on this thread.
    static loop *&current() {
        thread_local loop *current = nullptr;
        return current;
    }

  private:
    friend struct job::awaiter;
    friend struct entry::awaiter;
    friend struct entry::giver;

    // One who waits. It lies in the frame of the coroutine that does, and takes itself out when that is destroyed.
    struct waiter {
        // What for, and how that is looked at and waited for.
        void *what = nullptr;
        int (*done)(void *what) = nullptr;
        int (*wait)(void *what, std::int64_t at_most_ns) = nullptr;
        std::coroutine_handle<> go_on;
        loop *in = nullptr;

        waiter() = default;
        waiter(const waiter &) = delete;
        waiter &operator=(const waiter &) = delete;
        ~waiter() {
            if (in != nullptr)
                std::erase(in->waiting_, this);
        }

        // Waits in the loop that runs here.
        template <auto Done, auto Wait, class T> void begin(T *it, std::coroutine_handle<> coroutine) {
            what = it;
            done = [](void *it_is) { return Done(static_cast<T *>(it_is)); };
            wait = [](void *it_is, std::int64_t at_most_ns) { return Wait(static_cast<T *>(it_is), at_most_ns); };
            go_on = coroutine;
            loop *const here = loop::current();
            if (here == nullptr)
                throw error(-EINVAL, "something is awaited where no telpher::loop runs");
            here->waiting_.push_back(this);
            in = here;
        }
    };

    // A loop may run within a task of another.
    struct outer {
        loop *before;
        explicit outer(loop *self) : before(std::exchange(current(), self)) {}
        ~outer() { current() = before; }
        outer(const outer &) = delete;
        outer &operator=(const outer &) = delete;
    };

    // How long the loop waits for one before it looks at the others again.
    // Source: assumed; some descriptors' time, and little beside what a thread's turn takes.
    static constexpr std::int64_t REST_NS = 20'000;

    // One round: each that waits is looked at once, and goes on if its job has ended; if none has, a rest.
    void look() {
        bool went_on = false;
        for (std::size_t left = waiting_.size(); left > 0 && !waiting_.empty(); left--) {
            waiter *const one = waiting_.front();
            waiting_.pop_front();
            // A failed look ends the wait as well: the awaiter finds it again and throws.
            if (one->done(one->what) == 0) {
                waiting_.push_back(one);
                continue;
            }
            one->in = nullptr;
            one->go_on.resume();
            went_on = true;
        }
        if (!went_on && !waiting_.empty() && fresh_.empty())
            (void)waiting_.front()->wait(waiting_.front()->what, REST_NS);
    }

    // Drops the tasks that have ended, and keeps the first exception.
    void sweep() {
        std::erase_if(running_, [&](task &task) {
            if (!task.self_.done())
                return false;
            if (!failure_)
                failure_ = task.self_.promise().failure;
            return true;
        });
    }

    std::deque<task> fresh_;
    // A deque, because a task must not move while it is being resumed and spawns another.
    std::deque<task> running_;
    std::deque<waiter *> waiting_;
    std::exception_ptr failure_;
};

// Awaits a job within a coroutine that a loop runs.
struct job::awaiter {
    job *waited;
    std::optional<job> own;
    loop::waiter place{};

    job &of() noexcept { return own ? *own : *waited; }

    bool await_ready() { return of().done(); }
    void await_suspend(std::coroutine_handle<> go_on) {
        place.begin<telpher_job_done, telpher_job_wait>(of().get(), go_on);
    }
    telpher_result await_resume() {
        const telpher_result first = success(of().result());
        for (std::uint32_t i = 1; i < of().size(); i++)
            success(of().result(i));
        return first;
    }
};

inline job::awaiter job::operator co_await() & {
    return awaiter{this, std::nullopt};
}
inline job::awaiter job::operator co_await() && {
    return awaiter{nullptr, std::optional<job>(std::move(*this))};
}

// Awaits a block: of a handle that stays, its bytes.
struct entry::awaiter {
    const entry *waited;
    loop::waiter place{};

    bool await_ready() { return waited->done(); }
    void await_suspend(std::coroutine_handle<> go_on) {
        place.begin<telpher_entry_done, telpher_entry_wait>(waited->get(), go_on);
    }
    bytes await_resume() { return waited->location(); }
};

// Of a handle that nobody else has, that handle.
struct entry::giver {
    entry own;
    loop::waiter place{};

    bool await_ready() { return own.done(); }
    void await_suspend(std::coroutine_handle<> go_on) {
        place.begin<telpher_entry_done, telpher_entry_wait>(own.get(), go_on);
    }
    entry await_resume() { return std::move(own); }
};

inline entry::awaiter entry::operator co_await() const & {
    return awaiter{this};
}
inline entry::giver entry::operator co_await() && {
    return giver{std::move(*this)};
}

} // namespace telpher

#endif // TELPHER_HPP
