// SPDX-License-Identifier: MIT OR Apache-2.0
//
// operations.hpp: the operations, as constant objects. A modifier returns a changed copy:
//
//     dml::execute<dml::hardware>(dml::compare.expect_equal().block_on_fault(), a, b);
//
// block_on_fault() makes the device wait for a page instead of ending early. The queue must allow it; otherwise the
// status is config_error.
#ifndef DML_HL_OPERATIONS_HPP
#define DML_HL_OPERATIONS_HPP

#include <dml/detail/telpher.h>
#include <dml/hl/result.hpp>

#include <cstdint>

namespace dml {

namespace detail {

// The flags of a descriptor that an operation sets: the general ones in bits 15:0, the specific ones from bit 16 on.
class flags {
  public:
    constexpr flags() noexcept = default;
    constexpr explicit flags(std::uint32_t bits) noexcept : bits_(bits) {}

    [[nodiscard]] constexpr flags with(std::uint32_t bits) const noexcept { return flags(bits_ | bits); }
    [[nodiscard]] constexpr std::uint32_t bits() const noexcept { return bits_; }
    [[nodiscard]] constexpr std::uint16_t general() const noexcept { return static_cast<std::uint16_t>(bits_); }
    [[nodiscard]] constexpr std::uint8_t specific() const noexcept { return static_cast<std::uint8_t>(bits_ >> 16U); }

  private:
    std::uint32_t bits_{};
};

// What operations without an expected result have in common. `self_t` is the operation.
template <typename self_t, std::uint32_t initial> class plain_operation {
  public:
    [[nodiscard]] constexpr self_t block_on_fault() const noexcept { return with(TELPHER_DML_BLOCK_ON_FAULT); }
    [[nodiscard]] constexpr std::uint16_t get_options() const noexcept { return flags_.general(); }
    [[nodiscard]] constexpr std::uint8_t get_specific_options() const noexcept { return flags_.specific(); }
    [[nodiscard]] constexpr flags get_flags() const noexcept { return flags_; }

  protected:
    [[nodiscard]] constexpr self_t with(std::uint32_t bits) const noexcept {
        self_t changed;
        static_cast<plain_operation &>(changed).flags_ = flags_.with(bits);
        return changed;
    }

  private:
    flags flags_{initial};
};

// What the comparing operations have in common. `equal` and `not_equal` are the numbers with which the descriptor
// expects these results.
template <typename self_t, std::uint32_t initial, std::uint8_t equal, std::uint8_t not_equal>
class comparing_operation {
  public:
    // With another result than the expected one, the status is false_predicate.
    [[nodiscard]] constexpr self_t expect_equal() const noexcept { return with(TELPHER_DML_CHECK_RESULT, equal); }
    [[nodiscard]] constexpr self_t expect_not_equal() const noexcept {
        return with(TELPHER_DML_CHECK_RESULT, not_equal);
    }
    [[nodiscard]] constexpr self_t block_on_fault() const noexcept {
        return with(TELPHER_DML_BLOCK_ON_FAULT, expected_);
    }
    [[nodiscard]] constexpr std::uint16_t get_options() const noexcept { return flags_.general(); }
    [[nodiscard]] constexpr std::uint8_t get_expected_result() const noexcept { return expected_; }
    [[nodiscard]] constexpr flags get_flags() const noexcept { return flags_; }

  private:
    [[nodiscard]] constexpr self_t with(std::uint32_t bits, std::uint8_t expected) const noexcept {
        self_t changed;
        static_cast<comparing_operation &>(changed).flags_ = flags_.with(bits);
        static_cast<comparing_operation &>(changed).expected_ = expected;
        return changed;
    }

    flags flags_{initial};
    std::uint8_t expected_{};
};

} // namespace detail

// Does nothing. In a sequence it is a fence: the operations after it start when those before it are done.
class nop_operation {
  public:
    using result_type = nop_result;
    [[nodiscard]] constexpr std::uint16_t get_options() const noexcept { return get_flags().general(); }
    [[nodiscard]] constexpr detail::flags get_flags() const noexcept { return detail::flags(TELPHER_DML_FENCE); }
};

// Moves bytes; the ranges may overlap.
class mem_move_operation : public detail::plain_operation<mem_move_operation, TELPHER_DML_CACHE_CONTROL> {
  public:
    using result_type = mem_move_result;
};

// As mem_move, also with ranges that overlap.
class mem_copy_operation : public detail::plain_operation<mem_copy_operation, TELPHER_DML_CACHE_CONTROL> {
  public:
    using result_type = mem_copy_result;
};

// Repeats a 64-bit pattern.
class fill_operation : public detail::plain_operation<fill_operation, TELPHER_DML_CACHE_CONTROL> {
  public:
    using result_type = fill_result;
};

// Copies bytes to two places, whose addresses have equal bits 11:0.
class dualcast_operation : public detail::plain_operation<dualcast_operation, TELPHER_DML_CACHE_CONTROL> {
  public:
    using result_type = dualcast_result;
};

// Compares two ranges.
class compare_operation : public detail::comparing_operation<compare_operation, 0, 0, 1> {
  public:
    using result_type = compare_result;
};

// Compares a range with a repeated 64-bit pattern.
class compare_pattern_operation : public detail::comparing_operation<compare_pattern_operation, 0, 0, 1> {
  public:
    using result_type = compare_result;
};

// Writes the differences of two ranges into a delta record.
class create_delta_operation
    : public detail::comparing_operation<create_delta_operation, TELPHER_DML_CACHE_CONTROL, 1, 2> {
  public:
    using result_type = create_delta_result;
};

// Changes the first range of a create_delta into the second.
class apply_delta_operation : public detail::plain_operation<apply_delta_operation, TELPHER_DML_CACHE_CONTROL> {
  public:
    using result_type = apply_delta_result;
};

// The CRC-32C of a range.
class crc_operation : public detail::plain_operation<crc_operation, 0> {
  public:
    using result_type = crc_result;
    // Neither inverts nor reflects the seed and the result.
    [[nodiscard]] constexpr crc_operation bypass_reflection() const noexcept {
        return with(TELPHER_DML_CRC_BYPASS_REFLECTION);
    }
    // Does not reflect the data.
    [[nodiscard]] constexpr crc_operation bypass_data_reflection() const noexcept {
        return with(TELPHER_DML_CRC_BYPASS_DATA_REFLECTION);
    }
};

// A copy, and the CRC-32C of the copied bytes.
class copy_crc_operation : public detail::plain_operation<copy_crc_operation, TELPHER_DML_CACHE_CONTROL> {
  public:
    using result_type = crc_result;
    [[nodiscard]] constexpr copy_crc_operation bypass_reflection() const noexcept {
        return with(TELPHER_DML_CRC_BYPASS_REFLECTION);
    }
    [[nodiscard]] constexpr copy_crc_operation bypass_data_reflection() const noexcept {
        return with(TELPHER_DML_CRC_BYPASS_DATA_REFLECTION);
    }
};

// Writes a range back from the caches to memory.
class cache_flush_operation : public detail::plain_operation<cache_flush_operation, 0> {
  public:
    using result_type = cache_flush_result;
    [[deprecated("devices since DSA 2.0 refuse it")]] [[nodiscard]] constexpr cache_flush_operation
    dont_invalidate_cache() const noexcept {
        return with(TELPHER_DML_CACHE_CONTROL);
    }
};

// The operations of a dml::sequence.
class batch_operation {
  public:
    using result_type = batch_result;
    [[nodiscard]] constexpr std::uint16_t get_options() const noexcept { return get_flags().general(); }
    [[nodiscard]] constexpr detail::flags get_flags() const noexcept { return detail::flags(); }
};

inline constexpr auto nop = nop_operation();
inline constexpr auto mem_move = mem_move_operation();
inline constexpr auto mem_copy = mem_copy_operation();
inline constexpr auto fill = fill_operation();
inline constexpr auto dualcast = dualcast_operation();
inline constexpr auto compare = compare_operation();
inline constexpr auto compare_pattern = compare_pattern_operation();
inline constexpr auto create_delta = create_delta_operation();
inline constexpr auto apply_delta = apply_delta_operation();
inline constexpr auto crc = crc_operation();
inline constexpr auto copy_crc = copy_crc_operation();
inline constexpr auto cache_flush = cache_flush_operation();
inline constexpr auto batch = batch_operation();

} // namespace dml

#endif
