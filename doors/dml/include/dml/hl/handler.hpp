// SPDX-License-Identifier: MIT OR Apache-2.0
//
// handler.hpp: an operation that dml::submit started.
#ifndef DML_HL_HANDLER_HPP
#define DML_HL_HANDLER_HPP

#include <dml/detail/telpher.h>
#include <dml/hl/detail/buffer.hpp>
#include <dml/hl/detail/make_result.hpp>
#include <dml/hl/status_code.hpp>

#include <memory>
#include <utility>

namespace dml {

template <typename operation_t, typename allocator_t> class handler;

namespace detail {

// A task of libdml in memory of an allocator. Its destructor waits until no device accesses the task any longer.
template <typename allocator_t> class task {
  public:
    task() noexcept = default;

    // Throws what the allocator throws.
    explicit task(const allocator_t &allocator) : memory_(sizeof(telpher_dml_task), allocator) {
        telpher_dml_init(get());
    }

    task(task &&) noexcept = default;

    task &operator=(task &&other) noexcept {
        if (this != &other) {
            release();
            memory_ = std::move(other.memory_);
        }
        return *this;
    }

    ~task() { release(); }

    // Null if there is none.
    [[nodiscard]] telpher_dml_task *get() const noexcept {
        return reinterpret_cast<telpher_dml_task *>(memory_.data());
    }

  private:
    void release() noexcept {
        if (get() != nullptr) {
            telpher_dml_release(get());
        }
    }

    buffer<allocator_t> memory_;
};

// Makes handlers. Only dml::submit does.
struct handler_maker {
    template <typename operation_t, typename allocator_t>
    [[nodiscard]] static handler<operation_t, allocator_t> refused(status_code status) noexcept {
        handler<operation_t, allocator_t> made;
        made.status_ = status;
        return made;
    }
};

} // namespace detail

// An operation of type `operation_t`, whose state is in memory of an `allocator_t`. It can be moved, not copied. One
// thread at a time uses it. Its destructor waits for the end of the operation: the views' memory must live at least
// as long.
template <typename operation_t, typename allocator_t> class handler {
  public:
    using result_type = typename operation_t::result_type;

    // A handler without an operation; get() returns the status `error`.
    handler() noexcept = default;

    // Takes over a submitted task.
    explicit handler(detail::task<allocator_t> &&task, const allocator_t & = allocator_t()) noexcept
        : task_(std::move(task)), status_(status_code::ok) {}

    handler(handler &&other) noexcept
        : task_(std::move(other.task_)), status_(std::exchange(other.status_, status_code::error)) {}

    handler &operator=(handler &&other) noexcept {
        if (this != &other) {
            task_ = std::move(other.task_);
            status_ = std::exchange(other.status_, status_code::error);
        }
        return *this;
    }

    // Whether the operation was submitted; if not, get() returns the reason as a status.
    [[nodiscard]] bool valid() const noexcept { return status_ == status_code::ok; }

    // Whether get() would return at once. On the automatic path the call may execute the rest of an operation that a
    // page fault ended.
    [[nodiscard]] bool is_finished() noexcept { return !valid() || telpher_dml_finished(task_.get()) != 0; }

    // Waits for the end of the operation. Can be called again, with the same result.
    result_type get() noexcept {
        if (!valid()) {
            result_type result{};
            result.status = status_;
            return result;
        }
        telpher_dml_wait(task_.get(), 0);
        return detail::make_result<result_type>(task_.get()->record);
    }

  private:
    friend struct detail::handler_maker;

    detail::task<allocator_t> task_;
    status_code status_{status_code::error};
};

} // namespace dml

#endif
