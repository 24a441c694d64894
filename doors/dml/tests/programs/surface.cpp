// Names, numbers, sizes and types of the C++ interface, at compile time. Sources: the headers and the measured sizes
// of DML 1.1.1.
#include <dml/dml.hpp>

#include <array>
#include <cstdio>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using dml::status_code;

template <status_code code, std::uint32_t number> constexpr bool is = static_cast<std::uint32_t>(code) == number;

static_assert(std::is_same_v<std::underlying_type_t<status_code>, std::uint32_t>);
static_assert(is<status_code::ok, 0> && is<status_code::false_predicate, 1> && is<status_code::partial_completion, 2>);
static_assert(is<status_code::nullptr_error, 3> && is<status_code::bad_size, 4> && is<status_code::bad_length, 5>);
static_assert(is<status_code::inconsistent_size, 6> && is<status_code::dualcast_bad_padding, 7>);
static_assert(is<status_code::bad_alignment, 8> && is<status_code::buffers_overlapping, 9>);
static_assert(is<status_code::delta_bad_size, 10> && is<status_code::delta_delta_empty, 11>);
static_assert(is<status_code::batch_overflow, 12> && is<status_code::execution_failed, 13>);
static_assert(is<status_code::unsupported_operation, 14> && is<status_code::queue_busy, 15>);
static_assert(is<status_code::error, 16> && is<status_code::config_error, 17>);

using dml::comparison_result;
static_assert(std::is_same_v<std::underlying_type_t<comparison_result>, std::uint8_t>);
static_assert(int(comparison_result::equal) == 0 && int(comparison_result::not_equal) == 1);
static_assert(int(comparison_result::overflow) == 2);

static_assert(std::is_same_v<dml::byte_t, std::uint8_t> && std::is_same_v<dml::size_t, std::uint32_t>);

static_assert(sizeof(dml::data_view) == 16 && sizeof(dml::const_data_view) == 16 && sizeof(status_code) == 4);
static_assert(sizeof(dml::compare_result) == 12 && sizeof(dml::create_delta_result) == 16);
static_assert(sizeof(dml::crc_result) == 8 && sizeof(dml::batch_result) == 8);
static_assert(sizeof(dml::nop_result) == 4 && sizeof(dml::mem_move_result) == 4 && sizeof(dml::mem_copy_result) == 4);
static_assert(sizeof(dml::fill_result) == 4 && sizeof(dml::dualcast_result) == 4);
static_assert(sizeof(dml::apply_delta_result) == 4 && sizeof(dml::cache_flush_result) == 4);

// Views: an implicit way from data that may be written to data that is only read, and none back; copied, not
// assigned.
static_assert(std::is_convertible_v<dml::data_view, dml::const_data_view>);
static_assert(!std::is_convertible_v<dml::const_data_view, dml::data_view>);
static_assert(!std::is_constructible_v<dml::data_view, dml::const_data_view>);
static_assert(std::is_copy_constructible_v<dml::data_view> && std::is_copy_constructible_v<dml::const_data_view>);
static_assert(!std::is_copy_assignable_v<dml::data_view> && !std::is_move_assignable_v<dml::data_view>);
static_assert(!std::is_copy_assignable_v<dml::const_data_view> && !std::is_move_assignable_v<dml::const_data_view>);

template <typename... args_t> using view_of = decltype(dml::make_view(std::declval<args_t>()...));
static_assert(std::is_same_v<view_of<int *, int>, dml::data_view>);
static_assert(std::is_same_v<view_of<const int *, int>, dml::const_data_view>);
static_assert(std::is_same_v<view_of<void *, int>, dml::data_view>);
static_assert(std::is_same_v<view_of<const void *, int>, dml::const_data_view>);
static_assert(std::is_same_v<view_of<std::vector<int> &>, dml::data_view>);
static_assert(std::is_same_v<view_of<const std::vector<int> &>, dml::const_data_view>);
static_assert(std::is_same_v<view_of<std::array<int, 3> &>, dml::data_view>);
static_assert(std::is_same_v<view_of<char (&)[5]>, dml::data_view>);
static_assert(std::is_same_v<view_of<std::vector<int>::iterator, std::vector<int>::iterator>, dml::data_view>);
static_assert(
    std::is_same_v<view_of<std::vector<int>::const_iterator, std::vector<int>::const_iterator>, dml::const_data_view>);

// Results: aggregates with the status first, which is `error` until an operation sets it.
template <typename operation_t, typename result_t>
constexpr bool results_in = std::is_same_v<typename operation_t::result_type, result_t>
                            && std::is_aggregate_v<result_t> && result_t{}.status == status_code::error
                            && result_t{status_code::ok}.status == status_code::ok;
static_assert(results_in<dml::nop_operation, dml::nop_result>);
static_assert(results_in<dml::mem_move_operation, dml::mem_move_result>);
static_assert(results_in<dml::mem_copy_operation, dml::mem_copy_result>);
static_assert(results_in<dml::fill_operation, dml::fill_result>);
static_assert(results_in<dml::dualcast_operation, dml::dualcast_result>);
static_assert(results_in<dml::compare_operation, dml::compare_result>);
static_assert(results_in<dml::compare_pattern_operation, dml::compare_result>);
static_assert(results_in<dml::create_delta_operation, dml::create_delta_result>);
static_assert(results_in<dml::apply_delta_operation, dml::apply_delta_result>);
static_assert(results_in<dml::crc_operation, dml::crc_result>);
static_assert(results_in<dml::copy_crc_operation, dml::crc_result>);
static_assert(results_in<dml::cache_flush_operation, dml::cache_flush_result>);
static_assert(results_in<dml::batch_operation, dml::batch_result>);

// Operations: constants of their classes, whose modifiers return copies that are constants too.
static_assert(std::is_same_v<decltype(dml::nop), const dml::nop_operation>);
static_assert(std::is_same_v<decltype(dml::mem_move.block_on_fault()), dml::mem_move_operation>);
static_assert(std::is_same_v<decltype(dml::mem_copy.block_on_fault()), dml::mem_copy_operation>);
static_assert(std::is_same_v<decltype(dml::fill.block_on_fault()), dml::fill_operation>);
static_assert(std::is_same_v<decltype(dml::dualcast.block_on_fault()), dml::dualcast_operation>);
static_assert(std::is_same_v<decltype(dml::compare.expect_equal().block_on_fault()), dml::compare_operation>);
static_assert(std::is_same_v<decltype(dml::compare_pattern.expect_not_equal()), dml::compare_pattern_operation>);
static_assert(std::is_same_v<decltype(dml::create_delta.expect_equal()), dml::create_delta_operation>);
static_assert(std::is_same_v<decltype(dml::apply_delta.block_on_fault()), dml::apply_delta_operation>);
static_assert(std::is_same_v<decltype(dml::crc.bypass_reflection().bypass_data_reflection()), dml::crc_operation>);
static_assert(std::is_same_v<decltype(dml::copy_crc.bypass_data_reflection()), dml::copy_crc_operation>);
static_assert(std::is_same_v<decltype(dml::cache_flush.block_on_fault()), dml::cache_flush_operation>);
static_assert(std::is_same_v<decltype(dml::batch), const dml::batch_operation>);

// Bits of the descriptor's flags: fence 1, block on fault 2, check result 0x80, cache control 0x100.
static_assert(dml::nop.get_options() == 1 && dml::batch.get_options() == 0);
static_assert(dml::mem_move.get_options() == 0x100 && dml::mem_copy.get_options() == 0x100);
static_assert(dml::fill.get_options() == 0x100 && dml::dualcast.get_options() == 0x100);
static_assert(dml::create_delta.get_options() == 0x100 && dml::apply_delta.get_options() == 0x100);
static_assert(dml::copy_crc.get_options() == 0x100 && dml::crc.get_options() == 0);
static_assert(dml::compare.get_options() == 0 && dml::compare_pattern.get_options() == 0);
static_assert(dml::cache_flush.get_options() == 0 && dml::fill.block_on_fault().get_options() == 0x102);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static_assert(dml::cache_flush.dont_invalidate_cache().get_options() == 0x100);
#pragma GCC diagnostic pop
static_assert(dml::compare.expect_equal().get_options() == 0x80);
static_assert(dml::compare.expect_equal().get_expected_result() == 0);
static_assert(dml::compare.expect_not_equal().get_expected_result() == 1);
static_assert(dml::create_delta.expect_equal().get_options() == 0x180);
static_assert(dml::create_delta.expect_equal().get_expected_result() == 1);
static_assert(dml::create_delta.expect_not_equal().block_on_fault().get_expected_result() == 2);
static_assert(dml::crc.bypass_reflection().get_specific_options() == 2);
static_assert(dml::crc.bypass_data_reflection().get_specific_options() == 4);
static_assert(dml::copy_crc.bypass_reflection().bypass_data_reflection().get_specific_options() == 6);
static_assert(dml::dualcast.get_specific_options() == 0);

// Handlers and sequences move, and do not copy.
using handler = dml::handler<dml::mem_move_operation, std::allocator<dml::byte_t>>;
static_assert(std::is_default_constructible_v<handler> && !std::is_copy_constructible_v<handler>);
static_assert(!std::is_copy_assignable_v<handler>);
static_assert(std::is_nothrow_move_constructible_v<handler> && std::is_nothrow_move_assignable_v<handler>);
static_assert(std::is_same_v<decltype(dml::sequence(4)), dml::sequence<std::allocator<dml::byte_t>>>);
static_assert(std::is_same_v<decltype(dml::sequence(4, std::allocator<int>())), dml::sequence<std::allocator<int>>>);
static_assert(!std::is_copy_constructible_v<dml::sequence<>> && std::is_nothrow_move_constructible_v<dml::sequence<>>);
static_assert(std::is_nothrow_move_assignable_v<dml::sequence<>>);

// Paths name what they use by default, and dml::submit returns a handler with the allocator it was given.
template <typename path> constexpr bool is_path() {
    using interface_t = dml::default_execution_interface<path>;
    using spawner_t = typename path::default_thread_spawner;
    using allocator_t = typename path::default_allocator;
    using execution_path = typename path::execution_path;
    using submitted_t = decltype(dml::submit<path>(dml::nop));
    return std::is_same_v<interface_t, dml::execution_interface<spawner_t, allocator_t>>
           && std::is_same_v<typename interface_t::allocator_type, std::allocator<dml::byte_t>>
           && std::is_same_v<submitted_t, dml::handler<dml::nop_operation, allocator_t>>
           && std::is_class_v<execution_path>
           && std::is_same_v<decltype(dml::execute<path>(dml::nop)), dml::nop_result>;
}
static_assert(is_path<dml::software>() && is_path<dml::hardware>() && is_path<dml::automatic>());

// Only dml::submit may throw.
static_assert(noexcept(dml::execute<dml::software>(dml::nop)) && !noexcept(dml::submit<dml::software>(dml::nop)));

struct numbered {
    int operator()(int number) const { return number + 1; }
};

} // namespace

int main() {
    const dml::execution_interface interface{numbered(), std::allocator<long>()};
    static_assert(std::is_same_v<decltype(interface)::allocator_type, std::allocator<long>>);
    const bool called = interface.execute(41) == 42;
    int ran = 0;
    dml::hardware::default_thread_spawner()([&ran] { ran++; });
    dml::automatic::default_thread_spawner()([&ran] { ran++; });
    dml::sequence sequence(4);
    sequence.add(dml::nop);
    return called && ran == 2 && sequence.length() == 1 && sequence.data() != nullptr ? 0 : 1;
}
