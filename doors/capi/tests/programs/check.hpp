// What C++ programs check with: each check that fails is told of, and counted.
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

// The call throws an error with this number, and says something of it.
template <class F> bool throws(int errno_, F call) {
    try {
        call();
    } catch (const telpher::error &error) {
        return error.code().value() == errno_ && std::string(error.what()).size() > 5;
    }
    return false;
}

} // namespace
