// One replica of a simulated fleet: continuous batching with chunked prefill, and a prefix cache,
// in as little as it takes to be like one.
//
// A step decodes a token of each running request and computes up to chunk_tokens of prompts, first
// come first served. It takes step_s plus something a token. Finished requests and system prompts
// stay cached, whole, until running requests or newer ones need the room (least recently used).
// What a running request shares with the cache counts twice.
//
// Units: seconds of virtual time, tokens. Threads: one. Source: ours; scheduler_proc/simulation has
// the real scheduler, for one replica.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <unordered_map>
#include <vector>

#include "router/simulation/fleet_workload.h"

namespace flotilla {

struct ReplicaCost {
  double step_s = 0.008;
  double prompt_token_s = 50e-6;
  double decode_token_s = 60e-6;
  uint32_t chunk_tokens = 2048;
  uint32_t max_running = 64;
  uint64_t kv_tokens = 200'000;
  uint32_t page_size = 16;
};

struct SimRequest {
  Turn turn;
  double arrival_s = 0;
  double submitted_s = 0;  // to the replica that has it
  uint32_t router = 0;
  uint32_t known_cached = 0;  // prompt tokens that the router knew of when it chose the replica
  uint32_t cached = 0;        // prompt tokens, read from the cache
  uint32_t computed = 0;      // prompt tokens in the KV cache, cached ones included
  uint32_t generated = 0;     // output tokens
  bool answered = false;      // the client has its first token

  // Its replica has lost it: what the client has is part of the prompt from now on.
  void Move() {
    turn.prompt_tokens += generated;
    turn.output_tokens -= generated;
    generated = computed = cached = known_cached = 0;
  }
};

class SimReplica {
 public:
  SimReplica(const ReplicaCost& cost, double slowdown) : cost_(cost), slowdown_(slowdown) {}

  // What a step brought, for who watches.
  struct StepResult {
    std::vector<SimRequest> first_tokens;
    std::vector<SimRequest> finished;
  };

  void Submit(const SimRequest& request);
  // Begins a step if there is work: its duration; else 0.
  double BeginStep();
  void EndStep(StepResult* result);
  // Everything is gone; its requests are appended.
  void Die(std::vector<SimRequest>* lost);

  // Prompt tokens of the turn that the cache holds.
  uint32_t Cached(const Turn& turn) const;
  uint64_t queued_tokens() const { return queued_tokens_; }
  uint64_t running_tokens() const { return running_tokens_; }
  bool stepping() const { return stepping_; }
  uint64_t work_tokens() const { return work_tokens_; }  // computed ever, prompt and output
  double busy_s() const { return busy_s_; }

 private:
  struct Entry {
    uint32_t tokens = 0;
    std::list<uint64_t>::iterator position;  // in order_
  };
  static uint64_t GroupKey(const Turn& turn) { return ~uint64_t{turn.group}; }
  void Admit();
  void Keep(uint64_t key, uint32_t tokens);
  void MakeRoom(uint64_t running_tokens);
  uint32_t FindEntry(uint64_t key) const;

  const ReplicaCost cost_;
  const double slowdown_;
  std::deque<SimRequest> waiting_;
  std::vector<SimRequest> running_;
  std::vector<uint32_t> chunks_;  // of the step, by running request; 0: it decodes
  bool stepping_ = false;
  uint64_t queued_tokens_ = 0, running_tokens_ = 0, work_tokens_ = 0;
  double busy_s_ = 0;

  std::unordered_map<uint64_t, Entry> cache_;  // by conversation, or ~group
  std::list<uint64_t> order_;                  // least recently used first
  uint64_t cached_tokens_ = 0;
};

}  // namespace flotilla
