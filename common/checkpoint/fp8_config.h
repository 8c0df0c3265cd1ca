// What a model folder says of its matrices of 8-bit floats: config.json's quantization_config, and
// the factors that belong to each of them. Private to common/checkpoint, but for tests and fuzzing.
//
// Known are "fp8" (blocks of weight_block_size, or a factor a matrix), "compressed-tensors" of the
// format float-quantized and "modelopt" with FP8. Activations are never quantised here, whatever it
// says of them. Threads: pure functions. Errors: InvalidArgument naming the key or the tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/json_object.h"

namespace flotilla::internal {

struct Fp8Config {
  // Of what has one factor; 0: a row, or the matrix, as the factors' shape says.
  uint32_t block_rows = 0, block_cols = 0;
};
// config: the whole of config.json. None: the matrices are not quantised.
StatusOr<std::optional<Fp8Config>> ReadFp8Config(const JsonObject& config);

// "model.…q_proj.weight" of "model.…q_proj.weight_scale_inv" and "….weight_scale"; empty: it is no
// tensor of factors.
std::string_view MatrixOfFactors(std::string_view name);
// Factors of activations and of the KV cache, which are not quantised here.
bool IsUnusedFactor(std::string_view name);

StatusOr<ScaleGrid> MakeScaleGrid(const Fp8Config& config, const TensorView& matrix,
                                  const TensorView& factors);

}  // namespace flotilla::internal
