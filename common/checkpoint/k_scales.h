// The small scales of Q4_K's and Q5_K's super-blocks: 8 scales and 8 mins of 6 bits in 12 bytes.
//
// Bytes 0 to 3 hold the scales of blocks 0 to 3, bytes 4 to 7 their mins, in the lower 6 bits.
// Those of blocks 4 to 7 have their lower 4 bits in bytes 8 to 11 (scale low, min high nibble) and
// their upper 2 in the upper bits of bytes 0 to 7. Units: none. Threads: stateless. Errors: none.
// Source: ggml's format.
#pragma once

#include <cstdint>

namespace flotilla {

struct KScaleMin {
  uint8_t scale;
  uint8_t min;
};

inline KScaleMin UnpackKScaleMin(const uint8_t* bytes, int block) {
  if (block < 4) {
    return {static_cast<uint8_t>(bytes[block] & 63), static_cast<uint8_t>(bytes[block + 4] & 63)};
  }
  const int low = bytes[block + 4];
  return {static_cast<uint8_t>((low & 0x0f) | ((bytes[block - 4] >> 6) << 4)),
          static_cast<uint8_t>((low >> 4) | ((bytes[block] >> 6) << 4))};
}

}  // namespace flotilla
