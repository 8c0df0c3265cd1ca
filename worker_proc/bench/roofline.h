// `flotilla bench roofline`: the kernels of one model and its whole steps, each as a share of what
// this machine could do at most, which is measured in alternation with them.
//
// A kernel's pass goes once over all layers' matrices (or KV), from memory, as a step does. Long
// passes are timed in slices, of which the best and the median stand for the whole: others may use
// the machine. Times are those of all compute threads, through the backend's ops as a worker calls
// them.
//
// Units: seconds, tokens; shares are of 1. Threads: the caller's and the backend's. Errors: those
// of loading a model; ResourceExhausted where memory lacks. Source: ours.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/bench/roofline_model.h"

namespace flotilla::bench {

struct RooflineOptions {
  std::string model;         // a path
  std::string isa = "auto";  // auto: amx, avx512 and avx2, what the machine has
  uint32_t threads = 0;      // 0: all cores that this process may use
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  std::vector<std::string> formats;  // of synthetic matrices beside the model's own: "Q8_0"
  bool only_steps = false;           // no kernel alone
  bool quick = false;                // few passes: to see that it runs
};

struct RooflineRow {
  std::string kernel;            // gemm | gate_up | attention | norm_quantize | sampler | forward
  std::string name;              // "q+k+v Q4_1 960x576", "decode 64 x 2048"
  uint32_t tokens = 0;           // of a call
  std::vector<Work> works;       // of a pass, one after the other
  bool one_thread = false;       // computed by one
  Times seconds;                 // of a pass
  Limit limit;                   // of the same work, by the best peaks of the run
  Limit limit_beside;            // by those measured between this row's passes
  double tokens_per_second = 0;  // forward only
  std::vector<std::pair<std::string, double>> ops;  // forward only: shares of the step's time
  double share() const { return limit.seconds / seconds.best; }
};

struct RooflineReport {
  std::string isa;
  std::string backend;
  uint32_t threads = 0;
  Peaks one, all;  // the best of the whole run
  std::vector<RooflineRow> rows;
};

// The instruction sets that `isa` stands for. Error: InvalidArgument.
StatusOr<std::vector<std::string>> RooflineIsas(const std::string& isa);

StatusOr<RooflineReport> RunRoofline(const RooflineOptions& options, const std::string& isa);

}  // namespace flotilla::bench
