// SPDX-License-Identifier: MIT OR Apache-2.0
//
// execution_path.hpp: what executes an operation. The first template argument of dml::execute and dml::submit.
#ifndef DML_HL_EXECUTION_PATH_HPP
#define DML_HL_EXECUTION_PATH_HPP

#include <dml/detail/telpher.h>
#include <dml/hl/types.hpp>

#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

namespace dml {

namespace detail {

// A path as libdml numbers it.
template <std::uint32_t path> struct path_number {
    static constexpr std::uint32_t value = path;
};

// Calls a task on the calling thread.
struct inline_spawner {
    template <typename task_t> decltype(auto) operator()(task_t &&task) const noexcept(noexcept(task())) {
        return task();
    }
};

} // namespace detail

// The CPU.
struct software {
    // Calls a task on a thread of its own. dml::submit does not use it: the CPU works before submit returns.
    struct default_thread_spawner {
        template <typename task_t> void operator()(task_t &&task) const {
            std::thread(std::forward<task_t>(task)).detach();
        }
    };

    using default_allocator = std::allocator<byte_t>;
    using execution_path = detail::path_number<TELPHER_DML_SOFTWARE>;
};

// A queue of a device.
struct hardware {
    using default_thread_spawner = detail::inline_spawner;
    using default_allocator = std::allocator<byte_t>;
    using execution_path = detail::path_number<TELPHER_DML_HARDWARE>;
};

// A queue of a device if one takes the operation, otherwise the CPU. After a page fault the CPU executes the rest.
struct automatic {
    using default_thread_spawner = detail::inline_spawner;
    using default_allocator = std::allocator<byte_t>;
    using execution_path = detail::path_number<TELPHER_DML_AUTOMATIC>;
};

} // namespace dml

#endif
