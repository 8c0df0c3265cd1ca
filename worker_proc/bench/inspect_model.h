// `flotilla inspect` without --executables: what a model's file holds, and what a replica makes of
// it in memory. Nothing is loaded.
//
// Units: bytes, tokens. Threads: one. Errors: those of SizeModel.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "boost/json.hpp"
#include "worker_proc/bench/size.h"

namespace flotilla::bench {

struct TensorKind {
  uint64_t tensors = 0, parameters = 0, bytes = 0;
};

struct ModelReport {
  std::string path, digest;  // SHA-256 of the weights
  ModelConfig config;
  std::map<std::string, TensorKind> kinds;  // by the element's type: "Q4_1"
  ModelMemory memory;

  TensorKind all() const;
};
// options.model is a path; there are no dimensions.
StatusOr<ModelReport> InspectModelFile(const SizeModelOptions& options);

// kv_cache_memory: how many tokens that would hold.
std::string ModelReportText(const ModelReport& report, uint64_t kv_cache_memory);
boost::json::object ModelReportJson(const ModelReport& report);

}  // namespace flotilla::bench
