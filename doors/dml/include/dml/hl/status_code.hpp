// SPDX-License-Identifier: MIT OR Apache-2.0
//
// status_code.hpp: how an operation ended, or why it was not started.
#ifndef DML_HL_STATUS_CODE_HPP
#define DML_HL_STATUS_CODE_HPP

#include <cstdint>

namespace dml {

enum class status_code : std::uint32_t {
    ok = 0,
    false_predicate = 1,        // done, and its result is not the expected one
    partial_completion = 2,     // a page fault ended it early
    nullptr_error = 3,          // an address is null
    bad_size = 4,               // zero, too large, or not a multiple of 8 for a delta operation
    bad_length = 5,             // a batch of fewer than 4 operations
    inconsistent_size = 6,      // the sizes of two views differ
    dualcast_bad_padding = 7,   // bits 11:0 of dualcast's destinations differ
    bad_alignment = 8,          // an address of a delta operation is not a multiple of 8
    buffers_overlapping = 9,    // ranges overlap that must not
    delta_bad_size = 10,        // a delta record of fewer than 80 bytes, or not a multiple of 10
    delta_delta_empty = 11,     // there is no delta to apply
    batch_overflow = 12,        // the sequence is full
    execution_failed = 13,
    unsupported_operation = 14, // no queue offers the operation
    queue_busy = 15,            // every queue was full; try again
    error = 16,
    config_error = 17           // the queue does not allow a flag, for instance Block On Fault
};

} // namespace dml

#endif
