// Floats of 8 bits as checkpoints have them, E4M3 without infinities: a sign, 4 bits of exponent (7
// more than it is), 3 of fraction; 0x7f is NaN, the largest is 448. Exact. Threads: any. Source:
// "FP8 Formats for Deep Learning", arXiv 2209.05433.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace flotilla {

inline bool IsNanE4M3(uint8_t bits) { return (bits & 0x7f) == 0x7f; }

inline float E4M3ToFloat(uint8_t bits) {
  if (IsNanE4M3(bits)) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7fu;
  // A small number below 2^-6: its fraction times 2^-9. Else the exponent's bias is 120 more.
  const uint32_t value = magnitude < 8
                             ? std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f)
                             : (magnitude << 20) + (120u << 23);
  return std::bit_cast<float>(sign | value);
}

}  // namespace flotilla
