// Float weights as GGUF's Q8_0: blocks of 32, a scale d in fp16 and an int8 each.
//
// d is max|x| / 127 rounded to the nearest fp16 (ties to even), a weight is x * (1 / d), in float,
// rounded to the nearest integer (ties away from zero) and held within ±127; where d is 0 all are.
// That is llama.cpp's rule but for the rounding of d, which comes first here, so that the integers
// fit the scale that is kept.
//
// Units: elements. Pure. Source: ours, after ggml.
#pragma once

#include <cstdint>
#include <span>

#include "common/checkpoint/checkpoint.h"
#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {

// A matrix of whole blocks.
inline bool CanBecomeQ8_0(const TensorView& view) {
  return view.rows > 1 && view.cols % kQuantBlock == 0;
}

// `values`: whole blocks. False where one is not finite, or too large for a scale in fp16; `blocks`
// is of no use then.
bool QuantizeQ8_0(std::span<const float> values, uint8_t* blocks);

}  // namespace flotilla::cpu
