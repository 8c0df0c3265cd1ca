// `flotilla inspect`; --executables: what a worker prepares before its first step, with what one
// run of each costs here. Forward, logits and sampler are apart, as in requirement 000.
//
// A forward is run as large as its bucket, on contexts as short as can be; logits for some numbers
// of rows; the sampler for one row, greedily. Times are the best of a few runs.
//
// Units: seconds. Threads: the caller's and the backend's. Errors: those of loading a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/runner/padding_policy.h"

namespace flotilla::bench {

struct InspectOptions {
  std::string model;  // a path
  std::string isa = "auto";
  uint32_t threads = 0;  // 0: all cores that this process may use
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  PaddingOptions padding;
};

struct Executable {
  std::string kind;  // forward | logits | sampler
  std::string bucket;
  double seconds = 0;
};

StatusOr<std::vector<Executable>> ListExecutables(const InspectOptions& options);
std::string ExecutablesTable(const std::vector<Executable>& executables);

// The command; its exit code.
int InspectMain(int argc, char** argv);

}  // namespace flotilla::bench
