// The replicas that answer now, by model, side by side in memory: what a pick reads of each.
//
// A pick looks at every replica of a model. What it asks of one lies all over its client, a cache
// miss each; here it is a row of a table. A client calls Touch when anything that its row shows has
// changed, and the row is made anew before the next look. What changes by the clock alone is no
// part of a row: circuits that are not closed, latencies that fade.
//
// Threads: the io thread. Ownership: members are borrowed, from Add to Remove. What Of and Find
// return holds until the next call of any method but Touch.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "router/base/model_handle.h"
#include "router/policy/policy.h"

namespace flotilla {

class ReplicaClient;

struct RosterRow {
  ReplicaView view;
  ReplicaClient* replica = nullptr;
  int64_t ready_ns = 0;     // since when it answers, CLOCK_MONOTONIC
  int64_t well_ns = 0;      // the same, or since when it has recovered
  uint64_t held_slots = 0;  // requests that room is held for
  bool ready = false;       // it takes new requests
  bool recovering = false;  // as ReplicaClient's
  bool full = false;        // as ReplicaClient's
  bool closed = false;      // its circuit is

  friend bool operator==(const RosterRow&, const RosterRow&) = default;
};

// A replica as the roster asks it.
class RosterMember {
 public:
  virtual ~RosterMember() = default;
  // Null: it does not answer.
  virtual const ModelHandle* answers_for() const = 0;
  virtual RosterRow row() = 0;  // its index never changes
};

class Roster {
 public:
  void Add(RosterMember* member);
  void Remove(RosterMember* member);
  void Touch(RosterMember* member) { touched_.insert(member); }

  // Those that have this model and its tokenizer, by index.
  std::span<const RosterRow> Of(const ModelHandle& model);
  // Null: it has another model, or does not answer.
  const RosterRow* Find(const ModelHandle& model, uint32_t index);

 private:
  struct Lane {
    std::string model, tokenizer_sha256;
    std::vector<RosterRow> rows;  // by index
    bool IsOf(const ModelHandle& handle) const {
      return handle.name == model && handle.tokenizer_sha256 == tokenizer_sha256;
    }
  };
  struct Place {
    Lane* lane = nullptr;  // null: in none
    uint32_t index = 0;    // of its row
  };
  // Null: nobody has it.
  Lane* LaneOf(const ModelHandle& model) const;
  void Enter(const RosterRow& row, const ModelHandle& model, Place* place);
  void Leave(Place* place);
  // Makes the row as its member is now.
  void Refresh(RosterMember& member, Place* place);
  // Whether each row is as its member, and those and no others have one that answer.
  bool IsCurrent() const;

  std::vector<std::unique_ptr<Lane>> lanes_;  // mostly one
  absl::flat_hash_map<RosterMember*, Place> places_;
  absl::flat_hash_set<RosterMember*> touched_;
};

}  // namespace flotilla
