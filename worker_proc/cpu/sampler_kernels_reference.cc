// The oracle of the sampler's passes: plain loops, to be read. Compiled for x86-64-v3 so that Fma
// is one instruction.
#include <cstring>

#include "worker_proc/cpu/sampler_kernels.h"
#include "worker_proc/runner/weight_numbers.h"

namespace flotilla::cpu {
namespace {

// a*b + c, rounded once.
inline float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// e^(x * inverse_temperature) for x <= 0, rounded to a multiple of the quantum.
float Weight(float x, const WeightScale& scale) {
  using namespace weight;
  const float to_log2 = scale.inverse_temperature * kLog2E;
  const float lowest = kLeastT / to_log2;
  x = x > lowest ? x : lowest;
  const float shifted = Fma(x, to_log2, kRound);  // n, in the low bits
  const float r = Fma(x, to_log2, -(shifted - kRound));
  float p = kP5;
  p = Fma(p, r, kP4);
  p = Fma(p, r, kP3);
  p = Fma(p, r, kP2);
  p = Fma(p, r, kP1);
  p = Fma(p, r, 1.0f);
  uint32_t n_bits, p_bits;
  std::memcpy(&n_bits, &shifted, sizeof(n_bits));
  std::memcpy(&p_bits, &p, sizeof(p_bits));
  p_bits += n_bits << 23;  // p * 2^n: n to the exponent
  float e;
  std::memcpy(&e, &p_bits, sizeof(e));
  // A multiple of 2^-18, and a multiple of the quantum below that.
  const float high = (e + kHighRound) - kHighRound;
  const float low_round = kRound * scale.quantum;
  const float low = ((e - high) + low_round) - low_round;
  return high + low;  // exact
}

bool TileMax(const float* logits, size_t n, float* tile_max) {
  for (size_t i = 0; i < n; ++i) {
    if (logits[i] != logits[i]) return false;
    float* max = tile_max + i / kSamplerTile;
    *max = i % kSamplerTile == 0 || logits[i] > *max ? logits[i] : *max;
  }
  return true;
}

void TileSums(const float* logits, size_t n, const WeightScale& scale, double* sums) {
  for (size_t i = 0; i < n; ++i) {
    double* sum = sums + i / kSamplerTile;
    *sum = (i % kSamplerTile == 0 ? 0.0 : *sum) + Weight(logits[i] - scale.max, scale);
  }
}

void Weights(const float* logits, size_t n, const WeightScale& scale, float* weights) {
  for (size_t i = 0; i < n; ++i) weights[i] = Weight(logits[i] - scale.max, scale);
}

size_t Count(const float* logits, size_t n, float bound) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) count += logits[i] >= bound;
  return count;
}

size_t Collect(const float* logits, size_t n, float bound, int32_t first_token, float* values,
               int32_t* tokens) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!(logits[i] >= bound)) continue;
    values[count] = logits[i];
    tokens[count++] = first_token + static_cast<int32_t>(i);
  }
  return count;
}

void Mask(const float* logits, size_t n, const uint32_t* mask, float* out) {
  for (size_t i = 0; i < n; ++i) {
    out[i] = (mask[i / 32] >> (i % 32) & 1) != 0 ? logits[i] : -__builtin_inff();
  }
}

}  // namespace

const SamplerKernels& ReferenceSamplerKernels() {
  static constexpr SamplerKernels kTable = {"reference", TileMax, TileSums, Weights,
                                            Count,       Collect, Mask};
  return kTable;
}

}  // namespace flotilla::cpu
