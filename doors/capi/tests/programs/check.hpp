// Checks for C++ programs: each failed check is printed and counted.
#pragma once

#include <cstdio>
#include <string>
#include <telpher.hpp>

namespace {

int checks, failures;

void check(bool condition, const char *what, int line) {
    checks++;
    if (!condition) {
        std::printf("line %d: %s\n", line, what);
        failures++;
    }
}
#define CHECK(condition) check((condition), #condition, __LINE__)

// Checks that the call throws an error with this number and a message.
template <class F> bool throws(int errno_, F call) {
    try {
        call();
    } catch (const telpher::error &error) {
        return error.code().value() == errno_ && std::string(error.what()).size() > 5;
    }
    return false;
}

} // namespace
