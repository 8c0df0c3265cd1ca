// The CUDA backend's graphs: which mode there can be, how many graphs, what they take, and a step
// by one of them (graph/graph_runner.h does the capturing).
//
// Ranks replay the same graphs or none: a padded step exchanges more rows than an eager one, and
// what a graph has captured of an exchange must still be how they exchange.
//
// Units: tokens, bytes. Threads: one. Ownership: everything in Deps outlives it. Errors: the
// device's, the forward's and the collective's; InvalidArgument: a --graph-mode that ranks can't
// have. Too little memory is none: fewer graphs then, or no graphs.
#pragma once

#include <functional>
#include <memory>

#include "common/base/clock.h"
#include "worker_proc/cuda/cuda_attention.h"
#include "worker_proc/cuda/cuda_backend.h"
#include "worker_proc/cuda/cuda_gather.h"
#include "worker_proc/cuda/graph/graph_runner.h"

namespace flotilla::cuda {

// What steps of this model are like.
struct GraphModel {
  Backend::StepBounds bounds;
  uint32_t num_layers = 0;
};

class CudaGraphs {
 public:
  struct Deps {
    Device* device = nullptr;
    CudaAttention* attention = nullptr;
    CudaGather* gather = nullptr;
    std::function<Status()> finish;  // until what was enqueued is done
  };
  CudaGraphs(Deps deps, const CudaBackendOptions& options)
      : deps_(std::move(deps)), options_(options) {}

  bool any() const { return runner_ != nullptr; }
  void Forget();
  // As Backend's, behind the gather's.
  Status ConnectRanks(Collective& collective);
  Status Prepare(const GraphModel& model, Collective& collective);
  // What Prepare will take, about. After a step.
  StatusOr<uint64_t> Measure(const GraphModel& model);

  // As Backend's RunForward. any().
  StatusOr<Tensor> Run(const ForwardBatch& batch, const Backend::Forward& forward);
  // A step that runs without this.
  void CountEager(const Backend::Forward& forward) {
    forward_ = forward;
    before_.eager += counts_ ? 1 : 0;
  }
  void BeginCounting() { counts_ = true; }
  // Within a forward of the runner's, whatever becomes of it. Cut: where that may be pieces of a
  // graph, `op` comes between two of them; else it runs at once.
  bool cuts() const { return pieces_ != nullptr; }
  void Cut(PieceBreaker::Op op);

  GraphSteps steps() const;
  uint64_t bytes() const { return metadata_.bytes(); }

 private:
  StatusOr<GraphRunnerOptions> OptionsOf(GraphMode mode, const GraphModel& model) const;
  StatusOr<std::unique_ptr<GraphRunner>> Capture(const GraphRunnerOptions& options);

  const Deps deps_;
  const CudaBackendOptions options_;
  const RealClock clock_;
  uint32_t ranks_ = 1;
  DeviceBuffer metadata_;
  uint64_t kept_bytes_ = 0;  // what Measure has said
  std::unique_ptr<GraphRunner> runner_;
  bool counts_ = false;       // no probe or warm-up
  GraphSteps before_;         // while there were no graphs, or others
  Backend::Forward forward_;  // the last step's
  // Within the runner's forward: how it is cut, and what went wrong there; and what it put out.
  PieceBreaker* pieces_ = nullptr;
  Status piece_error_ = OkStatus();
  Tensor hidden_;
};

}  // namespace flotilla::cuda
