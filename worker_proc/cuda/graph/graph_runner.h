// Runs steps from CUDA graphs: captures one a bucket before the first step, replays the one that a
// step belongs to, and runs eager what has none (requirements 002 and 004).
//
// The forward is the caller's function: it enqueues a step's ops, reads their metadata through the
// context's device pointers, and calls PieceBreaker::Eager around each attention. Captured largest
// first, each after an eager run of the same shape; all share the caller's arena, which the largest
// has sized. When the budget allows fewer graphs than there are buckets, they are re-sampled
// (graph_budget.h).
//
// Every bucket's metadata lies at the same fixed address. A step writes it into one of three pinned
// slots and enqueues one copy, then the graph: the stream orders both behind the step before. A
// slot is written again when its copy is done, which an event says; with at most three steps in
// flight nobody waits for it.
//
// Units: tokens, bytes, ns. Threads: one. Ownership: everything in Deps outlives the runner; it
// owns its graphs. Errors: the device's and the forward's; after one the runner is of no use.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "worker_proc/cuda/graph/graph_api.h"
#include "worker_proc/cuda/graph/step_metadata.h"
#include "worker_proc/cuda/plan/graph_budget.h"
#include "worker_proc/cuda/plan/graph_mode.h"

namespace flotilla::cuda {

// Handed to the forward: `op` enqueues what can't be captured in pieces, attention. It is called at
// once and, for a piecewise graph, again in each replay, with that step's context.
class PieceBreaker {
 public:
  using Op = std::function<Status(const AttentionContext&)>;
  virtual ~PieceBreaker() = default;
  virtual Status Eager(Op op) = 0;
};
using GraphForward = std::function<Status(const AttentionContext&, PieceBreaker*)>;

struct GraphRunnerOptions {
  GraphMode mode = GraphMode::kNone;  // never kAuto
  std::vector<PlanShape> buckets;     // rising; GraphBuckets'
  GraphLimits limits;                 // of buckets
  PlanShape largest_step;             // what runs eager at most
  uint32_t pages_per_seq = 0;         // of the longest context
  bool trial = false;                 // to learn what graphs take: the log has little of it
};

// Since the start.
struct GraphStats {
  std::array<uint64_t, 3> steps = {};  // by GraphKind
  uint64_t tokens = 0;                 // of steps that were replayed
  uint64_t padding_tokens = 0;         // computed besides, for nothing
};

class GraphRunner {
 public:
  struct Deps {
    GraphApi* api = nullptr;
    const Clock* clock = nullptr;
    GraphForward forward;
    std::byte* metadata = nullptr;  // on the device, MetadataBytes(options) long
    // Before each run: brings what kernels read of the batch besides its metadata to where they
    // read it. bucket: of a graph, whose launches depend on it alone; null: eager. Empty: nothing.
    std::function<void(const ForwardBatch&, const PlanShape* bucket)> prepare = {};
    // Whether what follows is no step: an eager run of rows of nothing, or what is left of a
    // forward whose capture failed. Other ranks take no part in that. Empty: nobody wants to know.
    std::function<void(bool)> alone = {};
    // Until what was enqueued is done, with its errors. Empty: the api's.
    std::function<Status()> finish = {};
  };
  // Of the arena, for what kernels read of a step.
  static size_t MetadataBytes(const GraphRunnerOptions& options);
  // Runs the largest step once, then captures; logs each graph with its time and bytes.
  static StatusOr<std::unique_ptr<GraphRunner>> Create(const Deps& deps,
                                                       const GraphRunnerOptions& options);
  ~GraphRunner();
  GraphRunner(const GraphRunner&) = delete;
  GraphRunner& operator=(const GraphRunner&) = delete;

  // Enqueues a step; returns how it runs.
  StatusOr<GraphKind> Run(const ForwardBatch& batch);

  const std::vector<PlanShape>& buckets() const { return buckets_; }  // those with graphs
  GraphKind captured_kind(ForwardMode step) const { return GraphKindOf(options_.mode, step); }
  const GraphStats& stats() const { return stats_; }
  const GraphCosts& costs() const { return costs_; }

 private:
  class Recorder;
  // A graph, or what runs eager between two.
  struct Piece {
    std::optional<GraphExec> graph;
    PieceBreaker::Op op;
  };
  using Pieces = std::vector<Piece>;
  struct PinnedSlot {
    std::byte* memory = nullptr;
    DeviceEvent copied;
  };
  static constexpr size_t kSlots = 3;

  GraphRunner(const Deps& deps, const GraphRunnerOptions& options);
  Status AllocateSlots();
  void SetAlone(bool alone) const;
  Status RunPadding(const PlanShape& shape, bool of_graph);
  Status CaptureAll();
  // Captures buckets_[index] as each kind that the mode needs, and adds what it cost.
  Status CaptureBucket(size_t index);
  // Forgets the first `left` buckets, which have no graphs, but for `rest`.
  void Replace(size_t left, const std::vector<PlanShape>& rest);
  void Destroy(const Pieces& pieces);
  StatusOr<Pieces> Capture(GraphKind kind, const AttentionContext& context);
  // Puts the batch, padded to the layout's bucket, where its kernels read it. of_graph: they are
  // those of a graph of that bucket.
  Status Send(const ForwardBatch& batch, const MetadataLayout& layout, bool of_graph);
  Status RunEager(const ForwardBatch& batch);
  Status Replay(const Pieces& pieces, const AttentionContext& context);
  void Count(GraphKind kind, const ForwardBatch& batch, const PlanShape& bucket);

  const Deps deps_;
  const GraphRunnerOptions options_;
  std::vector<PlanShape> buckets_;
  // Of each of buckets_; a mode that has none of a kind has it empty.
  std::vector<Pieces> full_, piecewise_;
  size_t metadata_bytes_ = 0;
  std::array<PinnedSlot, kSlots> slots_;
  size_t next_slot_ = 0;
  GraphCosts costs_;
  GraphStats stats_;
};

}  // namespace flotilla::cuda
