// `flotilla size`: how much memory, how many replicas and which flags a load needs.
//
// A model's file is opened as a worker opens it, but nothing of it is loaded: its tensors say what
// the backend would make of them, and the model what its KV cache's pages are. Without a file the
// heads and layers can be given, and what the weights take.
//
// Units: tokens, bytes. Threads: one. Errors: InvalidArgument or NotFound naming the flag, those of
// OpenCheckpoint.
#pragma once

#include <cstdint>
#include <string>

#include "boost/json.hpp"
#include "common/base/status.h"
#include "common/checkpoint/model_config.h"
#include "worker_proc/bench/size_plan.h"

namespace flotilla::bench {

// A model without a file, as config.json has it; num_hidden_layers 0: there is a file.
struct ModelDimensions {
  uint32_t num_hidden_layers = 0;
  uint32_t num_attention_heads = 0;
  uint32_t num_key_value_heads = 0;
  uint32_t head_dim = 0;
  uint64_t weight_bytes = 0;  // of a replica; 0: not counted

  bool given() const { return num_hidden_layers > 0; }
};

struct SizeModelOptions {
  std::string model = "default";  // a path, or 'default'; not used with dimensions
  ModelDimensions dimensions;
  uint32_t tp = 1;
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  uint32_t page_size = 16;
  uint32_t context_length = 0;  // 0: the model's
};

struct SizedModel {
  ModelConfig config;
  ModelMemory memory;
};
StatusOr<SizedModel> SizeModel(const SizeModelOptions& options);

struct SizeReport {
  SizedModel model;
  SizeModelOptions options;
  SizeLoad load;
  ReplicaRate rate;
  SizePlan plan;

  bool by_dimensions() const { return options.dimensions.given(); }
};
std::string SizeText(const SizeReport& report);
boost::json::object SizeJson(const SizeReport& report);
// The flags of `serve` and `engine` that the plan comes to.
std::string SizeFlags(const SizeReport& report);

// output_tokens_per_second of what `flotilla bench offline --json` printed.
StatusOr<double> MeasuredOutputRate(const std::string& path);

// The command; its exit code.
int SizeMain(int argc, char** argv);

}  // namespace flotilla::bench
