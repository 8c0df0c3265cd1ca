// A model as a worker has it, alone on one instruction set, and the way its passes are timed.
//
// Units: seconds, tokens. Threads: one, and the backend's. Ownership: everything is the object's.
// Errors: those of ModelRunner::Create.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "worker_proc/bench/cpu_limits.h"
#include "worker_proc/bench/recording_backend.h"
#include "worker_proc/bench/roofline.h"
#include "worker_proc/cpu/cpu_options.h"
#include "worker_proc/runner/model_runner.h"

namespace flotilla::bench {

inline constexpr uint32_t kMaxChunk = 512;  // prompt tokens a step
inline constexpr uint32_t kMaxContext = 8192;

class BenchModel {
 public:
  // Loads the model, and runs a prompt of kMaxChunk tokens whose ops are recorded.
  static StatusOr<std::unique_ptr<BenchModel>> Create(const RooflineOptions& options,
                                                      const std::string& isa);

  const ModelConfig& config() const { return checkpoint_->config(); }
  const CpuBackendOptions& cpu() const { return cpu_; }
  const SamplerKernels& sampler_kernels() const { return *sampler_kernels_; }
  Backend& backend() { return *backend_; }
  RecordingBackend& recorder() { return *recorder_; }
  const std::vector<RecordedOp>& ops() const { return ops_; }
  uint32_t context() const { return context_; }

  // One step. Its ops' times are the recorder's.
  StatusOr<double> StepSeconds(const StepPlan& plan);

  // Runs `pass` in alternation with the limits, and adds the row with all but its limit. A pass
  // appends the seconds it took, or would have taken, by each of its slices.
  using Pass = std::function<Status(std::vector<double>* seconds)>;
  Status Measure(RooflineRow row, const Pass& pass, std::vector<RooflineRow>* rows);
  const Peaks& best_one() const { return best_one_; }
  const Peaks& best_all() const { return best_all_; }

  // What one token costs in a matrix, and, apart from that, its bytes.
  Work TokenWork(const LinearWeight& weight) const;
  AttentionShape ShapeOf(const AttentionLayer& layer) const;

 private:
  BenchModel() = default;
  Status Load(const RooflineOptions& options, const std::string& isa);
  Status RecordOps();
  // The compute threads sleep between steps; a step that is measured finds them awake.
  void WakeThreads();

  const RealClock clock_{};
  const Heartbeat heartbeat_{};
  std::unique_ptr<Checkpoint> checkpoint_;
  CpuBackendOptions cpu_;
  const SamplerKernels* sampler_kernels_ = nullptr;
  std::unique_ptr<Collective> collective_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<RecordingBackend> recorder_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<LimitMeter> meter_;
  std::vector<RecordedOp> ops_;
  Tensor wake_in_, wake_out_;  // WakeThreads' own: it leaves the model's tensors out of the caches
  uint32_t context_ = 0;
  uint32_t num_pages_ = 0;
  uint32_t min_passes_ = 0;
  double min_seconds_ = 0;
  Peaks best_one_, best_all_;
};

// Seconds that `run` takes.
template <typename F>
double SecondsOf(const F& run) {
  const int64_t start_ns = RealClock::Now();
  run();
  return static_cast<double>(RealClock::Now() - start_ns) * 1e-9;
}

// A pass of `count` calls that are alike, run(0) … run(count - 1), in slices of some calls that are
// short enough to be seldom interrupted. Appends for each slice what all calls would take.
template <typename F>
void RunSlices(size_t count, const F& run, std::vector<double>* seconds) {
  constexpr int64_t kSliceNs = kNsPerMs / 2;
  size_t first = 0;
  int64_t start_ns = RealClock::Now();
  for (size_t i = 0; i < count; ++i) {
    run(i);
    const int64_t now_ns = RealClock::Now();
    // The rest of a pass is no slice of its own unless it is all there is.
    if (now_ns - start_ns < kSliceNs && (i + 1 < count || first > 0)) continue;
    seconds->push_back(static_cast<double>(now_ns - start_ns) * 1e-9 * static_cast<double>(count) /
                       static_cast<double>(i + 1 - first));
    first = i + 1;
    start_ns = RealClock::Now();
  }
}

// The rows of a report, each in alternation with the limits.
Status AddMatrixRows(BenchModel* model, std::vector<RooflineRow>* rows);
Status AddFormatRows(BenchModel* model, std::span<const std::string> formats,
                     std::vector<RooflineRow>* rows);
Status AddNormRow(BenchModel* model, std::vector<RooflineRow>* rows);
Status AddSamplerRows(BenchModel* model, std::vector<RooflineRow>* rows);
Status AddForwardRows(BenchModel* model, std::vector<RooflineRow>* rows);
// Last: it makes another KV cache, with which the runner can't go on.
Status AddAttentionRows(BenchModel* model, std::vector<RooflineRow>* rows);

}  // namespace flotilla::bench
