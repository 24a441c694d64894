// SPDX-License-Identifier: MIT OR Apache-2.0
//
// telpher.hpp: telpher.h for C++20: handles that free themselves, errors as exceptions, spans for ranges, and jobs that
// a coroutine can await. Everything here is inline over the C functions. The rules of telpher.h apply, above all its
// page on what must stay alive between submit and complete.
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
// Errors. If a C function returns a negative errno, telpher::error is thrown: a std::system_error whose code() is that
// errno and whose what() is the message. A difference found is a result, not an error.
//
// Lifetimes. A job's destructor waits for its end, a channel's for all its operations, and a cache's for the copies in
// flight. A queue that does not answer is abandoned after their option limit (30 s). So declare buffers before the job,
// batch, channel or cache that uses them: then they outlive it, also if an exception is thrown or a coroutine is
// destroyed before its end.
//
// Threads. As in telpher.h: device, mover, cache, entry, prefetched and the classes of tier and vhost any thread, any
// time, and so grant and window; job, batch, channel, loop, durable_file and vhost::burst one thread at a time.
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

// A negative errno returned by a C function.
class error : public std::system_error {
  public:
    error(int negative_errno, const std::string &sentence)
        : std::system_error(-negative_errno, std::generic_category(), sentence) {}
};

namespace detail {

// Returns the answer, or throws if it is a negative errno.
inline int check(int answer) {
    if (answer < 0)
        throw error(answer, telpher_last_error());
    return answer;
}

struct closer {
    void operator()(telpher_device *device) const noexcept { telpher_device_close(device); }
    // If an abandoned operation is outstanding, the mover and its handle are leaked rather than freeing memory too
    // early.
    void operator()(telpher_mover *mover) const noexcept { (void)telpher_mover_free(mover); }
    void operator()(telpher_job *job) const noexcept { (void)telpher_job_free(job); }
    void operator()(telpher_batch *batch) const noexcept { telpher_batch_free(batch); }
    void operator()(telpher_channel *channel) const noexcept {
        // Its ranges may go out of scope next, so retry until no device uses them.
        while (telpher_channel_free(channel) == -EBUSY) {
        }
    }
    void operator()(telpher_cache *cache) const noexcept { (void)telpher_cache_free(cache); }
    void operator()(telpher_grant *grant) const noexcept {
        // Its memory may go out of scope next, so retry until no process uses it. After another error a device may
        // still use the memory, which nothing may then release.
        int result;
        while ((result = telpher_grant_free(grant)) == -EBUSY) {
        }
        if (result != 0) {
            std::terminate();
        }
    }
    void operator()(telpher_window *window) const noexcept { telpher_window_free(window); }
    void operator()(telpher_durable *file) const noexcept { telpher_durable_free(file); }
    void operator()(telpher_entry *entry) const noexcept { telpher_entry_free(entry); }
    void operator()(telpher_prefetch *prefetch) const noexcept { telpher_prefetch_free(prefetch); }
    void operator()(telpher_versioned *versioned) const noexcept { (void)telpher_versioned_free(versioned); }
    void operator()(telpher_reading *reading) const noexcept { (void)telpher_reading_end(reading); }
    void operator()(telpher_writing *writing) const noexcept { telpher_writing_end(writing); }
    void operator()(telpher_pool *pool) const noexcept { telpher_pool_free(pool); }
    void operator()(telpher_write_back *block) const noexcept { telpher_write_back_free(block); }
    void operator()(telpher_tier_heap *heap) const noexcept { telpher_tier_heap_free(heap); }
    void operator()(telpher_tier_arena *arena) const noexcept { telpher_tier_arena_free(arena); }
    void operator()(telpher_tier_manager *manager) const noexcept { telpher_tier_manager_free(manager); }
    // Leaked while packets are outstanding, like a mover with abandoned operations.
    void operator()(telpher_vhost_pool *pool) const noexcept { (void)telpher_vhost_pool_free(pool); }
    void operator()(telpher_vhost_dma_queue *dma_queue) const noexcept { telpher_vhost_dma_queue_free(dma_queue); }
    void operator()(telpher_vhost_port *port) const noexcept { telpher_vhost_port_free(port); }
    void operator()(telpher_vhost_socket *socket) const noexcept { telpher_vhost_socket_free(socket); }
    void operator()(telpher_switch *packet_switch) const noexcept { telpher_switch_free(packet_switch); }
};

template <class T> using handle = std::unique_ptr<T, closer>;

// A text that a C function writes like snprintf; it may grow between two calls.
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

// Readable bytes and writable bytes; std::as_bytes and std::as_writable_bytes create them from any span.
using bytes = std::span<const std::byte>;
using writable = std::span<std::byte>;

// A vector, an array or a span of trivially copyable values.
template <class Range>
concept plain = std::ranges::contiguous_range<Range> && std::is_trivially_copyable_v<std::ranges::range_value_t<Range>>;

// The bytes of a range.
template <plain Range> bytes read(const Range &range) {
    return std::as_bytes(std::span(range));
}
template <plain Range> writable write(Range &range) {
    return std::as_writable_bytes(std::span(range));
}

// Operations, like telpher_op_* with spans. Lengths that must agree are checked here.
namespace ops {

inline telpher_op nop() { return telpher_op_nop(); }
inline telpher_op drain() { return telpher_op_drain(); }
inline telpher_op copy(writable dst, bytes src) {
    detail::same(src.size(), dst.size());
    return telpher_op_copy(dst.data(), src.data(), src.size());
}
inline telpher_op copy_durable(writable dst, bytes src) {
    detail::same(src.size(), dst.size());
    return telpher_op_copy_durable(dst.data(), src.data(), src.size());
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
inline telpher_op dix_generate(writable dst, bytes src, telpher_dif dif, telpher_tags tags) {
    return telpher_op_dix_generate(dst.data(), dst.size(), src.data(), src.size(), dif, tags);
}
inline telpher_op crc64(bytes src, std::uint64_t seed = 0) { return telpher_op_crc64(src.data(), src.size(), seed); }
inline telpher_op copy_crc64(writable dst, bytes src, std::uint64_t seed = 0) {
    detail::same(src.size(), dst.size());
    return telpher_op_copy_crc64(dst.data(), src.data(), src.size(), seed);
}
inline telpher_op convert(writable dst, bytes src, telpher_arithmetic arithmetic) {
    return telpher_op_convert(dst.data(), dst.size(), src.data(), src.size(), arithmetic);
}
inline telpher_op reduce(writable dst, bytes a, bytes b, telpher_arithmetic arithmetic) {
    detail::same(a.size(), b.size());
    return telpher_op_reduce(dst.data(), dst.size(), a.data(), b.data(), a.size(), arithmetic);
}
inline telpher_op reduce_dualcast(writable dst, writable dst2, bytes a, bytes b, telpher_arithmetic arithmetic) {
    detail::same(a.size(), b.size());
    detail::same(dst.size(), dst2.size());
    return telpher_op_reduce_dualcast(dst.data(), dst2.data(), dst.size(), a.data(), b.data(), a.size(), arithmetic);
}
// A list has 64-bit offsets, or indexes with a flag TELPHER_LIST_INDEX32 or TELPHER_LIST_INDEX64.
inline telpher_op gather(writable dst, bytes src, bytes list, std::uint32_t block, std::uint32_t flags = 0) {
    return telpher_op_gather(dst.data(), dst.size(), src.data(), src.size(), list.data(), list.size(), block, flags);
}
inline telpher_op gather_reduce(writable dst, bytes src, bytes list, std::uint32_t block, std::uint32_t flags,
                                telpher_arithmetic arithmetic) {
    return telpher_op_gather_reduce(dst.data(), dst.size(), src.data(), src.size(), list.data(), list.size(), block, flags,
                                    arithmetic);
}
inline telpher_op scatter(writable dst, bytes src, bytes list, std::uint32_t block, std::uint32_t flags = 0) {
    return telpher_op_scatter(dst.data(), dst.size(), src.data(), src.size(), list.data(), list.size(), block, flags);
}
inline telpher_op scatter_fill(writable dst, bytes list, std::uint32_t block, std::uint32_t flags, std::uint64_t pattern) {
    return telpher_op_scatter_fill(dst.data(), dst.size(), list.data(), list.size(), block, flags, pattern);
}
inline telpher_op prefetch_pages(bytes src) { return telpher_op_prefetch_pages(src.data(), src.size()); }
inline telpher_op flush(bytes src) { return telpher_op_flush(src.data(), src.size()); }

// The same operation with additional flags of enum telpher_flag.
inline telpher_op with(telpher_op op, std::uint32_t flags) {
    op.flags |= flags;
    return op;
}

} // namespace ops

// A result as a sentence.
inline std::string text(const telpher_result &result) {
    return detail::text([&](char *buffer, std::size_t size) { return telpher_result_text(&result, buffer, size); });
}

// Returns the result, or throws if it is a failure.
inline const telpher_result &success(const telpher_result &result) {
    if (result.status < 0)
        throw error(result.status, text(result));
    return result;
}

// The queues of an opened device. Movable, not copyable. Movers and channels created from it may outlive it.
class device {
  public:
    // Throws if the name or an option is wrong, or the device is not available.
    explicit device(const std::string &name, const std::string &options = "") {
        telpher_device *raw;
        detail::check(telpher_device_open(&raw, name.c_str(), options.c_str()));
        handle_.reset(raw);
    }

    // The number of queues.
    std::uint32_t queues() const { return static_cast<std::uint32_t>(detail::check(telpher_device_queues(get()))); }

    // The properties of a queue. Throws if the index is too large.
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

// An operation or a batch in flight, then its results. Its destructor waits for its end: until then the ranges are
// lent. One thread at a time. `co_await` returns the result of its first operation, and throws if any operation failed;
// it needs a running loop.
class job {
  public:
    // Makes one step of progress; returns true if it has ended.
    bool done() { return detail::check(telpher_job_done(get())) == 1; }

    // Waits until it has ended.
    job &wait() {
        detail::check(telpher_job_wait(get(), -1));
        return *this;
    }

    // Waits until it has ended, for at most at_most; returns true if it has ended.
    bool wait_for(std::chrono::nanoseconds at_most) {
        return detail::check(telpher_job_wait(get(), std::max<std::int64_t>(at_most.count(), 0))) == 1;
    }

    // The number of results; 0 before its end.
    std::uint32_t size() const { return static_cast<std::uint32_t>(detail::check(telpher_job_results(get()))); }

    // The result of operation `index`, failed or not. Throws if the job has not ended or has no such operation.
    telpher_result result(std::uint32_t index = 0) const {
        telpher_result result;
        result.outcome = TELPHER_DONE;
        result.status = 0;
        const int answer = telpher_job_result(get(), index, &result);
        // An error that is not the result's own is an error of the call.
        if (answer < 0 && result.status != answer)
            throw error(answer, telpher_last_error());
        return result;
    }

    // Releases the handle without waiting. No more descriptors are sent to a queue; the ranges stay lent until the
    // mover has nothing outstanding.
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

    // Adds an operation and returns its number, the index of its result.
    std::uint32_t add(const telpher_op &op) {
        return static_cast<std::uint32_t>(detail::check(telpher_batch_add(handle_.get(), &op)));
    }

    // Adds an operation after a fence: it starts when everything before it has succeeded.
    std::uint32_t add_fenced(const telpher_op &op) { return add(ops::with(op, TELPHER_FENCE)); }

    // Submits the list, which is consumed.
    job submit() && {
        telpher_job *raw;
        detail::check(telpher_batch_submit(handle_.release(), &raw));
        return job(raw);
    }

  private:
    detail::handle<telpher_batch> handle_;
};

// Decides which queue or the CPU executes an operation, and executes it. Movable, not copyable; any thread, any time.
class mover {
  public:
    // A mover over the device's queues. Throws for an invalid option, and for a dedicated queue in use.
    explicit mover(const device &device, const std::string &options = "") : mover(device.get(), options) {}

    // A mover that uses the CPU only.
    static mover cpu(const std::string &options = "") { return mover(nullptr, options); }

    // These functions execute the operation and wait; the ranges are lent until they return.
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
    // The offset of the first difference, or nullopt if the ranges are equal.
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
    // Executes any operation. Throws if it fails.
    telpher_result run(const telpher_op &op) const {
        telpher_result result;
        detail::check(telpher_run(get(), &op, &result));
        return result;
    }

    // Starts an operation; the ranges are lent until the job has ended.
    job start(const telpher_op &op) const {
        telpher_job *raw;
        detail::check(telpher_start(get(), &op, &raw));
        return job(raw);
    }

    // The current value of an option.
    std::string option(const std::string &key) const {
        return detail::text([&](char *buffer, std::size_t size) { return telpher_mover_option(get(), key.c_str(), buffer, size); });
    }

    // Abandoned operations whose ranges a device may still use.
    int outstanding() const { return detail::check(telpher_mover_outstanding(get())); }

    // Runs devices without a thread of their own.
    void drive() const { detail::check(telpher_mover_drive(get())); }

    // A descriptor that is readable while jobs have ended that ended() has not reported; of the jobs that are started
    // after the first call. It belongs to the mover.
    int fd() const { return detail::check(telpher_mover_fd(get())); }

    // Writes the handles (job::get) of jobs that have ended to `into`, and returns the part that was written; each job
    // is reported once.
    std::span<telpher_job *> ended(std::span<telpher_job *> into) const {
        if (into.empty())
            return into;
        return into.first(static_cast<std::size_t>(detail::check(telpher_mover_ended(get(), into.data(), into.size()))));
    }

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

// One thread's access to one queue: only construction and destruction block or allocate. Its destructor waits for all
// its operations.
class channel {
  public:
    channel(const device &device, std::uint32_t queue, std::uint32_t capacity, const std::string &options = "") {
        telpher_channel *raw;
        detail::check(telpher_channel_new(&raw, device.get(), queue, capacity, options.c_str()));
        handle_.reset(raw);
    }

    // Prepares an operation and returns its ticket, or nullopt if the channel is full.
    std::optional<std::uint64_t> put(const telpher_op &op) {
        std::uint64_t ticket;
        const int answer = telpher_channel_put(get(), &op, &ticket);
        if (answer == -EAGAIN)
            return std::nullopt;
        detail::check(answer);
        return ticket;
    }

    // Sends the prepared operations; returns how many were sent.
    std::uint32_t submit() { return static_cast<std::uint32_t>(detail::check(telpher_channel_submit(get()))); }

    // Fetches completed operations: returns the part of `room` that was filled.
    std::span<telpher_completion> completed(std::span<telpher_completion> room) {
        const auto max = static_cast<std::uint32_t>(std::min<std::size_t>(room.size(), UINT32_MAX));
        return room.first(static_cast<std::size_t>(detail::check(telpher_channel_completed(get(), room.data(), max))));
    }

    // Operations prepared whose completion was not fetched.
    int pending() const { return detail::check(telpher_channel_pending(get())); }
    // Operations that timed out while the device may still use their ranges.
    int quarantined() const { return detail::check(telpher_channel_quarantined(get())); }

    telpher_channel *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_channel> handle_;
};

// ---------------------------------------------------------------------------------------------------- caches

// Memory of this process that other processes access. The destructor waits until it is revoked. Any thread, any time.
class grant {
  public:
    // Lets other processes read and write the range.
    grant(const mover &mover, writable range) {
        telpher_grant *raw;
        detail::check(telpher_grant_new(&raw, mover.get(), range.data(), range.size()));
        handle_.reset(raw);
    }
    // Lets other processes read the range.
    static grant readable(const mover &mover, bytes range) {
        telpher_grant *raw;
        detail::check(telpher_grant_new_readable(&raw, mover.get(), range.data(), range.size()));
        return grant(raw);
    }

    // The file descriptors to hand over. They are closed with the grant.
    std::vector<std::int32_t> files() const {
        std::vector<std::int32_t> files(2);
        files.resize(static_cast<std::size_t>(detail::check(telpher_grant_files(get(), files.data(), 2))));
        return files;
    }
    // Ends it; throws if an access is still in progress after the timeout.
    void revoke(std::chrono::nanoseconds timeout = std::chrono::seconds(10)) {
        detail::check(telpher_grant_revoke(get(), timeout.count()));
    }

    telpher_grant *get() const noexcept { return handle_.get(); }

  private:
    explicit grant(telpher_grant *raw) : handle_(raw) {}
    detail::handle<telpher_grant> handle_;
};

// Memory that another process has granted; offsets count from its first byte. Any thread, any time.
class window {
  public:
    window(const mover &mover, std::span<const std::int32_t> files) {
        telpher_window *raw;
        detail::check(telpher_window_open(&raw, mover.get(), files.data(), static_cast<std::uint32_t>(files.size())));
        handle_.reset(raw);
    }

    std::uint64_t size() const {
        std::uint64_t size;
        detail::check(telpher_window_size(get(), &size));
        return size;
    }
    void read(std::uint64_t at, writable into) const {
        detail::check(telpher_window_read(get(), at, into.data(), into.size()));
    }
    void write(std::uint64_t at, bytes from) const {
        detail::check(telpher_window_write(get(), at, from.data(), from.size()));
    }
    void fill(std::uint64_t at, std::uint64_t len, std::uint64_t pattern) const {
        detail::check(telpher_window_fill(get(), at, len, pattern));
    }
    // The offset of the first difference from `at` on, or nullopt.
    std::optional<std::uint64_t> compare(std::uint64_t at, bytes with) const {
        std::uint64_t difference = 0;
        const bool differ = detail::check(telpher_window_compare(get(), at, with.data(), with.size(), &difference)) == 1;
        return differ ? std::optional(difference) : std::nullopt;
    }
    std::optional<std::uint64_t> compare_pattern(std::uint64_t at, std::uint64_t len, std::uint64_t pattern) const {
        std::uint64_t difference = 0;
        const bool differ = detail::check(telpher_window_compare_pattern(get(), at, len, pattern, &difference)) == 1;
        return differ ? std::optional(difference) : std::nullopt;
    }

    telpher_window *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_window> handle_;
};

// A file whose bytes survive. One thread at a time.
class durable_file {
  public:
    static durable_file create(const std::string &path, std::uint64_t size) {
        telpher_durable *raw;
        detail::check(telpher_durable_create(&raw, path.c_str(), size));
        return durable_file(raw);
    }
    static durable_file open(const std::string &path) {
        telpher_durable *raw;
        detail::check(telpher_durable_open(&raw, path.c_str()));
        return durable_file(raw);
    }

    // Its bytes, valid as long as the file is open. store changes them.
    bytes content() const & {
        const void *start;
        std::uint64_t size;
        detail::check(telpher_durable_bytes(get(), &start, &size));
        return {static_cast<const std::byte *>(start), static_cast<std::size_t>(size)};
    }
    bytes content() const && = delete;
    // True if the system maps persistent memory directly.
    bool direct() const { return detail::check(telpher_durable_direct(get())) == 1; }
    // Copies bytes to the file; they survive when it returns.
    void store(const mover &mover, std::uint64_t at, bytes from) {
        detail::check(telpher_durable_store(get(), mover.get(), at, from.data(), from.size()));
    }

    telpher_durable *get() const noexcept { return handle_.get(); }

  private:
    explicit durable_file(telpher_durable *raw) : handle_(raw) {}
    detail::handle<telpher_durable> handle_;
};

// Fast memory of one kind, as a cache's tier.
namespace tiers {

// `size` bytes of pages; flags of enum telpher_tier_flag that need no node.
inline telpher_tier pages(std::uint64_t size, std::uint32_t flags = 0) {
    telpher_tier tier{};
    tier.size = size;
    tier.flags = flags;
    return tier;
}

// `size` bytes of pages on one NUMA node; HBM, for example, has a node of its own.
inline telpher_tier pages_on(std::uint32_t node, std::uint64_t size, std::uint32_t flags = 0) {
    telpher_tier tier = pages(size, flags | TELPHER_TIER_ON_NODE);
    tier.node = node;
    return tier;
}

// The memory of a memory resource, at most `most` bytes of it at a time. Without `most`, entries are only evicted when
// the resource throws, so the resource must be bounded. Any thread may use it at any time, so it must be thread-safe,
// such as std::pmr::synchronized_pool_resource. It must outlive the cache and its entries.
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

// The same tier, for the threads of a node (option placement=near).
inline telpher_tier near_to(std::uint32_t node, telpher_tier tier) {
    tier.flags |= TELPHER_TIER_NEAR;
    tier.near_node = node;
    return tier;
}

} // namespace tiers

// Policy functions, where the options are not enough; see telpher_cache_policy. An exception in one ends the program.
struct cache_policy {
    // Returns the number of a block's tier; the node is the calling thread's, -1 if unknown.
    std::function<std::uint32_t(bytes block, std::int32_t node)> place;
    // Returns the value of an unused entry: the lowest is evicted first.
    std::function<std::uint64_t(const telpher_resident &entry)> worth;
};

// A handle to a block of a cache, with or without its copy; copying it creates another handle to the same entry. Any
// thread, any time. `co_await` waits for it in a running loop; it returns the bytes, or for an rvalue handle, the
// handle.
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

    // Its bytes at the moment: in the copy if it is complete, otherwise in the source. Valid as long as the handle, so
    // not callable on an rvalue.
    bytes location() const & noexcept {
        return {static_cast<const std::byte *>(telpher_entry_location(get(), nullptr)), telpher_entry_size(get())};
    }
    bytes location() const && = delete;

    // The bytes as values. Throws if they are not aligned for the type: copies are aligned to 64 bytes, parts of blocks
    // as in the source.
    template <class T>
        requires std::is_trivially_copyable_v<T>
    std::span<const T> as() const & {
        const bytes all = location();
        if (reinterpret_cast<std::uintptr_t>(all.data()) % alignof(T) != 0)
            throw error(-EINVAL, "a block is not aligned to its values");
        return {reinterpret_cast<const T *>(all.data()), all.size() / sizeof(T)};
    }
    template <class T> std::span<const T> as() const && = delete;

    // Returns whether the copy is complete.
    bool fast() const noexcept {
        int fast = 0;
        (void)telpher_entry_location(get(), &fast);
        return fast == 1;
    }

    // Weak wait: makes one step; returns true if there is nothing left to wait for.
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

    // Waits until there is nothing left to wait for, for a limited time; returns true if there is nothing left.
    bool wait_for(std::chrono::nanoseconds at_most) const {
        return detail::check(telpher_entry_wait(get(), std::max<std::int64_t>(at_most.count(), 0))) == 1;
    }

    // Returns whether the block was invalidated since.
    bool stale() const { return detail::check(telpher_entry_stale(get())) == 1; }

    telpher_entry *get() const noexcept { return handle_.get(); }

    struct awaiter;
    struct giver;
    awaiter operator co_await() const &;
    giver operator co_await() &&;

  private:
    friend class cache;
    friend class reading;
    explicit entry(telpher_entry *raw) noexcept : handle_(raw) {}
    detail::handle<telpher_entry> handle_;
};

// A prefetched block. Dropping it has no effect on the prefetch. Movable, not copyable.
class prefetched {
  public:
    // Returns whether the copy is complete; makes one step of progress.
    bool done() const { return detail::check(telpher_prefetch_done(handle_.get())) == 1; }

    // Cancels it; returns true if its copy had not started.
    bool cancel() && { return detail::check(telpher_prefetch_cancel(handle_.release())) == 1; }

  private:
    friend class cache;
    explicit prefetched(telpher_prefetch *raw) noexcept : handle_(raw) {}
    detail::handle<telpher_prefetch> handle_;
};

// Copies of blocks in fast memory, lent to many threads. Movable, not copyable; any thread, any time. Declare blocks
// before it, and call `invalidate` before a block is written or freed: see "caches" in telpher.h.
class cache {
  public:
    // Throws for an invalid option or tier, and if memory cannot be allocated.
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
        // In this order: the functions are destroyed after the cache that calls them.
        handle_ = std::move(other.handle_);
        policy_ = std::move(other.policy_);
        return *this;
    }
    ~cache() = default;

    // Accesses the block; its copy starts if no entry contains it.
    entry access(bytes block) const {
        telpher_entry *raw;
        detail::check(telpher_cache_access(get(), block.data(), block.size(), &raw));
        return entry(raw);
    }

    // Accesses the block in a tier chosen by the caller.
    entry access_in(std::uint32_t tier, bytes block) const {
        telpher_entry *raw;
        detail::check(telpher_cache_access_in(get(), tier, block.data(), block.size(), &raw));
        return entry(raw);
    }

    // Weak access: returns the block's entry if there is one.
    std::optional<entry> peek(bytes block) const {
        telpher_entry *raw;
        if (detail::check(telpher_cache_peek(get(), block.data(), block.size(), &raw)) == 0)
            return std::nullopt;
        return entry(raw);
    }

    // Announces that a block will be accessed; a higher priority is copied sooner.
    prefetched prefetch(bytes block, std::uint8_t priority = 0) const {
        telpher_prefetch *raw;
        detail::check(telpher_cache_prefetch(get(), block.data(), block.size(), priority, &raw));
        return prefetched(raw);
    }

    // Announces that bytes are about to change or to be unmapped; returns how many entries were removed. Afterwards no
    // copy reads them.
    int invalidate(bytes block) const { return detail::check(telpher_cache_invalidate(get(), block.data(), block.size())); }

    // Returns whether a copy would lie on another NUMA node than the block; nullopt if unknown.
    std::optional<bool> apart(bytes block) const {
        const int answer = telpher_cache_apart(get(), block.data(), block.size());
        return answer == -ENODATA ? std::nullopt : std::optional(detail::check(answer) == 1);
    }

    // Removes the unused entries, or all; returns how many.
    int flush() const { return detail::check(telpher_cache_flush(get())); }
    int clear() const { return detail::check(telpher_cache_clear(get())); }

    // Starts copies that may start.
    void drive() const { detail::check(telpher_cache_drive(get())); }

    // The cache's counters and state.
    telpher_stats stats() const {
        telpher_stats stats;
        detail::check(telpher_cache_stats(get(), &stats));
        return stats;
    }

    telpher_cache *get() const noexcept { return handle_.get(); }

  private:
    std::unique_ptr<cache_policy> policy_;
    // Declared after the functions, so that it is destroyed before them.
    detail::handle<telpher_cache> handle_;
};

// Access of a reader to versioned bytes, which do not change meanwhile. Its entries must be destroyed before it: a
// reading whose entries are left keeps writers away for ever. Movable, not copyable; any thread, any time.
class reading {
  public:
    // How often the bytes were written before.
    std::uint64_t version() const {
        std::uint64_t version;
        detail::check(telpher_reading_version(handle_.get(), &version));
        return version;
    }

    // Accesses a block of the bytes. Not of a temporary, which would be destroyed before the entry.
    entry access(std::size_t, std::size_t) const && = delete;
    entry access(std::size_t offset, std::size_t len) const & {
        telpher_entry *raw;
        detail::check(telpher_reading_access(handle_.get(), offset, len, &raw));
        return entry(raw);
    }

  private:
    friend class versioned;
    explicit reading(telpher_reading *raw) noexcept : handle_(raw) {}
    detail::handle<telpher_reading> handle_;
};

// Access of the writer: the bytes have a new version when it is destroyed. Movable, not copyable; one thread at a time.
class writing {
  public:
    // The bytes, to be written as long as this exists.
    writable data() const noexcept { return data_; }

  private:
    friend class versioned;
    writing(telpher_writing *raw, writable data) noexcept : data_(data), handle_(raw) {}
    writable data_;
    detail::handle<telpher_writing> handle_;
};

// Bytes that change: any number of readers or one writer, and no reader has bytes of another version than it is told.
// Declare it after its bytes and its cache. A thread that has a reading or a writing must not begin another one.
// Movable, not copyable; any thread, any time.
class versioned {
  public:
    versioned(const cache &cache, writable data) : data_(data) {
        telpher_versioned *raw;
        detail::check(telpher_versioned_new(&raw, cache.get(), data.data(), data.size()));
        handle_.reset(raw);
    }

    // How often the bytes were written. A writer may be active.
    std::uint64_t version() const {
        std::uint64_t version;
        detail::check(telpher_versioned_version(handle_.get(), &version));
        return version;
    }

    // Waits for a writer.
    reading read() const {
        telpher_reading *raw;
        detail::check(telpher_versioned_read(handle_.get(), -1, &raw));
        return reading(raw);
    }

    // Waits for readers, and for copies in flight.
    writing write() const {
        telpher_writing *raw;
        detail::check(telpher_versioned_write(handle_.get(), -1, &raw));
        return writing(raw, data_);
    }

  private:
    writable data_;
    detail::handle<telpher_versioned> handle_;
};

// Memory from which blocks for writing are lent. Movable, not copyable; any thread, any time.
class pool {
  public:
    explicit pool(const telpher_tier &tier) {
        telpher_pool *raw;
        detail::check(telpher_pool_new(&raw, &tier));
        handle_.reset(raw);
    }

    telpher_pool *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_pool> handle_;
};

// A block that is modified in fast memory and copied back. Bytes that were not synced are lost when it is destroyed.
// Declare it after its home. Movable, not copyable; one thread at a time.
class write_back {
  public:
    write_back(const mover &mover, const pool &pool, writable home) : size_(home.size()) {
        telpher_write_back *raw;
        detail::check(telpher_write_back_fetch(&raw, mover.get(), pool.get(), home.data(), home.size()));
        handle_.reset(raw);
    }

    // The bytes, for reading.
    bytes data() const noexcept { return {static_cast<const std::byte *>(telpher_write_back_bytes(handle_.get())), size_}; }

    // Bytes for writing; the next sync copies their pages back.
    writable write(std::size_t offset, std::size_t len) {
        void *start;
        detail::check(telpher_write_back_write(handle_.get(), offset, len, &start));
        return {static_cast<std::byte *>(start), len};
    }

    // The bytes that a sync has to check.
    std::size_t unsynced() const noexcept { return telpher_write_back_unsynced(handle_.get()); }

    // Updates the home.
    telpher_synced sync(telpher_find find = TELPHER_FIND_WRITTEN) {
        telpher_synced synced;
        detail::check(telpher_write_back_sync(handle_.get(), find, &synced));
        return synced;
    }

  private:
    std::size_t size_;
    detail::handle<telpher_write_back> handle_;
};

// ---------------------------------------------------------------------------------------------------- tiers

// Memory on several tiers; pages move between them while the program runs: see "tiers" in telpher.h.
namespace tier {

// One kind of memory.
struct memory {
    // A name for people; nullopt for its number.
    std::string name{};
    // The most bytes that the heap uses of it; the heap does not limit the home tier.
    std::uint64_t size = 0;
    // Its NUMA node; nullopt lets the system choose.
    std::optional<std::uint32_t> node{};
    // The memory of shared arenas: reserved huge pages, or a device or file at this path.
    bool huge_pages = false;
    std::string path{};
};

// The kind of an arena's memory.
enum class pages : std::uint32_t { small = 0, huge = TELPHER_TIER_ARENA_HUGE_PAGES, shared = TELPHER_TIER_ARENA_SHARED };

// The mechanism by which pages change tiers.
enum class mechanism : std::uint32_t {
    exchange = TELPHER_TIER_EXCHANGE,
    move_pages = TELPHER_TIER_MOVE_PAGES,
    remap = TELPHER_TIER_REMAP,
    other = TELPHER_TIER_OTHER_WAY
};

class heap;

// Zeroed memory of a heap. Movable, not copyable; stays valid when its heap is gone. The program uses its bytes freely.
class arena {
  public:
    // At least `size` bytes, rounded up to 2 MiB.
    arena(const heap &heap, std::size_t size, pages pages = pages::small);

    // Its bytes, at an address that does not change.
    writable bytes() const noexcept {
        std::size_t size = 0;
        void *const start = telpher_tier_arena_memory(get(), &size);
        return {static_cast<std::byte *>(start), size};
    }

    // Its bytes as trivially copyable values, as many as fit. The bytes are zero at first.
    template <class T> std::span<T> as() const noexcept {
        static_assert(std::is_trivially_copyable_v<T>);
        const writable all = bytes();
        return {static_cast<T *>(static_cast<void *>(all.data())), all.size() / sizeof(T)};
    }

    // Discards the whole pages of a part: they read as zeros.
    void discard(std::size_t offset, std::size_t len) const { detail::check(telpher_tier_arena_discard(get(), offset, len)); }

    telpher_tier_arena *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_tier_arena> handle_;
};

// Memory on several tiers, the fastest first. Movable, not copyable.
class heap {
  public:
    // A mover makes the copies. Throws if the options are wrong, or the system refuses what moving pages needs.
    heap(const mover &mover, std::span<const memory> tiers, const std::string &options = "") : heap(mover.get(), tiers, options) {}

    // The CPU makes the copies.
    static heap cpu(std::span<const memory> tiers, const std::string &options = "") { return heap(nullptr, tiers, options); }

    // Moves the pages of a range to a tier, as many as possible.
    telpher_tier_moved migrate(bytes range, std::uint32_t to) const {
        telpher_tier_moved moved;
        detail::check(telpher_tier_migrate(get(), range.data(), range.size(), to, &moved));
        return moved;
    }

    // The number of a range's pages on each tier.
    std::vector<std::uint64_t> residency(bytes range) const {
        std::vector<std::uint64_t> pages(tiers_);
        detail::check(telpher_tier_residency(get(), range.data(), range.size(), pages.data(), tiers_));
        return pages;
    }

    // Adopts memory that the program has mapped itself, and releases it, or a part of it.
    void adopt(writable range) const { detail::check(telpher_tier_adopt(get(), range.data(), range.size())); }
    void release(writable range) const { detail::check(telpher_tier_release(get(), range.data(), range.size())); }

    // Tells a present or later manager what the program knows about a range.
    void hot(bytes range) const { advise(range, TELPHER_TIER_HOT); }
    void cold(bytes range) const { advise(range, TELPHER_TIER_COLD); }
    void pin(bytes range, std::uint32_t to) const { advise(range, TELPHER_TIER_PIN, to); }
    void unpin(bytes range) const { advise(range, TELPHER_TIER_UNPIN); }

    // The mechanism by which its pages change tiers.
    tier::mechanism mechanism() const { return static_cast<tier::mechanism>(detail::check(telpher_tier_mechanism_of(get()))); }

    // The state of a tier, and its name.
    telpher_tier_info info(std::uint32_t tier) const {
        telpher_tier_info info;
        detail::check(telpher_tier_info_of(get(), tier, &info));
        return info;
    }
    std::string name(std::uint32_t tier) const {
        return detail::text([&](char *buffer, std::size_t size) { return telpher_tier_name(get(), tier, buffer, size); });
    }

    // The heap's counters.
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

// Finds hot and cold pages of a heap and moves them, until it is destroyed. Movable, not copyable.
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

// A vhost-user backend: see "virtual machines" in telpher.h. Everything except a burst: any thread, any time.
namespace vhost {

// A packet's bytes, while the caller owns it.
inline writable bytes_of(const telpher_packet &packet) {
    return {static_cast<std::byte *>(packet.data), packet.len};
}

// The text of a drop reason, an index of telpher_vhost_stats::drops; nullptr for an unknown number.
inline const char *drop_text(std::uint32_t reason) {
    return telpher_vhost_drop_text(reason);
}

// Memory for packets. Declare it before everything that owns packets: if packets are outstanding when it is destroyed,
// it is leaked with its memory.
class pool {
  public:
    // A pool with its own memory: the number of buffers, and the longest packet in bytes.
    pool(std::uint32_t buffers, std::uint32_t longest) : pool(buffers, longest, writable()) {}
    // A pool over the caller's memory, at least size_of bytes, which must outlive it.
    pool(std::uint32_t buffers, std::uint32_t longest, writable memory) {
        telpher_vhost_pool *raw;
        detail::check(telpher_vhost_pool_new(&raw, buffers, longest, memory.data(), memory.size()));
        handle_.reset(raw);
    }

    // The memory in bytes that a pool needs; 0 if no such pool is possible.
    static std::size_t size_of(std::uint32_t buffers, std::uint32_t longest) { return telpher_vhost_pool_size(buffers, longest); }

    // The number of free buffers.
    std::uint32_t available() const { return static_cast<std::uint32_t>(detail::check(telpher_vhost_pool_available(get()))); }

    // Frees it now. Throws if packets of it are outstanding; then it stays valid.
    void close() {
        detail::check(telpher_vhost_pool_free(get()));
        (void)handle_.release();
    }

    telpher_vhost_pool *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_vhost_pool> handle_;
};

// Packets owned by the caller, up to a fixed number; the destructor returns the rest to the pool. Movable, not
// copyable. One thread at a time. Allocates only in its constructor.
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

    // The number of packets, and the capacity.
    std::uint32_t size() const noexcept { return size_; }
    std::uint32_t room() const noexcept { return room_; }
    bool empty() const noexcept { return size_ == 0; }

    telpher_packet *begin() noexcept { return packets_.get(); }
    telpher_packet *end() noexcept { return packets_.get() + size_; }
    const telpher_packet *begin() const noexcept { return packets_.get(); }
    const telpher_packet *end() const noexcept { return packets_.get() + size_; }
    telpher_packet &operator[](std::uint32_t index) noexcept { return packets_[index]; }
    const telpher_packet &operator[](std::uint32_t index) const noexcept { return packets_[index]; }

    // Takes empty packets from the pool: at most `wanted`, as many as are free and fit; returns how many.
    std::uint32_t alloc(std::uint32_t most = UINT32_MAX) {
        const std::uint32_t wanted = std::min(most, room_ - size_);
        return add(telpher_vhost_alloc_burst(pool_, packets_.get() + size_, wanted));
    }

    // Returns all packets to the pool. Skips packets that were returned with the C functions.
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

// One queue of a device with a limit of copies in flight, shared by any number of virtqueues.
class dma_queue {
  public:
    dma_queue(const device &device, std::uint32_t queue, std::uint32_t room) {
        telpher_vhost_dma_queue *raw;
        detail::check(telpher_vhost_dma_queue_new(&raw, device.get(), queue, room));
        handle_.reset(raw);
    }

    // The DMA queue's counters.
    telpher_vhost_dma_queue_stats stats() const {
        telpher_vhost_dma_queue_stats stats;
        detail::check(telpher_vhost_dma_queue_stats_of(get(), &stats));
        return stats;
    }

    telpher_vhost_dma_queue *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_vhost_dma_queue> handle_;
};

// The options of one virtqueue. Without DMA queues the polling thread makes all copies.
struct queue {
    // The DMA queues for its copies; a port keeps using them after these objects are destroyed.
    std::vector<const dma_queue *> dma_queues{};
    // Packets of at least this many bytes use a DMA queue.
    std::uint32_t device_from = 0;
    // The most packets in flight; 0 means 1024.
    std::uint32_t in_flight = 0;
};

// The virtqueues of one frontend at a time.
class port {
  public:
    // queues: the options of each virtqueue, by its number; the last entry applies to all further ones.
    explicit port(const pool &pool, std::span<const queue> queues = {}, const std::string &options = "") {
        std::vector<std::vector<telpher_vhost_dma_queue *>> dma_queues;
        std::vector<telpher_vhost_queue> raw_queues;
        for (const queue &each : queues) {
            auto &own = dma_queues.emplace_back();
            for (const dma_queue *one : each.dma_queues)
                own.push_back(one != nullptr ? one->get() : nullptr);
            telpher_vhost_queue raw{};
            raw.dma_queues = own.data();
            raw.dma_queue_count = static_cast<std::uint32_t>(own.size());
            raw.device_from = each.device_from;
            raw.in_flight = each.in_flight;
            raw_queues.push_back(raw);
        }
        telpher_vhost_port *raw;
        const auto count = static_cast<std::uint32_t>(raw_queues.size());
        detail::check(telpher_vhost_port_new(&raw, pool.get(), raw_queues.data(), count, options.c_str()));
        handle_.reset(raw);
    }
    // The same options for all virtqueues.
    port(const pool &pool, const queue &queue, const std::string &options = "") : port(pool, std::span(&queue, 1), options) {}

    // Starts to copy packets to the guest; taken packets leave the burst, from its first on. Returns how many.
    std::uint32_t submit_enqueue_burst(burst &packets, std::uint32_t pair = 0) const {
        const int answer = telpher_vhost_submit_enqueue_burst(get(), pair, packets.begin(), packets.size_);
        const auto taken = static_cast<std::uint32_t>(detail::check(answer));
        std::copy(packets.begin() + taken, packets.end(), packets.begin());
        packets.size_ -= taken;
        return taken;
    }

    // Shows the guest completed packets, and appends packets that it has received to a burst, as many as fit. Returns
    // how many.
    std::uint32_t poll_enqueue_completed(burst &done, std::uint32_t pair = 0) const {
        return done.add(telpher_vhost_poll_enqueue_completed(get(), pair, done.end(), done.room_ - done.size_));
    }
    // The same, but the packets return to the pool.
    std::uint32_t poll_enqueue_completed(std::uint32_t pair = 0) const {
        return static_cast<std::uint32_t>(detail::check(telpher_vhost_poll_enqueue_completed(get(), pair, nullptr, 0)));
    }

    // Appends packets that the guest has sent to a burst, as many as fit. Returns how many.
    std::uint32_t try_dequeue_burst(burst &packets, std::uint32_t pair = 0) const {
        const std::uint32_t room = packets.room_ - packets.size_;
        return packets.add(telpher_vhost_try_dequeue_burst(get(), pair, packets.end(), room));
    }

    // Waits until the driver kicks a virtqueue, at most for the given time.
    void wait(std::uint32_t queue, std::chrono::nanoseconds at_most) const {
        detail::check(telpher_vhost_wait(get(), queue, at_most.count()));
    }

    // A virtqueue's state, its counters, and why nothing is taken from it any more ("" if it is intact).
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

    // The MAC address of a guest that migrated here and is to be announced, once.
    std::optional<std::array<std::uint8_t, 6>> announcement() const {
        std::array<std::uint8_t, 6> address;
        return detail::check(telpher_vhost_announcement(get(), address.data())) == 1 ? std::optional(address) : std::nullopt;
    }

    telpher_vhost_port *get() const noexcept { return handle_.get(); }

  private:
    detail::handle<telpher_vhost_port> handle_;
};

// Which side listens and which connects.
enum class role : std::uint32_t { server = TELPHER_VHOST_SERVER, client = TELPHER_VHOST_CLIENT };

// The socket of a port, served by a thread of its own. Declare it after its port, so that it is destroyed first.
class socket {
  public:
    socket(const port &port, const std::string &path, role role = role::server) {
        telpher_vhost_socket *raw;
        detail::check(telpher_vhost_socket_new(&raw, port.get(), path.c_str(), static_cast<std::uint32_t>(role)));
        handle_.reset(raw);
    }

    // Its state, and why the last session ended or the last request was refused ("" if neither happened).
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

// ---------------------------------------------------------------------------------------------------- the switch

// One port of a switch; see telpher_switch_port.
struct switch_port {
    std::string path;
    telpher_switch_kind kind = TELPHER_SWITCH_SERVER;
    // The most queue pairs of a socket's frontend; 0 means 1.
    std::uint32_t pairs = 0;
    // A file for the port's packets in pcap format; "" for none.
    std::string capture{};
};

// A packet switch between virtual machines, with threads of its own. The constructor starts it, the destructor stops it.
class packet_switch {
  public:
    // Packets are copied by the device's queues, which the switch keeps after the device is closed.
    packet_switch(const device &device, std::span<const switch_port> ports, const std::string &options = "")
        : packet_switch(device.get(), ports, options) {}
    // Packets are copied by the CPU.
    explicit packet_switch(std::span<const switch_port> ports, const std::string &options = "")
        : packet_switch(static_cast<const telpher_device *>(nullptr), ports, options) {}

    // Stops forwarding and completes the captures; a second call does nothing. Throws if a capture is not complete.
    void stop() { detail::check(telpher_switch_stop(get())); }

    // The counters of a port, and of a virtqueue of a port: the guest receives on 2 * pair, and transmits on 2 * pair + 1.
    telpher_switch_stats stats(std::uint32_t port) const {
        telpher_switch_stats stats;
        detail::check(telpher_switch_stats_of(get(), port, &stats));
        return stats;
    }
    telpher_vhost_stats queue_stats(std::uint32_t port, std::uint32_t queue) const {
        telpher_vhost_stats stats;
        detail::check(telpher_switch_queue_stats_of(get(), port, queue, &stats));
        return stats;
    }

    // The state of a port's socket; throws if the port is an interface.
    telpher_vhost_socket_state socket_state(std::uint32_t port) const {
        telpher_vhost_socket_state state;
        detail::check(telpher_switch_socket_state_of(get(), port, &state));
        return state;
    }

    telpher_switch *get() const noexcept { return handle_.get(); }

  private:
    packet_switch(const telpher_device *device, std::span<const switch_port> ports, const std::string &options) {
        std::vector<telpher_switch_port> raw_ports;
        for (const switch_port &port : ports) {
            telpher_switch_port raw{};
            raw.path = port.path.c_str();
            raw.capture = port.capture.empty() ? nullptr : port.capture.c_str();
            raw.kind = static_cast<std::uint32_t>(port.kind);
            raw.pairs = port.pairs;
            raw_ports.push_back(raw);
        }
        telpher_switch *raw;
        const auto count = static_cast<std::uint32_t>(raw_ports.size());
        detail::check(telpher_switch_new(&raw, device, raw_ports.data(), count, options.c_str()));
        handle_.reset(raw);
    }
    detail::handle<telpher_switch> handle_;
};

// ---------------------------------------------------------------------------------------------------- coroutines

class loop;

// The return type of a coroutine that awaits jobs: lazily started, owned by its holder. Pass it to a loop, or co_await
// it in another task.
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
    // Destroying an unfinished task destroys its locals; the destructors of jobs among them wait.
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

// Runs tasks on the calling thread. A mover has no thread of its own, so the loop polls the jobs that its tasks await,
// in turn. If none makes progress, it waits for one in the manner of the mover's option "wait".
class loop {
  public:
    loop() = default;
    loop(const loop &) = delete;
    loop &operator=(const loop &) = delete;
    ~loop() {
        // Coroutines that do not belong to the loop may outlive it; they are not resumed.
        for (waiter *one : waiting_)
            one->in = nullptr;
    }

    // Takes a task; it starts when the loop runs.
    void spawn(task task) { fresh_.push_back(std::move(task)); }

    // Runs until every task has ended. Then rethrows the first exception that ended a task.
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

    // A suspended coroutine. It lies in the coroutine's frame, and removes itself when the frame is destroyed.
    struct waiter {
        // What it awaits, and how to poll and wait for that.
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

        // Suspends in the loop that runs on this thread.
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

    // A loop may run inside a task of another loop.
    struct outer {
        loop *before;
        explicit outer(loop *self) : before(std::exchange(current(), self)) {}
        ~outer() { current() = before; }
        outer(const outer &) = delete;
        outer &operator=(const outer &) = delete;
    };

    // How long the loop waits for one job before it polls the others again. Source: assumed; the time of some
    // descriptors, and little compared with a thread's time slice.
    static constexpr std::int64_t REST_NS = 20'000;

    // One round: polls every awaited job once and resumes the coroutine if it has ended; if none has, rests.
    void look() {
        bool went_on = false;
        for (std::size_t left = waiting_.size(); left > 0 && !waiting_.empty(); left--) {
            waiter *const one = waiting_.front();
            waiting_.pop_front();
            // A failed poll ends the wait as well: the awaiter repeats it and throws.
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

    // Removes tasks that have ended, and keeps the first exception.
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

// Awaits a job in a coroutine that a loop runs.
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

// Awaits a block: for an lvalue handle, returns its bytes.
struct entry::awaiter {
    const entry *waited;
    loop::waiter place{};

    bool await_ready() { return waited->done(); }
    void await_suspend(std::coroutine_handle<> go_on) {
        place.begin<telpher_entry_done, telpher_entry_wait>(waited->get(), go_on);
    }
    bytes await_resume() { return waited->location(); }
};

// For an rvalue handle, returns that handle.
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
