#include "detokenizer_proc/stop_matcher.h"

#include "common/base/utf8.h"

namespace flotilla {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) : nodes_(1) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (!stops[i].empty() && !FindInvalidUtf8(stops[i]).has_value())
      Add(stops[i], static_cast<int32_t>(i));
  }
  LinkSuffixes();
}

uint32_t StopMatcher::Child(uint32_t node, uint8_t byte) const {
  for (const auto& [label, child] : nodes_[node].children) {
    if (label == byte) return child;
  }
  return kNone;
}

uint32_t StopMatcher::Next(uint32_t node, uint8_t byte) const {
  while (true) {
    const uint32_t child = Child(node, byte);
    if (child != kNone) return child;
    if (node == 0) return 0;
    node = nodes_[node].fail;
  }
}

void StopMatcher::Add(const std::string& stop, int32_t index) {
  uint32_t node = 0;
  for (char c : stop) {
    const uint8_t byte = static_cast<uint8_t>(c);
    uint32_t child = Child(node, byte);
    if (child == kNone) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_[node].children.emplace_back(byte, child);
      nodes_.emplace_back();
      nodes_.back().depth = nodes_[node].depth + 1;
    }
    node = child;
  }
  if (nodes_[node].match < 0) {
    nodes_[node].match = index;
    nodes_[node].match_length = static_cast<uint32_t>(stop.size());
  }
}

// Breadth first: a node's suffix is shorter, so it is complete when the node is visited.
void StopMatcher::LinkSuffixes() {
  std::vector<uint32_t> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t node = order[i];
    for (const auto& [byte, child] : nodes_[node].children) {
      const uint32_t suffix = node == 0 ? 0 : Next(nodes_[node].fail, byte);
      nodes_[child].fail = suffix;
      if (nodes_[child].match < 0) {
        nodes_[child].match = nodes_[suffix].match;
        nodes_[child].match_length = nodes_[suffix].match_length;
      }
      order.push_back(child);
    }
  }
}

std::optional<StopMatcher::Match> StopMatcher::Push(char byte) {
  state_ = Next(state_, static_cast<uint8_t>(byte));
  const Node& node = nodes_[state_];
  if (node.match < 0) return std::nullopt;
  return Match{node.match, node.match_length};
}

}  // namespace flotilla
