#include "worker_proc/cuda/graph/graph_runner.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "worker_proc/cuda/plan/graph_sizes.h"

namespace flotilla::cuda {
namespace {

// Where the forward runs without a graph, or within a full one.
class Uncut final : public PieceBreaker {
 public:
  explicit Uncut(const AttentionContext& context) : context_(context) {}
  Status Eager(Op op) override { return op(context_); }

 private:
  const AttentionContext& context_;
};

}  // namespace

// Cuts a capture in pieces: a graph ends before each eager op, and the next begins after it.
class GraphRunner::Recorder final : public PieceBreaker {
 public:
  Recorder(const GraphRunner* runner, const AttentionContext& context, Pieces* pieces)
      : runner_(*runner), api_(runner->deps_.api), context_(context), pieces_(pieces) {}

  Status BeginGraph() {
    const Status begun = api_->BeginCapture();
    captures_ = begun.ok();
    return begun;
  }
  Status Eager(Op op) override {
    if (!captures_) return OkStatus();  // it has failed, and has said so
    const Status status = NextPiece(std::move(op));
    if (!status.ok()) runner_.SetAlone(true);
    return status;
  }
  Status EndGraph() {
    if (!captures_) return OkStatus();
    captures_ = false;
    ASSIGN_OR_RETURN(const GraphExec graph, api_->EndCapture());
    pieces_->push_back({graph, nullptr});
    return OkStatus();
  }

 private:
  Status NextPiece(Op op) {
    RETURN_IF_ERROR(EndGraph());
    RETURN_IF_ERROR(op(context_));
    pieces_->push_back({std::nullopt, std::move(op)});
    return BeginGraph();
  }

  const GraphRunner& runner_;
  GraphApi* const api_;
  const AttentionContext& context_;
  Pieces* const pieces_;
  bool captures_ = false;
};

GraphRunner::GraphRunner(const Deps& deps, const GraphRunnerOptions& options)
    : deps_(deps), options_(options) {
  CHECK(options.mode != GraphMode::kAuto);
  if (options.mode != GraphMode::kNone) {
    buckets_ = Resample(options.buckets, options.limits.max_graphs);
  }
}

GraphRunner::~GraphRunner() {
  for (const std::vector<Pieces>* all : {&full_, &piecewise_}) {
    for (const Pieces& pieces : *all) Destroy(pieces);
  }
  for (const PinnedSlot& slot : slots_) {
    if (slot.copied.handle != nullptr) deps_.api->DestroyEvent(slot.copied);
    if (slot.memory != nullptr) deps_.api->FreePinned(slot.memory);
  }
}

StatusOr<std::unique_ptr<GraphRunner>> GraphRunner::Create(const Deps& deps,
                                                           const GraphRunnerOptions& options) {
  std::unique_ptr<GraphRunner> runner(new GraphRunner(deps, options));
  RETURN_IF_ERROR(runner->AllocateSlots());
  RETURN_IF_ERROR(
      Annotate(runner->RunPadding(options.largest_step, false), "warm-up of the largest step"));
  RETURN_IF_ERROR(Annotate(runner->CaptureAll(), "graphs"));
  return runner;
}

void GraphRunner::Destroy(const Pieces& pieces) {
  for (const Piece& piece : pieces) {
    if (piece.graph.has_value()) deps_.api->DestroyGraph(*piece.graph);
  }
}

size_t GraphRunner::MetadataBytes(const GraphRunnerOptions& options) {
  size_t bytes = MetadataLayout(options.largest_step, options.pages_per_seq).bytes;
  for (const PlanShape& bucket : options.buckets) {
    bytes = std::max(bytes, MetadataLayout(bucket, options.pages_per_seq).bytes);
  }
  return bytes;
}

Status GraphRunner::AllocateSlots() {
  metadata_bytes_ = MetadataBytes(options_);
  for (PinnedSlot& slot : slots_) {
    ASSIGN_OR_RETURN(slot.memory, deps_.api->AllocatePinned(metadata_bytes_));
    ASSIGN_OR_RETURN(slot.copied, deps_.api->NewEvent());
  }
  return OkStatus();
}

void GraphRunner::SetAlone(bool alone) const {
  if (deps_.alone) deps_.alone(alone);
}

// Rows of nothing: no slot is written, no key read. What libraries load or allocate at a first use
// is there afterwards, as a capture needs it.
Status GraphRunner::RunPadding(const PlanShape& shape, bool of_graph) {
  ForwardBatch nothing;
  nothing.cu_q_lens = {0};
  const MetadataLayout layout(shape, options_.pages_per_seq);
  const AttentionContext context = layout.At(deps_.metadata);
  RETURN_IF_ERROR(Send(nothing, layout, of_graph));
  Uncut uncut(context);
  SetAlone(true);
  Status status = deps_.forward(context, &uncut);
  if (status.ok()) {
    status = deps_.finish ? deps_.finish() : deps_.api->Synchronize(DeviceStream::kCompute);
  }
  SetAlone(false);
  return status;
}

Status GraphRunner::CaptureAll() {
  const int64_t begin_ns = deps_.clock->NowNs();
  full_.resize(buckets_.size());
  piecewise_.resize(buckets_.size());
  // Those not captured yet are buckets_[0 … left - 1].
  for (size_t left = buckets_.size(); left > 0; --left) {
    const GraphCosts before = costs_;
    const auto done = static_cast<uint32_t>(buckets_.size() - left + 1);
    if (const Status captured = CaptureBucket(left - 1); absl::IsResourceExhausted(captured)) {
      Log().warn("no memory for more graphs {} {} {}", Kv("captured", buckets_.size() - left),
                 Kv("of", buckets_.size()),
                 Kv("use", "a lower --gpu-memory-utilization or --cuda-graph-max-size"));
      Replace(left, {});
      break;
    } else {
      RETURN_IF_ERROR(captured);
    }
    const GraphCosts each{costs_.bytes - before.bytes, costs_.ns - before.ns};
    const size_t may = GraphsLeft(options_.limits, done, costs_, each);
    if (may >= left - 1) continue;
    // Of the rest as many as fit, spread over their sizes.
    Replace(left - 1, Resample(std::span(buckets_).first(left - 1), may));
    left = may + 1;
  }
  if (options_.trial) return OkStatus();
  Log().info("graphs captured {} {} {} {} {}", Kv("mode", GraphModeName(options_.mode)),
             Kv("graphs", buckets_.size()), Kv("of", options_.buckets.size()),
             Kv("seconds", static_cast<double>(deps_.clock->NowNs() - begin_ns) * 1e-9),
             Kv("bytes", costs_.bytes));
  return OkStatus();
}

void GraphRunner::Replace(size_t left, const std::vector<PlanShape>& rest) {
  const auto kept = static_cast<ptrdiff_t>(left);
  for (std::vector<Pieces>* all : {&full_, &piecewise_}) {
    std::for_each(all->begin(), all->begin() + kept, [&](const Pieces& p) { Destroy(p); });
    all->erase(all->begin(), all->begin() + kept);
    all->insert(all->begin(), rest.size(), Pieces());
  }
  buckets_.erase(buckets_.begin(), buckets_.begin() + kept);
  buckets_.insert(buckets_.begin(), rest.begin(), rest.end());
}

Status GraphRunner::CaptureBucket(size_t index) {
  const PlanShape bucket = buckets_[index];
  const int64_t begin_ns = deps_.clock->NowNs();
  ASSIGN_OR_RETURN(const DeviceMemoryInfo before, deps_.api->Memory());
  RETURN_IF_ERROR(RunPadding(bucket, true));
  const AttentionContext context =
      MetadataLayout(bucket, options_.pages_per_seq).At(deps_.metadata);
  const GraphKind decode = captured_kind(ForwardMode::kDecode);
  const GraphKind mixed = captured_kind(ForwardMode::kMixed);
  for (const auto& [kind, all] :
       {std::pair{GraphKind::kFull, &full_}, std::pair{GraphKind::kPiecewise, &piecewise_}}) {
    if (decode != kind && mixed != kind) continue;
    ASSIGN_OR_RETURN((*all)[index], Capture(kind, context));
  }
  RETURN_IF_ERROR(deps_.api->Synchronize(DeviceStream::kCompute));
  ASSIGN_OR_RETURN(const DeviceMemoryInfo after, deps_.api->Memory());
  const GraphCosts cost{before.free > after.free ? before.free - after.free : 0,
                        deps_.clock->NowNs() - begin_ns};
  costs_.bytes += cost.bytes;
  costs_.ns += cost.ns;
  Log().log(options_.trial ? spdlog::level::debug : spdlog::level::info,
            "graph captured {} {} {} {} {} {}", Kv("n", buckets_.size() - index),
            Kv("of", buckets_.size()), Kv("requests", bucket.num_seqs),
            Kv("tokens", bucket.num_tokens), Kv("seconds", static_cast<double>(cost.ns) * 1e-9),
            Kv("bytes", cost.bytes));
  return OkStatus();
}

StatusOr<GraphRunner::Pieces> GraphRunner::Capture(GraphKind kind,
                                                   const AttentionContext& context) {
  Pieces pieces;
  Recorder recorder(this, context, &pieces);
  Uncut uncut(context);
  PieceBreaker* const breaker = kind == GraphKind::kFull ? static_cast<PieceBreaker*>(&uncut)
                                                         : static_cast<PieceBreaker*>(&recorder);
  RETURN_IF_ERROR(recorder.BeginGraph());
  Status status = deps_.forward(context, breaker);
  SetAlone(false);
  status.Update(recorder.EndGraph());
  if (status.ok()) return pieces;
  Destroy(pieces);
  return status;
}

Status GraphRunner::Send(const ForwardBatch& batch, const MetadataLayout& layout, bool of_graph) {
  CHECK(layout.bytes <= metadata_bytes_);
  if (deps_.prepare) deps_.prepare(batch, of_graph ? &layout.bucket : nullptr);
  PinnedSlot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % kSlots;
  ASSIGN_OR_RETURN(const bool free, deps_.api->Done(slot.copied));
  if (!free) RETURN_IF_ERROR(deps_.api->Synchronize(DeviceStream::kCompute));
  const size_t bytes = PackMetadata(batch, layout, slot.memory);
  RETURN_IF_ERROR(
      deps_.api->CopyToDevice(deps_.metadata, slot.memory, bytes, DeviceStream::kCompute));
  return deps_.api->Record(slot.copied, DeviceStream::kCompute);
}

Status GraphRunner::RunEager(const ForwardBatch& batch) {
  const MetadataLayout layout({batch.num_tokens, batch.num_seqs}, options_.pages_per_seq);
  const AttentionContext context = layout.At(deps_.metadata);
  RETURN_IF_ERROR(Send(batch, layout, false));
  Uncut uncut(context);
  return deps_.forward(context, &uncut);
}

Status GraphRunner::Replay(const Pieces& pieces, const AttentionContext& context) {
  for (const Piece& piece : pieces) {
    RETURN_IF_ERROR(piece.graph.has_value() ? deps_.api->Launch(*piece.graph) : piece.op(context));
  }
  return OkStatus();
}

void GraphRunner::Count(GraphKind kind, const ForwardBatch& batch, const PlanShape& bucket) {
  ++stats_.steps[static_cast<size_t>(kind)];
  if (kind == GraphKind::kEager) return;
  stats_.tokens += batch.num_tokens;
  stats_.padding_tokens += bucket.num_tokens - batch.num_tokens;
}

StatusOr<GraphKind> GraphRunner::Run(const ForwardBatch& batch) {
  const PlanShape shape{batch.num_tokens, batch.num_seqs};
  const std::optional<size_t> bucket = GraphBucketOf(buckets_, shape);
  const GraphKind kind = bucket.has_value() ? captured_kind(batch.mode) : GraphKind::kEager;
  if (kind == GraphKind::kEager) {
    RETURN_IF_ERROR(RunEager(batch));
    Count(kind, batch, shape);
    return kind;
  }
  const MetadataLayout layout(buckets_[*bucket], options_.pages_per_seq);
  RETURN_IF_ERROR(Send(batch, layout, true));
  const Pieces& pieces = (kind == GraphKind::kFull ? full_ : piecewise_)[*bucket];
  RETURN_IF_ERROR(Replay(pieces, layout.At(deps_.metadata)));
  Count(kind, batch, layout.bucket);
  return kind;
}

}  // namespace flotilla::cuda
