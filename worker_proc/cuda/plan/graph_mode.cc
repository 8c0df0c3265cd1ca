#include "worker_proc/cuda/plan/graph_mode.h"

#include <array>
#include <utility>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

constexpr std::array<std::pair<GraphMode, const char*>, 6> kNames = {{
    {GraphMode::kAuto, "auto"},
    {GraphMode::kNone, "none"},
    {GraphMode::kPiecewise, "piecewise"},
    {GraphMode::kFull, "full"},
    {GraphMode::kFullDecodeOnly, "full_decode_only"},
    {GraphMode::kFullAndPiecewise, "full_and_piecewise"},
}};

// What keeps `mode` from working; empty: nothing.
std::string Obstacle(GraphMode mode, const GraphSupport& support) {
  if (mode == GraphMode::kNone) return "";
  const bool full = mode != GraphMode::kPiecewise;
  const bool piecewise = mode == GraphMode::kPiecewise || mode == GraphMode::kFullAndPiecewise;
  if (!support.capture) return "the device can't capture graphs";
  if (!support.collective) return "the collective of the ranks can't run in a graph";
  if (mode == GraphMode::kFull && !support.attention_mixed) {
    return "attention over prompts can't run in a graph";
  }
  if (full && !support.attention_decode) return "attention can't run in a graph";
  if (piecewise && !support.pieces) return "the forward can't be cut at its attention layers";
  return "";
}

}  // namespace

const char* GraphModeName(GraphMode mode) {
  for (const auto& [known, name] : kNames) {
    if (known == mode) return name;
  }
  return "unknown";
}

StatusOr<GraphMode> ParseGraphMode(std::string_view name) {
  for (const auto& [mode, known] : kNames) {
    if (name == known) return mode;
  }
  return absl::InvalidArgumentError(
      StrCat("--graph-mode: '", name,
             "' is not auto, none, piecewise, full, full_decode_only or full_and_piecewise"));
}

StatusOr<GraphModeChoice> ChooseGraphMode(GraphMode wanted, const GraphSupport& support) {
  if (wanted != GraphMode::kAuto) {
    const std::string obstacle = Obstacle(wanted, support);
    if (obstacle.empty()) return GraphModeChoice{wanted, "it was asked for"};
    return absl::InvalidArgumentError(
        StrCat("--graph-mode ", GraphModeName(wanted), ": ", obstacle, "; use auto"));
  }
  std::string reason;
  for (const GraphMode mode :
       {GraphMode::kFull, GraphMode::kPiecewise, GraphMode::kFullDecodeOnly}) {
    const std::string obstacle = Obstacle(mode, support);
    if (obstacle.empty()) {
      return GraphModeChoice{mode, reason.empty() ? "everything runs in a graph" : reason};
    }
    StrAppend(&reason, reason.empty() ? "" : "; ", "not ", GraphModeName(mode), ": ", obstacle);
  }
  return GraphModeChoice{GraphMode::kNone, reason};
}

const char* GraphKindName(GraphKind kind) {
  switch (kind) {
    case GraphKind::kEager:
      return "eager";
    case GraphKind::kPiecewise:
      return "piecewise";
    case GraphKind::kFull:
      return "full";
  }
  return "unknown";
}

GraphKind GraphKindOf(GraphMode mode, ForwardMode step) {
  CHECK(mode != GraphMode::kAuto);
  const bool decode = step == ForwardMode::kDecode;
  switch (mode) {
    case GraphMode::kPiecewise:
      return GraphKind::kPiecewise;
    case GraphMode::kFull:
      return GraphKind::kFull;
    case GraphMode::kFullDecodeOnly:
      return decode ? GraphKind::kFull : GraphKind::kEager;
    case GraphMode::kFullAndPiecewise:
      return decode ? GraphKind::kFull : GraphKind::kPiecewise;
    case GraphMode::kAuto:
    case GraphMode::kNone:
      break;
  }
  return GraphKind::kEager;
}

}  // namespace flotilla::cuda
