// SPDX-License-Identifier: MIT OR Apache-2.0
//
// execution_interface.hpp: where dml::submit takes memory from.
#ifndef DML_HL_EXECUTION_INTERFACE_HPP
#define DML_HL_EXECUTION_INTERFACE_HPP

#include <dml/hl/handler.hpp>

#include <utility>

namespace dml {

// An executor and an allocator for dml::submit. The handler's state is in memory of the allocator, whose exceptions
// leave dml::submit. The executor is for programs that call execute() themselves; dml::submit does not: devices work
// by themselves, and the CPU works before submit returns.
//
//     auto interface = dml::execution_interface([](auto &&task) { task(); }, my_allocator);
//     auto handler = dml::submit<dml::hardware>(dml::mem_move, src, dst, interface);
template <typename executor_t, typename allocator_t> class execution_interface {
  public:
    using allocator_type = allocator_t;

    explicit execution_interface(executor_t executor = executor_t(), allocator_t allocator = allocator_t())
        : executor_(std::move(executor)), allocator_(std::move(allocator)) {}

    // Calls the executor with a task, and returns what it returns.
    template <typename task_t>
    auto execute(task_t &&task) const
        noexcept(noexcept(std::declval<const executor_t &>()(std::forward<task_t>(task)))) {
        return executor_(std::forward<task_t>(task));
    }

    template <typename operation_t, typename task_t> [[nodiscard]] auto make_handler(task_t &&task) const {
        return handler<operation_t, allocator_t>(std::forward<task_t>(task), allocator_);
    }

    [[nodiscard]] allocator_t get_allocator() const noexcept { return allocator_; }

  private:
    executor_t executor_;
    allocator_t allocator_;
};

// What dml::submit uses on a path if it is not told otherwise.
template <typename execution_path>
using default_execution_interface = execution_interface<typename execution_path::default_thread_spawner,
                                                        typename execution_path::default_allocator>;

} // namespace dml

#endif
