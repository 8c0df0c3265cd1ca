// The worker side of a replica, in threads over real segments: control block, step ring, result
// ring, and ranks that run a toy model with a real paged KV cache.
//
// The toy model: the next token is a hash of every token of the sequence, read back through the
// slot's page table, and of the seed if temperature > 0. A scheduler that mixes up pages, slots,
// positions or prefixes therefore gives other tokens than FakeNextToken() does.
//
// Kill() is a SIGKILL as the launcher would report it; Restart() the respawn. Threads: tests call
// from one thread; ranks run on their own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "shm/replica_control.h"
#include "shm/ring.h"
#include "shm/step_plan.h"
#include "shm/step_result.h"

namespace flotilla {

struct FakeModel {
  uint32_t vocab_size = 512;
  int32_t eos_id = 511;
  // Every eos_every-th position (by hash) gives eos_id, unless it is masked; 0: never.
  uint32_t eos_every = 0;
};

// What the toy model says after `tokens`.
int32_t FakeNextToken(const FakeModel& model, std::span<const int32_t> tokens,
                      const SamplingParams& sampling);
// The whole output for a prompt: until eos (included) or max_tokens.
std::vector<int32_t> FakeGenerate(const FakeModel& model, std::vector<int32_t> prompt,
                                  const SamplingParams& sampling, uint32_t max_tokens);
std::vector<int32_t> FakeGreedy(std::vector<int32_t> prompt, uint32_t max_tokens,
                                const FakeModel& model = {});
float FakeLogprob(int32_t token, uint32_t position);
// What the toy model makes of a prompt: four numbers that depend on every token and the pooling.
std::vector<float> FakeEmbedding(std::span<const int32_t> prompt, bool mean);

struct FakeReplicaOptions {
  uint32_t tp = 1;
  uint32_t num_pages = 256;
  uint32_t page_size = 16;
  uint32_t max_slots = 64;
  uint32_t context_length = 2048;
  FakeModel model;
  bool start = true;  // false: ranks are started by Restart()
};

class FakeReplica {
 public:
  explicit FakeReplica(const FakeReplicaOptions& options);
  ~FakeReplica();

  ReplicaControl& control() { return control_; }
  const Segment* step_ring() const { return &step_ring_; }
  const Segment* result_ring() const { return &result_ring_; }

  void Kill(uint32_t rank);
  void Restart(uint32_t rank);  // after Kill; also the first start

  // While held, rank 0 computes steps but does not answer.
  void Hold(bool held);
  // As Hold(true) once it has answered `steps` more steps; Hold(false) ends it.
  void HoldAfter(uint64_t steps);
  // The next `count` steps of rank 0 answer with this code instead.
  void FailSteps(uint32_t count, absl::StatusCode code) {
    fail_code_.store(static_cast<uint32_t>(code));
    fail_steps_.store(count);
  }
  // Every step that has this token among its input does, with DATA_LOSS and the row.
  void FailStepsWith(int32_t token) { fail_token_.store(token); }
  // Ranks that begin an epoch from now on say that they compute this.
  void SetProbeHash(uint64_t hash) { probe_hash_.store(hash); }
  uint64_t steps() const { return steps_.load(); }
  // Slots that are open on rank 0 (by its plans), after the last answered step.
  uint32_t open_slots() const { return open_slots_.load(); }
  // Plans rank 0 refused; must stay 0.
  uint64_t bad_plans() const { return bad_plans_.load(); }

 private:
  class Rank;
  bool WaitWhileHeld(const std::atomic<bool>& killed);

  const FakeReplicaOptions options_;
  ReplicaControl control_;
  Segment step_ring_;
  Segment result_ring_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<uint32_t> fail_steps_{0};
  std::atomic<uint32_t> fail_code_{0};
  std::atomic<int32_t> fail_token_{INT32_MIN};  // no token
  std::atomic<uint64_t> probe_hash_{0x5eed};
  std::atomic<uint64_t> steps_{0};
  std::atomic<uint32_t> open_slots_{0};
  std::atomic<uint64_t> bad_plans_{0};
  std::mutex mutex_;
  std::condition_variable released_;
  bool held_ = false;              // guarded by mutex_
  uint64_t hold_at_ = UINT64_MAX;  // guarded by mutex_
};

}  // namespace flotilla
