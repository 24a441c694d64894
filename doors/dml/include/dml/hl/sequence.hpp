// SPDX-License-Identifier: MIT OR Apache-2.0
//
// sequence.hpp: the operations of a batch.
#ifndef DML_HL_SEQUENCE_HPP
#define DML_HL_SEQUENCE_HPP

#include <dml/hl/data_view.hpp>
#include <dml/hl/detail/buffer.hpp>
#include <dml/hl/detail/describe.hpp>
#include <dml/hl/operations.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace dml {

template <typename allocator_t> class sequence;

namespace detail {

template <typename sequence_allocator_t>
[[nodiscard]] status_code describe(descriptor &made, batch_operation operation,
                                   const sequence<sequence_allocator_t> &members) noexcept;

} // namespace detail

// Up to `length` operations, which dml::batch submits together. They may be executed in any order; a dml::nop between
// two operations orders them. The sequence and the memory of its views must outlive the batch. A sequence can be
// submitted again after that.
template <typename allocator_t = std::allocator<byte_t>> class sequence {
  public:
    using allocator_type = allocator_t;

    // Throws what the allocator throws.
    explicit sequence(size_t length, const allocator_t &allocator = allocator_t())
        : memory_(std::size_t{length} * (sizeof(detail::descriptor) + sizeof(telpher_dml_record)), allocator),
          capacity_(length) {}

    sequence(sequence &&other) noexcept
        : memory_(std::move(other.memory_)), capacity_(std::exchange(other.capacity_, 0)),
          length_(std::exchange(other.length_, 0)) {}

    sequence &operator=(sequence &&other) noexcept {
        if (this != &other) {
            memory_ = std::move(other.memory_);
            capacity_ = std::exchange(other.capacity_, 0);
            length_ = std::exchange(other.length_, 0);
        }
        return *this;
    }

    // The operations added so far.
    [[nodiscard]] size_t length() const noexcept { return length_; }

    // The descriptors of the operations added so far.
    [[nodiscard]] const detail::descriptor *data() const noexcept { return descriptors(); }

    // Each function adds an operation, or returns why it does not: batch_overflow if the sequence is full, otherwise
    // what dml::execute would return for the same arguments.
    status_code add(nop_operation operation) noexcept {
        const status_code status = append(operation);
        if (status == status_code::ok) {
            telpher_dml_make_nop(descriptors() + length_ - 1, operation.get_flags().bits());
        }
        return status;
    }

    status_code add(mem_move_operation operation, const_data_view src, data_view dst) noexcept {
        return append(operation, src, dst);
    }

    status_code add(mem_copy_operation operation, const_data_view src, data_view dst) noexcept {
        return append(operation, src, dst);
    }

    status_code add(fill_operation operation, std::uint64_t pattern, data_view dst) noexcept {
        return append(operation, pattern, dst);
    }

    status_code add(dualcast_operation operation, const_data_view src, data_view dst1, data_view dst2) noexcept {
        return append(operation, src, dst1, dst2);
    }

    status_code add(compare_operation operation, const_data_view src1, const_data_view src2) noexcept {
        return append(operation, src1, src2);
    }

    status_code add(compare_pattern_operation operation, std::uint64_t pattern, const_data_view src) noexcept {
        return append(operation, pattern, src);
    }

    status_code add(create_delta_operation operation, const_data_view src1, const_data_view src2,
                    data_view delta) noexcept {
        return append(operation, src1, src2, delta);
    }

    status_code add(apply_delta_operation operation, const_data_view delta, data_view dst,
                    create_delta_result created) noexcept {
        return append(operation, delta, dst, created);
    }

    status_code add(crc_operation operation, const_data_view src, std::uint32_t seed) noexcept {
        return append(operation, src, seed);
    }

    status_code add(copy_crc_operation operation, const_data_view src, data_view dst, std::uint32_t seed) noexcept {
        return append(operation, src, dst, seed);
    }

    status_code add(cache_flush_operation operation, data_view dst) noexcept { return append(operation, dst); }

  private:
    template <typename sequence_allocator_t>
    friend status_code detail::describe(detail::descriptor &made, batch_operation operation,
                                        const sequence<sequence_allocator_t> &members) noexcept;

    // Clears the records of an earlier submission.
    void bind() const noexcept {
        for (size_t at = 0; at < length_; ++at) {
            telpher_dml_bind(descriptors() + at, records() + at);
        }
    }

    template <typename... args_t> status_code append(const args_t &...args) noexcept {
        if (length_ == capacity_) {
            return status_code::batch_overflow;
        }
        const status_code status = detail::describe(descriptors()[length_], args...);
        if (status == status_code::ok) {
            ++length_;
        }
        return status;
    }

    [[nodiscard]] detail::descriptor *descriptors() const noexcept {
        return reinterpret_cast<detail::descriptor *>(memory_.data());
    }

    [[nodiscard]] telpher_dml_record *records() const noexcept {
        return reinterpret_cast<telpher_dml_record *>(descriptors() + capacity_);
    }

    // The descriptors, then the records.
    detail::buffer<allocator_t> memory_;
    size_t capacity_;
    size_t length_{};
};

template <typename sequence_allocator_t>
status_code detail::describe(descriptor &made, batch_operation operation,
                             const sequence<sequence_allocator_t> &members) noexcept {
    members.bind();
    telpher_dml_make_batch(&made, operation.get_flags().bits(), members.data(), members.length());
    return validate(made);
}

} // namespace dml

#endif
