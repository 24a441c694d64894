// SPDX-License-Identifier: MIT OR Apache-2.0
//
// submit.hpp: dml::submit for every operation. Internal.
#ifndef DML_HL_DETAIL_SUBMIT_HPP
#define DML_HL_DETAIL_SUBMIT_HPP

#include <dml/detail/telpher.h>
#include <dml/hl/detail/describe.hpp>
#include <dml/hl/detail/utils.hpp>
#include <dml/hl/handler.hpp>
#include <dml/hl/sequence.hpp>

#include <cstdint>
#include <utility>

namespace dml::detail {

// Not noexcept: the allocator may throw.
template <typename execution_path, typename operation_t, typename execution_interface_t, typename... args_t>
[[nodiscard]] auto submit(const execution_interface_t &executor, std::uint32_t numa_id, operation_t operation,
                          const args_t &...args) {
    using allocator_t = typename execution_interface_t::allocator_type;
    descriptor made;
    status_code status = describe(made, operation, args...);
    if (status != status_code::ok) {
        return handler_maker::refused<operation_t, allocator_t>(status);
    }
    const allocator_t allocator = executor.get_allocator();
    task<allocator_t> started(allocator);
    started.get()->descriptor = made;
    const std::uint32_t path = execution_path::execution_path::value;
    status = submission_status_code(telpher_dml_submit(started.get(), path, numa_id));
    if (status != status_code::ok) {
        return handler_maker::refused<operation_t, allocator_t>(status);
    }
    return handler<operation_t, allocator_t>(std::move(started), allocator);
}

} // namespace dml::detail

#endif
