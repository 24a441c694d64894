// SPDX-License-Identifier: MIT OR Apache-2.0
//
// result.hpp: what each operation returns. The fields after `status` count if the status is ok or false_predicate.
#ifndef DML_HL_RESULT_HPP
#define DML_HL_RESULT_HPP

#include <dml/hl/status_code.hpp>
#include <dml/hl/types.hpp>

#include <cstdint>

namespace dml {

// What a comparison found.
enum class comparison_result : std::uint8_t {
    equal = 0,
    not_equal = 1,
    overflow = 2 // create_delta: the differences do not fit into the delta record
};

struct nop_result {
    status_code status{status_code::error};
};

struct mem_move_result {
    status_code status{status_code::error};
};

struct mem_copy_result {
    status_code status{status_code::error};
};

struct fill_result {
    status_code status{status_code::error};
};

struct dualcast_result {
    status_code status{status_code::error};
};

// Of compare and compare_pattern.
struct compare_result {
    status_code status{status_code::error};
    comparison_result result{};
    size_t mismatch{}; // the offset of the first difference; after compare_pattern perhaps up to 7 less
};

struct create_delta_result {
    status_code status{status_code::error};
    comparison_result result{};
    size_t bytes_completed{}; // after an overflow: the bytes compared before it
    size_t delta_record_size{};
};

struct apply_delta_result {
    status_code status{status_code::error};
};

// Of crc and copy_crc.
struct crc_result {
    status_code status{status_code::error};
    std::uint32_t crc_value{};
};

struct cache_flush_result {
    status_code status{status_code::error};
};

struct batch_result {
    status_code status{status_code::error};
    size_t operations_completed{};
};

} // namespace dml

#endif
