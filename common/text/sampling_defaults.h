// How a model's makers say that it is sampled best: a folder's generation_config.json, or the keys
// general.sampling.* of a .gguf file. It is what a request gets that does not say otherwise.
//
// Values are within what a request may say (proto/flotilla/v1/inference.proto); what is not, or is
// no number, is left out and named. Threads: pure. Source: vLLM's --generation-config, SGLang's
// --sampling-defaults, llama.cpp's keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/gguf.h"

namespace flotilla {

struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::vector<std::string> left_out;  // names

  bool any() const {
    return temperature || top_p || min_p || repetition_penalty || top_k || !left_out.empty();
  }
};

// The text of a generation_config.json, or "".
StatusOr<SamplingDefaults> ParseSamplingDefaults(std::string_view generation_config);
SamplingDefaults SamplingDefaultsOf(const GgufFile& gguf);

}  // namespace flotilla
