#include "worker_proc/cpu/quantize_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/checkpoint/half.h"
#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {

bool QuantizeQ8_0(std::span<const float> values, uint8_t* blocks) {
  for (; !values.empty(); values = values.subspan(kQuantBlock)) {
    float largest = 0;
    for (const float x : values.first(kQuantBlock)) {
      if (!std::isfinite(x)) return false;
      largest = std::max(largest, std::fabs(x));
    }
    const uint16_t half = FloatToHalf(largest / 127.0f);
    const float d = HalfToFloat(half);
    if (std::isinf(d)) return false;
    std::memcpy(blocks, &half, sizeof(half));
    blocks += sizeof(half);
    const float inverse = d == 0 ? 0 : 1.0f / d;
    for (const float x : values.first(kQuantBlock)) {
      const float q = std::clamp(x * inverse, -127.0f, 127.0f);
      *blocks++ = static_cast<uint8_t>(static_cast<int8_t>(std::lround(q)));
    }
  }
  return true;
}

}  // namespace flotilla::cpu
