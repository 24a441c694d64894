// SPDX-License-Identifier: MIT OR Apache-2.0
//
// utils.hpp: the statuses of libdml as status codes. Internal.
#ifndef DML_HL_DETAIL_UTILS_HPP
#define DML_HL_DETAIL_UTILS_HPP

#include <dml/detail/telpher.h>
#include <dml/hl/status_code.hpp>

#include <cstdint>
#include <limits>

namespace dml::detail {

// Any NUMA node.
inline constexpr std::uint32_t any_node = std::numeric_limits<std::uint32_t>::max();
static_assert(any_node == TELPHER_DML_ANY_NODE);

// The answer of telpher_dml_validate.
[[nodiscard]] inline status_code validation_status_code(std::uint32_t status) noexcept {
    switch (status) {
    case 0:
        return status_code::ok;
    case 4:
        return status_code::nullptr_error;
    case 13:
        return status_code::unsupported_operation;
    case 15: // the size of the data
    case 21: // the same of a delta operation
        return status_code::bad_size;
    case 17:
        return status_code::delta_bad_size;
    case 18:
        return status_code::buffers_overlapping;
    case 19:
        return status_code::dualcast_bad_padding;
    case 20:
        return status_code::bad_alignment;
    case 29:
        return status_code::bad_length;
    default:
        return status_code::error;
    }
}

// The answer of telpher_dml_submit.
[[nodiscard]] inline status_code submission_status_code(std::uint32_t status) noexcept {
    switch (status) {
    case 0:
        return status_code::ok;
    case 13:
        return status_code::unsupported_operation;
    case 15:
        return status_code::bad_size;
    case 102:
        return status_code::queue_busy;
    default:
        return status_code::error;
    }
}

// The status in a completion record.
[[nodiscard]] inline status_code record_status_code(std::uint8_t status) noexcept {
    switch (status) {
    case TELPHER_DML_RECORD_SUCCESS:
        return status_code::ok;
    case TELPHER_DML_RECORD_FALSE_PREDICATE:
        return status_code::false_predicate;
    case TELPHER_DML_RECORD_PAGE_FAULT:
        return status_code::partial_completion;
    case TELPHER_DML_RECORD_INVALID_FLAGS:
        return status_code::config_error;
    case TELPHER_DML_RECORD_TRANSFER_SIZE:
        return status_code::bad_size;
    default:
        return status_code::error;
    }
}

} // namespace dml::detail

#endif
