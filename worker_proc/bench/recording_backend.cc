#include "worker_proc/bench/recording_backend.h"

#include <algorithm>
#include <string_view>

namespace flotilla::bench {
namespace {

// "model.layers.3.self_attn.q_proj.weight" → "q"
std::string ShortName(std::string_view name) {
  for (const std::string_view suffix : {".weight", "_proj"}) {
    if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  }
  const size_t dot = name.rfind('.');
  return std::string(dot == std::string_view::npos ? name : name.substr(dot + 1));
}

void Join(const std::string& part, std::vector<std::string>* parts) {
  if (std::find(parts->begin(), parts->end(), part) == parts->end()) parts->push_back(part);
}

std::string JoinAll(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) StrAppend(&joined, joined.empty() ? "" : "+", part);
  return joined;
}

}  // namespace

MatrixSource RecordingBackend::Describe(std::span<const WeightRows> rows, uint64_t bytes) {
  std::vector<std::string> names, dtypes;
  for (const WeightRows& part : rows) {
    Join(ShortName(part.view->name), &names);
    Join(Traits(part.view->dtype).name, &dtypes);
  }
  return {JoinAll(names), JoinAll(dtypes), bytes};
}

}  // namespace flotilla::bench
