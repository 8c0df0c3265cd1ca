// Philox4x32-10: a counter-based random generator. The same (key, counter) always gives the same
// words, so a draw depends on the request's seed and the token's position, never on the batch.
//
// Threads: pure. Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3",
// SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace flotilla {

inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits: the draw numbered `draw` for the token at `position`.
inline double UniformDraw(uint64_t seed, uint32_t position, uint32_t draw) {
  const std::array<uint32_t, 4> words = Philox4x32(
      {position, draw, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = uint64_t{words[0]} << 21 | words[1] >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace flotilla
