// Finds stop strings in text that comes byte by byte: the match that ends first; of those that end
// together, the longest; of equal strings, the first of the list. So what is found does not depend
// on how the text is cut into tokens.
//
// Time: constant for each byte, whatever the stop strings; building: linear in their bytes. Empty
// strings and invalid UTF-8 never match. Threads: one at a time. Source: Aho and Corasick 1975.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace flotilla {

class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& stops);

  struct Match {
    int32_t index;  // of the stop string
    size_t length;  // bytes
  };
  // The match that ends with this byte.
  std::optional<Match> Push(char byte);
  // How many of the last bytes may be the beginning of a stop string (or, after a match that was
  // not acted on, are one).
  size_t open_bytes() const { return nodes_[state_].depth; }

 private:
  struct Node {
    uint32_t depth = 0;
    uint32_t fail = 0;   // node of the longest proper suffix
    int32_t match = -1;  // longest stop string that ends here
    uint32_t match_length = 0;
    std::vector<std::pair<uint8_t, uint32_t>> children;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t Child(uint32_t node, uint8_t byte) const;
  uint32_t Next(uint32_t node, uint8_t byte) const;
  void Add(const std::string& stop, int32_t index);
  void LinkSuffixes();

  std::vector<Node> nodes_;
  uint32_t state_ = 0;
};

}  // namespace flotilla
