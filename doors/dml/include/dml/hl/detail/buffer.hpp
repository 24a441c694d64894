// SPDX-License-Identifier: MIT OR Apache-2.0
//
// buffer.hpp: aligned memory from any allocator. Internal.
#ifndef DML_HL_DETAIL_BUFFER_HPP
#define DML_HL_DETAIL_BUFFER_HPP

#include <dml/hl/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace dml::detail {

// Bytes from an allocator, aligned to 64. The allocator's own alignment does not matter: 63 bytes more are allocated.
// Moving a buffer does not move the bytes.
template <typename allocator_t> class buffer {
    using byte_allocator = typename std::allocator_traits<allocator_t>::template rebind_alloc<byte_t>;
    using traits = std::allocator_traits<byte_allocator>;

  public:
    static constexpr std::size_t alignment = 64;

    buffer() noexcept = default;

    // Throws what the allocator throws.
    buffer(std::size_t size, const allocator_t &allocator) : allocator_(std::in_place, allocator) {
        allocated_ = size + alignment - 1;
        memory_ = traits::allocate(*allocator_, allocated_);
    }

    buffer(buffer &&other) noexcept { take(other); }

    buffer &operator=(buffer &&other) noexcept {
        if (this != &other) {
            free();
            take(other);
        }
        return *this;
    }

    ~buffer() { free(); }

    // Null if the buffer is empty.
    [[nodiscard]] byte_t *data() const noexcept {
        if (allocated_ == 0) {
            return nullptr;
        }
        byte_t *first = std::addressof(*memory_);
        const auto past = reinterpret_cast<std::uintptr_t>(first) % alignment;
        return past == 0 ? first : first + (alignment - past);
    }

  private:
    void free() noexcept {
        if (allocated_ != 0) {
            traits::deallocate(*allocator_, memory_, allocated_);
            allocated_ = 0;
        }
        allocator_.reset();
    }

    // Requires that this buffer is empty.
    void take(buffer &other) noexcept {
        // Emplaced, because an allocator need not be assignable.
        if (other.allocator_.has_value()) {
            allocator_.emplace(std::move(*other.allocator_));
        }
        memory_ = other.memory_;
        allocated_ = std::exchange(other.allocated_, 0);
        other.allocator_.reset();
    }

    std::optional<byte_allocator> allocator_;
    typename traits::pointer memory_{};
    std::size_t allocated_{};
};

} // namespace dml::detail

#endif
