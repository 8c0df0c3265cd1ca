// What ranks on several hosts must have alike, and the flags that make a replica span them.
//
// Threads: any (pure). Ownership: values.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "worker_proc/comm/plan_link.h"
#include "worker_proc/runner/model_runner.h"

namespace flotilla {

struct RankConfigInputs {
  uint32_t tp = 1;
  std::string model_digest;
  std::string device;
  std::string dtype;
  std::string kv_cache_dtype;
  const ModelRunnerOptions* runner = nullptr;
};
RankConfig MakeRankConfig(const RankConfigInputs& inputs);

// The flags behind `inputs` that a proxy and a worker share.
void AddRunnerFlags(CLI::App* app, ModelRunnerOptions* runner);
void AddDigestFileFlag(CLI::App* app, std::string* path);

}  // namespace flotilla
