// libFuzzer: any bytes as a safetensors file, and, if they begin with '{', as a config.json. What
// parses lies within the file; what is taken as a config keeps the bounds that the model relies on.
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/checkpoint/hf_config.h"
#include "common/checkpoint/safetensors.h"

namespace flotilla {
namespace {

void FuzzFile(std::span<const uint8_t> bytes) {
  const StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(bytes);
  if (!file.ok()) return;
  uint64_t total = 0;
  std::vector<float> row;
  for (const TensorView& tensor : file->tensors()) {
    CHECK(tensor.rows > 0 && tensor.cols > 0 && !tensor.name.empty());
    CHECK(tensor.data.size() == tensor.rows * tensor.row_bytes());
    CHECK(tensor.data.data() >= bytes.data() &&
          tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size());
    total += tensor.data.size();
    row.resize(tensor.cols);
    const auto read = [&](const TensorView& matrix) {
      DequantizeRows(matrix, 0, 1, row.data());
      DequantizeRows(matrix, matrix.rows - 1, matrix.rows, row.data());
    };
    if (tensor.dtype != DType::kF8E4M3) {
      read(tensor);
      continue;
    }
    for (const TensorView& factors : file->tensors()) {
      if (internal::MatrixOfFactors(factors.name) != tensor.name) continue;
      for (const internal::Fp8Config& config : {internal::Fp8Config{}, {2, 3}, {1, 1 << 20}}) {
        const StatusOr<ScaleGrid> grid = internal::MakeScaleGrid(config, tensor, factors);
        if (!grid.ok()) continue;
        TensorView scaled = tensor;
        scaled.scales = &*grid;
        read(scaled);
      }
    }
  }
  CHECK(total < bytes.size());
}

void FuzzConfig(std::string_view text) {
  const StatusOr<ModelConfig> config = internal::ReadHfConfig(text);
  if (config.ok()) CHECK_OK(internal::ReadHfFp8Config(text).status());
  if (!config.ok()) {
    CHECK(absl::IsInvalidArgument(config.status()) || absl::IsNotFound(config.status()));
    return;
  }
  CHECK(config->num_attention_heads % config->num_key_value_heads == 0);
  CHECK(uint64_t{config->num_attention_heads} * config->head_dim <= uint64_t{1} << 20);
  CHECK(config->head_dim % 2 == 0);
  CHECK(config->num_experts_per_tok <= config->num_experts && config->num_experts <= 1024);
  CHECK(config->rope_dim % 2 == 0 && config->rope_dim <= config->head_dim && config->rope_dim > 0);
  CHECK(config->rope_theta >= 1 && config->vocab_size > 0);
  CHECK(config->query_pre_attn_scalar > 0);
  CHECK(config->attn_logit_softcapping >= 0 && config->final_logit_softcapping >= 0);
  CHECK(config->rope_divisors.empty() || config->rope_divisors.size() == config->rope_dim / 2);
  for (const double divisor : config->rope_divisors) CHECK(divisor > 0 && std::isfinite(divisor));
  CHECK(config->rope_long_divisors.size() ==
        (config->rope_original_context == 0 ? 0 : config->rope_divisors.size()));
  CHECK(config->rope_magnitude > 0 && std::isfinite(config->rope_magnitude));
  CHECK(config->residual_multiplier > 0 && config->logits_scaling > 0);
  if (config->sliding_layers.empty()) return;
  CHECK(config->sliding_layers.size() == config->num_hidden_layers && config->sliding_window > 0);
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flotilla::FuzzFile({data, size});
  if (size > 0 && data[0] == '{') flotilla::FuzzConfig({reinterpret_cast<const char*>(data), size});
  return 0;
}
