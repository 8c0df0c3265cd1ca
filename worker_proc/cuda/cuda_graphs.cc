#include "worker_proc/cuda/cuda_graphs.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/xxh64.h"
#include "worker_proc/cuda/plan/graph_sizes.h"

namespace flotilla::cuda {
namespace {

// With more, some sizes have no graph. A third of what an epoch has until its ranks are ready
// (scheduler_proc/loop/epoch_manager.h), or they would begin from nothing in each.
constexpr int64_t kMostCaptureNs = 20 * kNsPerSecond;

// Which sizes have graphs; of none it is nothing that another rank has.
uint64_t FingerprintOf(const GraphRunner* runner) {
  if (runner == nullptr) return 0;
  std::vector<uint32_t> sizes;
  for (const PlanShape& bucket : runner->buckets()) {
    sizes.insert(sizes.end(), {bucket.num_tokens, bucket.num_seqs});
  }
  return Xxh64(sizes.data(), sizes.size() * sizeof(sizes[0]));
}

}  // namespace

void CudaGraphs::Forget() {
  before_ = steps();
  runner_.reset();
}

Status CudaGraphs::ConnectRanks(Collective& collective) {
  ranks_ = collective.size();
  if (ranks_ == 1) return OkStatus();
  ASSIGN_OR_RETURN(const bool all_have_graphs, AllRanks(collective, any()));
  if (!all_have_graphs || !deps_.gather->may_be_captured()) Forget();
  return OkStatus();
}

StatusOr<GraphRunnerOptions> CudaGraphs::OptionsOf(GraphMode mode, const GraphModel& model) const {
  const Backend::StepBounds& bounds = model.bounds;
  GraphRunnerOptions options;
  options.mode = mode;
  ASSIGN_OR_RETURN(options.buckets,
                   GraphBuckets({.max_running_requests = bounds.max_seqs,
                                 .cuda_graph_sizes = options_.cuda_graph_sizes,
                                 .cuda_graph_max_size = options_.cuda_graph_max_size}));
  options.largest_step = {bounds.max_tokens, bounds.max_seqs};
  options.pages_per_seq = CeilDiv(bounds.max_positions, bounds.page_size);
  // A graph that is cut is one a layer.
  const bool cut = GraphKindOf(mode, ForwardMode::kMixed) == GraphKind::kPiecewise;
  options.limits.max_graphs =
      MaxGraphs({.num_layers = cut ? model.num_layers : 0, .comm_groups = ranks_ > 1 ? 1u : 0u});
  if (const DeviceMemoryInfo memory = deps_.device->memory(); memory.total > 0) {
    options.limits.max_bytes = std::max(memory.free / 2, kept_bytes_);
  }
  options.limits.max_ns = kMostCaptureNs;
  return options;
}

StatusOr<std::unique_ptr<GraphRunner>> CudaGraphs::Capture(const GraphRunnerOptions& options) {
  const size_t metadata_bytes = GraphRunner::MetadataBytes(options);
  if (metadata_.bytes() < metadata_bytes) {
    ASSIGN_OR_RETURN(metadata_, deps_.device->Allocate(metadata_bytes));
  }
  GraphRunner::Deps deps;
  deps.api = deps_.device->graphs();
  deps.clock = &clock_;
  deps.metadata = metadata_.data();
  deps.prepare = [this](const ForwardBatch& batch, const PlanShape* bucket) {
    options_.heartbeat.Beat();
    deps_.attention->BeginStep(&batch, bucket == nullptr ? std::nullopt : std::optional(*bucket));
  };
  deps.forward = [this](const AttentionContext& context, PieceBreaker* pieces) -> Status {
    pieces_ = pieces;
    piece_error_ = OkStatus();
    const StatusOr<Tensor> hidden = forward_(context);
    pieces_ = nullptr;
    RETURN_IF_ERROR(hidden.status());
    hidden_ = *hidden;
    RETURN_IF_ERROR(piece_error_);
    return deps_.attention->TakeError();
  };
  // Each rank captures by itself, as much as it can: none waits for another meanwhile.
  deps.alone = [this, trial = options.trial](bool alone) {
    deps_.gather->set_trial(alone || trial);
  };
  deps.finish = deps_.finish;
  deps_.gather->set_captured(true);  // whatever is exchanged before the first step
  auto runner = GraphRunner::Create(deps, options);
  deps_.gather->set_captured(false);
  return runner;
}

// Of the largest and the smallest, which are gone again: all of them take about as much.
StatusOr<uint64_t> CudaGraphs::Measure(const GraphModel& model) {
  if (options_.graph_mode == GraphMode::kNone) return uint64_t{0};
  const bool automatic = options_.graph_mode == GraphMode::kAuto;
  ASSIGN_OR_RETURN(GraphRunnerOptions options,
                   OptionsOf(automatic ? GraphMode::kFull : options_.graph_mode, model));
  const size_t all = std::min<size_t>(options.buckets.size(), options.limits.max_graphs);
  if (all == 0) return uint64_t{0};
  if (options.buckets.size() > 2)
    options.buckets = {options.buckets.front(), options.buckets.back()};
  options.trial = true;
  deps_.gather->set_trial(true);  // the ranks are not connected yet
  const StatusOr<std::unique_ptr<GraphRunner>> runner = Capture(options);
  deps_.gather->set_trial(false);
  RETURN_IF_ERROR(runner.status());
  const size_t captured = (*runner)->buckets().size();
  kept_bytes_ = captured == 0 ? 0 : (*runner)->costs().bytes / captured * all;
  return kept_bytes_;
}

// No graph waits for an exchange through the host, or by the library.
Status CudaGraphs::Prepare(const GraphModel& model, Collective& collective) {
  if (any()) return OkStatus();
  ASSIGN_OR_RETURN(const GraphModeChoice choice,
                   ChooseGraphMode(options_.graph_mode,
                                   {.capture = true,
                                    .attention_mixed = true,
                                    .attention_decode = true,
                                    .pieces = true,
                                    .collective = ranks_ == 1 || deps_.gather->may_be_captured()}));
  Log().info("graphs {} {}", Kv("mode", GraphModeName(choice.mode)), Kv("because", choice.reason));
  if (choice.mode == GraphMode::kNone) return OkStatus();
  ASSIGN_OR_RETURN(const GraphRunnerOptions options, OptionsOf(choice.mode, model));
  const uint32_t largest = options.buckets.empty() ? 0 : options.buckets.back().num_tokens;
  if (!options_.cuda_graph_sizes.empty() && options_.cuda_graph_sizes.back() > largest) {
    Log().warn("--cuda-graph-sizes: the larger ones are left out {} {}", Kv("above", largest),
               Kv("because", "of --max-running-requests or --cuda-graph-max-size"));
  }
  StatusOr<std::unique_ptr<GraphRunner>> captured = Capture(options);
  if (captured.ok()) {
    runner_ = std::move(*captured);
  } else if (absl::IsResourceExhausted(captured.status())) {
    Log().warn("no memory for graphs {} {}", Kv("use", "a lower --gpu-memory-utilization"),
               Kv("reason", std::string(captured.status().message())));
  } else {
    return captured.status();
  }
  if (ranks_ == 1) return OkStatus();
  const uint64_t mine = FingerprintOf(runner_.get());
  const StatusOr<std::vector<uint64_t>> all = OfAllRanks(collective, mine);
  if (all.ok() && std::count(all->begin(), all->end(), mine) == ranks_) return OkStatus();
  Forget();
  RETURN_IF_ERROR(all.status());
  Log().warn("graphs are given up {}", Kv("because", "ranks could capture different ones only"));
  return OkStatus();
}

StatusOr<Tensor> CudaGraphs::Run(const ForwardBatch& batch, const Backend::Forward& forward) {
  forward_ = forward;
  RETURN_IF_ERROR(runner_->Run(batch).status());
  return Tensor{hidden_.data, batch.num_tokens, hidden_.cols};
}

void CudaGraphs::Cut(PieceBreaker::Op op) { piece_error_.Update(pieces_->Eager(std::move(op))); }

GraphSteps CudaGraphs::steps() const {
  if (!any()) return before_;
  const GraphStats& stats = runner_->stats();
  const auto of = [&](GraphKind kind) { return stats.steps[static_cast<size_t>(kind)]; };
  return {before_.eager + of(GraphKind::kEager), before_.piecewise + of(GraphKind::kPiecewise),
          before_.full + of(GraphKind::kFull), before_.tokens + stats.tokens,
          before_.padding_tokens + stats.padding_tokens};
}

}  // namespace flotilla::cuda
