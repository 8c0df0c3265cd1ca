// The oracle of the sampler's passes: plain loops, to be read. Compiled for x86-64-v3 so that Fma
// is one instruction.
#include <cstring>

#include "worker_proc/cpu/sampler_kernels.h"

namespace flotilla::cpu {
namespace {

// a*b + c, rounded once.
inline float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// e^x within 2 ulp for x in [-87, 0]; below -87 as at -87. x = n ln2 + r, e^r by its Taylor
// polynomial.
float Exp(float x) {
  x = x > -87.0f ? x : -87.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = Fma(x, 1.44269504f, kRound) - kRound;
  float r = Fma(n, -0.693359375f, x);  // ln 2 in two parts
  r = Fma(n, 2.12194440e-4f, r);
  float p = 1.3888889e-3f;
  p = Fma(p, r, 8.3333333e-3f);
  p = Fma(p, r, 4.1666667e-2f);
  p = Fma(p, r, 1.6666667e-1f);
  p = Fma(p, r, 0.5f);
  p = Fma(p, r, 1.0f);
  p = Fma(p, r, 1.0f);
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float two_to_n;
  std::memcpy(&two_to_n, &bits, sizeof(bits));
  return p * two_to_n;
}

float Weight(float logit, const WeightScale& scale) {
  // Adding and taking away a float whose last place is `quantum` rounds to a multiple of it. What
  // is larger loses its last bit at most, and 1 stays 1.
  const float round = 12582912.0f * scale.quantum;
  const float e = Exp((logit - scale.max) * scale.inverse_temperature);
  return (e + round) - round;
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
    *sum = (i % kSamplerTile == 0 ? 0.0 : *sum) + Weight(logits[i], scale);
  }
}

void Weights(const float* logits, size_t n, const WeightScale& scale, float* weights) {
  for (size_t i = 0; i < n; ++i) weights[i] = Weight(logits[i], scale);
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

}  // namespace

const SamplerKernels& ReferenceSamplerKernels() {
  static constexpr SamplerKernels kTable = {"reference", TileMax, TileSums,
                                            Weights,     Count,   Collect};
  return kTable;
}

}  // namespace flotilla::cpu
