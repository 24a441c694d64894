// SPDX-License-Identifier: MIT OR Apache-2.0
//
// make_result.hpp: the result of an operation, from its completion record. Internal.
#ifndef DML_HL_DETAIL_MAKE_RESULT_HPP
#define DML_HL_DETAIL_MAKE_RESULT_HPP

#include <dml/detail/telpher.h>
#include <dml/hl/detail/utils.hpp>
#include <dml/hl/result.hpp>

#include <type_traits>

namespace dml::detail {

template <typename result_t> [[nodiscard]] result_t make_result(const telpher_dml_record &record) noexcept {
    result_t result{};
    result.status = record_status_code(telpher_dml_get_status(&record));
    const bool partial = result.status == status_code::partial_completion;
    if constexpr (std::is_same_v<result_t, compare_result>) {
        result.result = static_cast<comparison_result>(telpher_dml_get_result(&record));
        // Some devices count the compared bytes if there is no difference; then there is no position of one.
        if (partial || result.result != comparison_result::equal) {
            result.mismatch = telpher_dml_get_bytes_completed(&record);
        }
    } else if constexpr (std::is_same_v<result_t, create_delta_result>) {
        result.result = static_cast<comparison_result>(telpher_dml_get_result(&record));
        result.delta_record_size = telpher_dml_get_delta_record_size(&record);
        if (partial || result.result == comparison_result::overflow) {
            result.bytes_completed = telpher_dml_get_bytes_completed(&record);
        }
    } else if constexpr (std::is_same_v<result_t, crc_result>) {
        result.crc_value = telpher_dml_get_crc_value(&record);
    } else if constexpr (std::is_same_v<result_t, batch_result>) {
        result.operations_completed = telpher_dml_get_bytes_completed(&record);
    }
    return result;
}

} // namespace dml::detail

#endif
