// The numbers that RoPE multiplies with, the same for every backend.
//
// Threads: pure. Errors: none. Source: "RoFormer", arXiv 2104.09864.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "worker_proc/model/backend.h"

namespace flotilla {

// [dim / 2]: by what a pair's angle grows from one position to the next.
inline std::vector<double> RopeFrequencies(const RopeSpec& spec) {
  std::vector<double> frequencies(spec.dim / 2);
  for (uint32_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(static_cast<double>(spec.theta), -2.0 * i / spec.dim);
    if (!spec.divisors.empty()) frequencies[i] /= spec.divisors[i];
  }
  return frequencies;
}

// One position's [dim / 2][cos, sin], times the magnitude.
inline void RopeAngles(const std::vector<double>& frequencies, uint32_t position, float magnitude,
                       float* out) {
  for (const double frequency : frequencies) {
    const double angle = position * frequency;
    *out++ = static_cast<float>(std::cos(angle) * magnitude);
    *out++ = static_cast<float>(std::sin(angle) * magnitude);
  }
}

}  // namespace flotilla
