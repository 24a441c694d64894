// Checks for C++ programs: each failed check is printed and counted. Naive versions of the operations.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dml/dml.hpp>
#include <string>
#include <vector>

namespace {

using bytes = std::vector<std::uint8_t>;

int checks, failures;

bool check(bool condition, const char *what, int line) {
    checks++;
    if (!condition) {
        std::printf("line %d: %s\n", line, what);
        failures++;
    }
    return condition;
}
#define CHECK(condition) check((condition), #condition, __LINE__)

// What main returns: 0 if every check held.
[[maybe_unused]] int verdict() {
    std::printf("%d checks, %d failed\n", checks, failures);
    return failures == 0 && checks > 0 ? 0 : 1;
}

// Bytes without a short period.
[[maybe_unused]] bytes made_up(std::size_t length, std::uint32_t seed) {
    bytes made(length);
    for (auto &byte : made) {
        seed = seed * 1664525U + 1013904223U;
        byte = static_cast<std::uint8_t>(seed >> 24U);
    }
    return made;
}

[[maybe_unused]] std::uint32_t reversed(std::uint32_t value, unsigned bits) {
    std::uint32_t turned = 0;
    for (unsigned bit = 0; bit < bits; bit++) {
        turned |= (value >> bit & 1U) << (bits - 1U - bit);
    }
    return turned;
}

// The CRC of the DSA architecture specification, appendix A, bit by bit.
[[maybe_unused]] std::uint32_t naive_crc(const std::uint8_t *data, std::size_t length, std::uint32_t seed, bool bypass,
                                         bool bypass_data) {
    std::uint32_t crc = bypass ? seed : reversed(~seed, 32);
    for (std::size_t at = 0; at < length; at++) {
        const std::uint32_t byte = bypass_data ? data[at] : reversed(data[at], 8);
        crc ^= byte << 24U;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc & 0x80000000U) != 0 ? crc << 1U ^ 0x1EDC6F41U : crc << 1U;
        }
    }
    return bypass ? crc : ~reversed(crc, 32);
}

// A delta record: for each word that differs, its index in 16 bits and its new content.
[[maybe_unused]] bytes naive_delta(const bytes &from, const bytes &to) {
    bytes record;
    for (std::size_t word = 0; word < from.size() / 8; word++) {
        if (std::memcmp(&from[word * 8], &to[word * 8], 8) != 0) {
            record.push_back(static_cast<std::uint8_t>(word));
            record.push_back(static_cast<std::uint8_t>(word >> 8U));
            record.insert(record.end(), to.begin() + static_cast<std::ptrdiff_t>(word * 8),
                          to.begin() + static_cast<std::ptrdiff_t>(word * 8 + 8));
        }
    }
    return record;
}

} // namespace
