// SPDX-License-Identifier: MIT OR Apache-2.0
//
// describe.hpp: an operation and its arguments as a checked descriptor. Internal.
#ifndef DML_HL_DETAIL_DESCRIBE_HPP
#define DML_HL_DETAIL_DESCRIBE_HPP

#include <dml/detail/telpher.h>
#include <dml/hl/data_view.hpp>
#include <dml/hl/detail/utils.hpp>
#include <dml/hl/operations.hpp>

#include <cstdint>

// Each function checks the arguments without a device, and fills in the descriptor. It is unspecified unless the
// status is ok.
namespace dml::detail {

using descriptor = telpher_dml_descriptor;

[[nodiscard]] inline status_code validate(const descriptor &made) noexcept {
    return validation_status_code(telpher_dml_validate(&made, 0));
}

// Without the fence: a device refuses it outside of a batch.
[[nodiscard]] inline status_code describe(descriptor &made, nop_operation) noexcept {
    telpher_dml_make_nop(&made, 0);
    return validate(made);
}

[[nodiscard]] inline status_code move(descriptor &made, flags given, const_data_view src, data_view dst) noexcept {
    if (src.size() != dst.size()) {
        return status_code::inconsistent_size;
    }
    telpher_dml_make_mem_move(&made, given.bits(), src.data(), dst.data(), src.size());
    return validate(made);
}

[[nodiscard]] inline status_code describe(descriptor &made, mem_move_operation operation, const_data_view src,
                                          data_view dst) noexcept {
    return move(made, operation.get_flags(), src, dst);
}

[[nodiscard]] inline status_code describe(descriptor &made, mem_copy_operation operation, const_data_view src,
                                          data_view dst) noexcept {
    return move(made, operation.get_flags(), src, dst);
}

[[nodiscard]] inline status_code describe(descriptor &made, fill_operation operation, std::uint64_t pattern,
                                          data_view dst) noexcept {
    telpher_dml_make_fill(&made, operation.get_flags().bits(), pattern, dst.data(), dst.size());
    return validate(made);
}

[[nodiscard]] inline status_code describe(descriptor &made, dualcast_operation operation, const_data_view src,
                                          data_view dst1, data_view dst2) noexcept {
    if (src.size() != dst1.size() || src.size() != dst2.size()) {
        return status_code::inconsistent_size;
    }
    telpher_dml_make_dualcast(&made, operation.get_flags().bits(), src.data(), dst1.data(), dst2.data(), src.size());
    return validate(made);
}

[[nodiscard]] inline status_code describe(descriptor &made, compare_operation operation, const_data_view src1,
                                          const_data_view src2) noexcept {
    if (src1.size() != src2.size()) {
        return status_code::inconsistent_size;
    }
    telpher_dml_make_compare(&made, operation.get_flags().bits(), src1.data(), src2.data(), src1.size(),
                             operation.get_expected_result());
    return validate(made);
}

[[nodiscard]] inline status_code describe(descriptor &made, compare_pattern_operation operation, std::uint64_t pattern,
                                          const_data_view src) noexcept {
    telpher_dml_make_compare_pattern(&made, operation.get_flags().bits(), pattern, src.data(), src.size(),
                                     operation.get_expected_result());
    return validate(made);
}

[[nodiscard]] inline status_code describe(descriptor &made, create_delta_operation operation, const_data_view src1,
                                          const_data_view src2, data_view delta) noexcept {
    if (src1.size() != src2.size()) {
        return status_code::inconsistent_size;
    }
    telpher_dml_make_create_delta(&made, operation.get_flags().bits(), src1.data(), src2.data(), src1.size(),
                                  delta.data(), delta.size(), operation.get_expected_result());
    return validate(made);
}

[[nodiscard]] inline status_code describe(descriptor &made, apply_delta_operation operation, const_data_view delta,
                                          data_view dst, const create_delta_result &created) noexcept {
    if (created.result != comparison_result::not_equal) {
        return status_code::delta_delta_empty;
    }
    telpher_dml_make_apply_delta(&made, operation.get_flags().bits(), delta.data(), created.delta_record_size,
                                 dst.data(), dst.size());
    const status_code status = validate(made);
    // The record would be read past its end.
    if (status == status_code::ok && created.delta_record_size > delta.size()) {
        return status_code::inconsistent_size;
    }
    return status;
}

[[nodiscard]] inline status_code describe(descriptor &made, crc_operation operation, const_data_view src,
                                          std::uint32_t seed) noexcept {
    telpher_dml_make_crc(&made, operation.get_flags().bits(), src.data(), src.size(), seed);
    return validate(made);
}

[[nodiscard]] inline status_code describe(descriptor &made, copy_crc_operation operation, const_data_view src,
                                          data_view dst, std::uint32_t seed) noexcept {
    if (src.size() != dst.size()) {
        return status_code::inconsistent_size;
    }
    telpher_dml_make_copy_crc(&made, operation.get_flags().bits(), src.data(), dst.data(), src.size(), seed);
    return validate(made);
}

[[nodiscard]] inline status_code describe(descriptor &made, cache_flush_operation operation, data_view dst) noexcept {
    telpher_dml_make_cache_flush(&made, operation.get_flags().bits(), dst.data(), dst.size());
    return validate(made);
}

} // namespace dml::detail

#endif
