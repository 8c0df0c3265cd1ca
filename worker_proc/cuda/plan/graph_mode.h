// Which part of a step is replayed from a graph: --graph-mode, and what "auto" makes of it
// (requirement 002, "Piecewise and Full graph").
//
// full: a whole step is one graph. piecewise: graphs between the attention layers, attention eager.
// full_decode_only: steps of decodes alone are graphs, others eager. full_and_piecewise: those are
// full, others piecewise. auto prefers full, then piecewise, then full_decode_only.
//
// Threads: any (pure). Errors: InvalidArgument naming the flag, for a forced mode that can't work.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "worker_proc/runner/forward_batch.h"

namespace flotilla::cuda {

enum class GraphMode : uint32_t {
  kAuto = 0,
  kNone,
  kPiecewise,
  kFull,
  kFullDecodeOnly,
  kFullAndPiecewise,
};
const char* GraphModeName(GraphMode mode);
StatusOr<GraphMode> ParseGraphMode(std::string_view name);

// What device, attention and collective allow.
struct GraphSupport {
  bool capture = false;           // the driver captures streams at all
  bool attention_mixed = false;   // attention of any step runs in a graph
  bool attention_decode = false;  // that of steps of decodes does
  bool pieces = false;            // the forward can be cut at its attention layers
  bool collective = true;         // the ranks' collective runs in a graph
};

struct GraphModeChoice {
  GraphMode mode = GraphMode::kNone;  // never kAuto
  std::string reason;                 // for the log
};
StatusOr<GraphModeChoice> ChooseGraphMode(GraphMode wanted, const GraphSupport& support);

// How a step of `step` runs, if a bucket has room for it.
enum class GraphKind : uint32_t { kEager = 0, kPiecewise = 1, kFull = 2 };
const char* GraphKindName(GraphKind kind);
GraphKind GraphKindOf(GraphMode mode, ForwardMode step);

}  // namespace flotilla::cuda
