// Which states of a rule's automaton have the same mask: those from which the next `depth` bytes go
// the same ways, if no token is longer. A string of at most 200 characters has 200 places, but most
// of them differ only in what happens far away.
//
// xgrammar's compiler takes the hash as the key of its cache of masks (cmake/xgrammar.patch), so
// that each mask is made once a grammar. Hashes are of 64 bits, and equal for equal ways only but
// for a chance of 2^-64 a pair. Threads: pure. Errors: none; an automaton with other edges than
// bytes has no such states. Source: ours; rounds of partition refinement (Moore), cut off.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace flotilla {

// Rule: xgrammar's CompactFSMWithStartEnd. By state.
template <typename Rule>
std::unordered_map<int, uint64_t> NearStates(const Rule& rule, size_t depth) {
  const auto mix = [](uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
    return hash ^ (hash >> 29);
  };
  std::unordered_set<int> reachable;
  rule.GetFsm().GetReachableStates({rule.GetStart()}, &reachable);
  const std::vector<int> states(reachable.begin(), reachable.end());
  std::unordered_map<int, uint32_t> places;  // in `states`
  for (uint32_t i = 0; i < states.size(); ++i) places[states[i]] = i;
  struct Way {
    uint64_t bytes = 0;
    uint32_t to = 0;
  };
  std::vector<Way> ways;
  std::vector<size_t> ends;  // of each state's ways
  std::vector<uint64_t> begin, hashes, next;
  for (const int state : states) {
    for (const auto& edge : rule.GetFsm().GetEdges(state)) {
      if (!edge.IsCharRange()) return {};
      ways.push_back({static_cast<uint64_t>(edge.min) << 32 | static_cast<uint32_t>(edge.max),
                      places.at(edge.target)});
    }
    ends.push_back(ways.size());
    begin.push_back(rule.IsEndState(state) ? 1 : 2);
  }
  next = hashes = begin;
  for (size_t round = 0; round < depth; ++round) {
    size_t way = 0;
    for (size_t i = 0; i < states.size(); ++i) {
      uint64_t sum = 0;  // in whatever order the automaton has them
      for (; way < ends[i]; ++way) sum += mix(mix(7, ways[way].bytes), hashes[ways[way].to]);
      next[i] = mix(begin[i], sum);
    }
    std::swap(hashes, next);
  }
  std::unordered_map<int, uint64_t> by_state;
  for (size_t i = 0; i < states.size(); ++i) by_state[states[i]] = hashes[i];
  return by_state;
}

}  // namespace flotilla
