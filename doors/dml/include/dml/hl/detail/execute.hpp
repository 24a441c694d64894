// SPDX-License-Identifier: MIT OR Apache-2.0
//
// execute.hpp: dml::execute for every operation. Internal.
#ifndef DML_HL_DETAIL_EXECUTE_HPP
#define DML_HL_DETAIL_EXECUTE_HPP

#include <dml/detail/telpher.h>
#include <dml/hl/detail/describe.hpp>
#include <dml/hl/detail/make_result.hpp>
#include <dml/hl/detail/utils.hpp>
#include <dml/hl/sequence.hpp>

#include <cstdint>

namespace dml::detail {

template <typename execution_path, typename operation_t, typename... args_t>
[[nodiscard]] auto execute(std::uint32_t numa_id, operation_t operation, const args_t &...args) noexcept {
    using result_t = typename operation_t::result_type;
    result_t refused{};
    telpher_dml_task task;
    telpher_dml_init(&task);
    refused.status = describe(task.descriptor, operation, args...);
    if (refused.status != status_code::ok) {
        return refused;
    }
    const std::uint32_t path = execution_path::execution_path::value;
    refused.status = submission_status_code(telpher_dml_submit(&task, path, numa_id));
    if (refused.status != status_code::ok) {
        return refused;
    }
    telpher_dml_release(&task);
    return make_result<result_t>(task.record);
}

} // namespace dml::detail

#endif
