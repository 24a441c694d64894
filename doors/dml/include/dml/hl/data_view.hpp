// SPDX-License-Identifier: MIT OR Apache-2.0
//
// data_view.hpp: a range of memory, read by an operation or written by it.
#ifndef DML_HL_DATA_VIEW_HPP
#define DML_HL_DATA_VIEW_HPP

#include <dml/hl/types.hpp>

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

namespace dml {

class const_data_view;

// A range that an operation may write. The memory belongs to the caller.
class data_view {
  public:
    data_view(byte_t *data, size_t size) noexcept : data_(data), size_(size) {}

    // A range that is only read never becomes one that is written.
    data_view(const_data_view) = delete;

    data_view(const data_view &) noexcept = default;
    data_view &operator=(const data_view &) = delete;

    [[nodiscard]] byte_t *data() const noexcept { return data_; }

    // In bytes.
    [[nodiscard]] size_t size() const noexcept { return size_; }

  private:
    byte_t *data_;
    size_t size_;
};

// A range that an operation only reads.
class const_data_view {
  public:
    const_data_view(const byte_t *data, size_t size) noexcept : data_(data), size_(size) {}

    const_data_view(data_view view) noexcept : data_(view.data()), size_(view.size()) {}

    const_data_view(const const_data_view &) noexcept = default;
    const_data_view &operator=(const const_data_view &) = delete;

    [[nodiscard]] const byte_t *data() const noexcept { return data_; }

    // In bytes.
    [[nodiscard]] size_t size() const noexcept { return size_; }

  private:
    const byte_t *data_;
    size_t size_;
};

namespace detail {

// The size of an element; an element of void is a byte.
template <typename element_t> constexpr std::size_t size_of() noexcept {
    if constexpr (std::is_void_v<element_t>) {
        return 1;
    } else {
        return sizeof(element_t);
    }
}

// Whether an iterator has an operator-> that returns a pointer.
template <typename iterator_t, typename = void> struct has_arrow : std::false_type {};
template <typename iterator_t>
struct has_arrow<iterator_t, std::void_t<decltype(std::declval<const iterator_t &>().operator->())>>
    : std::is_pointer<decltype(std::declval<const iterator_t &>().operator->())> {};

// The address of the first element of a range of `length` elements. In an empty range there is none; its address is
// still the answer to whether the range has memory.
template <typename iterator_t> auto *first_of(iterator_t begin, std::size_t length) {
    using element_t = std::remove_reference_t<decltype(*begin)>;
    if constexpr (std::is_pointer_v<iterator_t>) {
        return begin;
    } else if constexpr (has_arrow<iterator_t>::value) {
        return static_cast<element_t *>(length == 0 ? begin.operator->() : &*begin);
    } else {
        return length == 0 ? static_cast<element_t *>(nullptr) : &*begin;
    }
}

} // namespace detail

// A view of `length` elements: a data_view, or a const_data_view if they are const. Like the original, it keeps the
// lower 32 bits of the size in bytes.
template <typename element_t> auto make_view(element_t *data, std::size_t length) noexcept {
    const auto size = static_cast<dml::size_t>(length * detail::size_of<element_t>());
    if constexpr (std::is_const_v<element_t>) {
        return const_data_view(static_cast<const byte_t *>(static_cast<const void *>(data)), size);
    } else {
        return data_view(static_cast<byte_t *>(static_cast<void *>(data)), size);
    }
}

// A view of the elements between two iterators over contiguous memory.
template <typename iterator_t> auto make_view(iterator_t begin, iterator_t end) {
    using category_t = typename std::iterator_traits<iterator_t>::iterator_category;
    static_assert(std::is_base_of_v<std::random_access_iterator_tag, category_t>,
                  "make_view needs random access iterators");
    const auto length = static_cast<std::size_t>(end - begin);
    return make_view(detail::first_of(begin, length), length);
}

// A view of a whole array, vector or the like.
template <typename range_t> auto make_view(const range_t &range) {
    return make_view(std::cbegin(range), std::cend(range));
}

template <typename range_t> auto make_view(range_t &range) {
    return make_view(std::begin(range), std::end(range));
}

} // namespace dml

#endif
