// SPDX-License-Identifier: MIT OR Apache-2.0
//
// submit.hpp: dml::submit<path>(operation, arguments...) starts an operation and returns a handler of it.
//
// `executor` names the allocator of the handler's memory; what it throws leaves the function. numa_id selects the
// queues of a node. If every queue is full, the handler is not valid and its status is queue_busy. On the software
// path, and on the automatic path without a queue, the operation is done when the function returns.
#ifndef DML_HL_SUBMIT_HPP
#define DML_HL_SUBMIT_HPP

#include <dml/hl/data_view.hpp>
#include <dml/hl/detail/submit.hpp>
#include <dml/hl/execution_interface.hpp>
#include <dml/hl/execution_path.hpp>
#include <dml/hl/operations.hpp>
#include <dml/hl/sequence.hpp>

#include <cstdint>

namespace dml {

template <typename execution_path, typename sequence_allocator_t,
          typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(batch_operation operation, const sequence<sequence_allocator_t> &members,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<batch_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, members);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(nop_operation operation, const execution_interface_t &executor = execution_interface_t(),
            std::uint32_t numa_id = detail::any_node)
    -> handler<nop_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(mem_move_operation operation, const_data_view src, data_view dst,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<mem_move_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, src, dst);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(mem_copy_operation operation, const_data_view src, data_view dst,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<mem_copy_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, src, dst);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(fill_operation operation, std::uint64_t pattern, data_view dst,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<fill_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, pattern, dst);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(dualcast_operation operation, const_data_view src, data_view dst1, data_view dst2,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<dualcast_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, src, dst1, dst2);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(compare_operation operation, const_data_view src1, const_data_view src2,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<compare_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, src1, src2);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(compare_pattern_operation operation, std::uint64_t pattern, const_data_view src,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<compare_pattern_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, pattern, src);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(create_delta_operation operation, const_data_view src1, const_data_view src2, data_view delta,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<create_delta_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, src1, src2, delta);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(apply_delta_operation operation, const_data_view delta, data_view dst, create_delta_result created,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<apply_delta_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, delta, dst, created);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(crc_operation operation, const_data_view src, std::uint32_t seed,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<crc_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, src, seed);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(copy_crc_operation operation, const_data_view src, data_view dst, std::uint32_t seed,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<copy_crc_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, src, dst, seed);
}

template <typename execution_path, typename execution_interface_t = default_execution_interface<execution_path>>
auto submit(cache_flush_operation operation, data_view dst,
            const execution_interface_t &executor = execution_interface_t(), std::uint32_t numa_id = detail::any_node)
    -> handler<cache_flush_operation, typename execution_interface_t::allocator_type> {
    return detail::submit<execution_path>(executor, numa_id, operation, dst);
}

} // namespace dml

#endif
