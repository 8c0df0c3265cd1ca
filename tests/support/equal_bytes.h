// Equal to the last bit, where -0 and 0 differ and a NaN equals itself. Pure.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace flotilla::testing {

template <typename T>
bool EqualBytes(const T& a, const T& b) {
  return std::ranges::equal(std::as_bytes(std::span(&a, 1)), std::as_bytes(std::span(&b, 1)));
}

template <typename T>
bool EqualBytes(const std::vector<T>& a, const std::vector<T>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

}  // namespace flotilla::testing
