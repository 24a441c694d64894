// SPDX-License-Identifier: MIT OR Apache-2.0
//
// execute.hpp: dml::execute<path>(operation, arguments...) returns when the operation is done.
//
// numa_id, the last argument of each, selects the queues of a node. If every queue is full, the status is queue_busy.
#ifndef DML_HL_EXECUTE_HPP
#define DML_HL_EXECUTE_HPP

#include <dml/hl/data_view.hpp>
#include <dml/hl/detail/execute.hpp>
#include <dml/hl/execution_path.hpp>
#include <dml/hl/operations.hpp>
#include <dml/hl/sequence.hpp>

#include <cstdint>

namespace dml {

template <typename execution_path, typename sequence_allocator_t>
batch_result execute(batch_operation operation, const sequence<sequence_allocator_t> &members,
                     std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, members);
}

template <typename execution_path>
nop_result execute(nop_operation operation, std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation);
}

template <typename execution_path>
mem_move_result execute(mem_move_operation operation, const_data_view src, data_view dst,
                        std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, src, dst);
}

template <typename execution_path>
mem_copy_result execute(mem_copy_operation operation, const_data_view src, data_view dst,
                        std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, src, dst);
}

template <typename execution_path>
fill_result execute(fill_operation operation, std::uint64_t pattern, data_view dst,
                    std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, pattern, dst);
}

template <typename execution_path>
dualcast_result execute(dualcast_operation operation, const_data_view src, data_view dst1, data_view dst2,
                        std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, src, dst1, dst2);
}

template <typename execution_path>
compare_result execute(compare_operation operation, const_data_view src1, const_data_view src2,
                       std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, src1, src2);
}

template <typename execution_path>
compare_result execute(compare_pattern_operation operation, std::uint64_t pattern, const_data_view src,
                       std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, pattern, src);
}

template <typename execution_path>
create_delta_result execute(create_delta_operation operation, const_data_view src1, const_data_view src2,
                            data_view delta, std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, src1, src2, delta);
}

template <typename execution_path>
apply_delta_result execute(apply_delta_operation operation, const_data_view delta, data_view dst,
                           create_delta_result created, std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, delta, dst, created);
}

template <typename execution_path>
crc_result execute(crc_operation operation, const_data_view src, std::uint32_t seed,
                   std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, src, seed);
}

template <typename execution_path>
crc_result execute(copy_crc_operation operation, const_data_view src, data_view dst, std::uint32_t seed,
                   std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, src, dst, seed);
}

template <typename execution_path>
cache_flush_result execute(cache_flush_operation operation, data_view dst,
                           std::uint32_t numa_id = detail::any_node) noexcept {
    return detail::execute<execution_path>(numa_id, operation, dst);
}

} // namespace dml

#endif
