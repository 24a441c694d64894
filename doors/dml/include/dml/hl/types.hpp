// SPDX-License-Identifier: MIT OR Apache-2.0
//
// types.hpp: the integers of the interface.
#ifndef DML_HL_TYPES_HPP
#define DML_HL_TYPES_HPP

#include <cstdint>

namespace dml {

// The unit of all sizes.
using byte_t = std::uint8_t;

// A size in bytes. A device's transfer has at most 4 GiB - 1.
using size_t = std::uint32_t;

} // namespace dml

#endif
