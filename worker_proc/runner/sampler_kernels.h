// The passes over a row of logits that sampling and logprobs are made of: one table of functions an
// instruction set (worker_proc/cpu/sampler_kernels*), chosen once at start and given to the
// Sampler.
//
// All tables give the same bits, and no result depends on an order of summation: the weight of a
// logit is e^((logit - max) * inverse_temperature), by the polynomial of
// weight_numbers.h, rounded to a multiple of `quantum`, a power of two. Weights are at
// most 1 (exactly 1 at the largest logit), so a sum of them is exact in a double as long as the
// vocabulary divided by the quantum is at most 2^53.
//
// Units: a row is cut into tiles of kSamplerTile logits, the last of which may be shorter. Logits
// may be -inf (weight 0) but not NaN, after TileMax has said so. Threads: stateless; the caller
// owns all memory. Errors: none. Source: ours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flotilla {

inline constexpr size_t kSamplerTile = 256;

struct WeightScale {
  float max = 0;                  // the row's largest logit, finite
  float inverse_temperature = 1;  // > 0
  float quantum = 0;
};

struct SamplerKernels {
  const char* name;
  // The largest logit of each tile (a zero may have either sign). False: there is a NaN, and
  // tile_max is junk.
  bool (*tile_max)(const float* logits, size_t n, float* tile_max);
  // The sum of the weights of each tile.
  void (*tile_sums)(const float* logits, size_t n, const WeightScale& scale, double* sums);
  void (*weights)(const float* logits, size_t n, const WeightScale& scale, float* weights);
  // How many logits are at least `bound`.
  size_t (*count)(const float* logits, size_t n, float bound);
  // Which ones: their values, and first_token + their index, in order. Returns how many; there is
  // room for n.
  size_t (*collect)(const float* logits, size_t n, float bound, int32_t first_token, float* values,
                    int32_t* tokens);
  // out = the logits whose bit in `mask` is set (logit i in bit i % 32 of word i / 32), and -inf
  // for the others.
  void (*mask)(const float* logits, size_t n, const uint32_t* mask, float* out);
};

}  // namespace flotilla
