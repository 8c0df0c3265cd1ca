// random: each request that is tried is drawn among all that wait and were not tried in this round.
//
// The same seed and calls give the same draws. Threads: one. Ownership: as WaitingOrder. Errors:
// none. Source: SGLang's random policy (requirement 001); drawn as Fisher and Yates shuffle.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "scheduler_proc/core/waiting_order.h"

namespace flotilla {

class RandomOrder : public WaitingOrder {
 public:
  explicit RandomOrder(uint64_t seed) : state_(seed) {}
  void Add(Req* req) override {
    req->position = static_cast<uint32_t>(reqs_.size());
    reqs_.push_back(req);
  }
  void Remove(Req* req) override {
    Place(reqs_.back(), req->position);
    reqs_.pop_back();
  }
  void BeginRound() override { next_ = 0; }
  Req* Next() override {
    if (next_ == reqs_.size()) return nullptr;
    const size_t drawn = next_ + Below(reqs_.size() - next_);
    Req* req = reqs_[drawn];
    Place(reqs_[next_], drawn);
    Place(req, next_++);
    return req;
  }
  size_t size() const override { return reqs_.size(); }
  void Save(std::string* out) const override {
    WireWriter writer(out);
    writer.Put(state_);
    for (const Req* req : reqs_) writer.Put(req->seq);
  }
  Status Restore(WireReader* in, std::span<Req* const> waiting,
                 std::span<Req* const> /*elsewhere*/) override {
    state_ = in->Get<uint64_t>();
    std::vector<uint8_t> taken(waiting.size());
    for (size_t i = 0; i < waiting.size(); ++i) {
      const auto seq = in->Get<uint64_t>();
      const auto found = std::lower_bound(waiting.begin(), waiting.end(), seq,
                                          [](const Req* req, uint64_t s) { return req->seq < s; });
      if (found == waiting.end() || (*found)->seq != seq || taken[found - waiting.begin()]++) {
        return absl::DataLossError("random order");
      }
      Add(*found);
    }
    return OkStatus();
  }

 private:
  void Place(Req* req, size_t position) {
    reqs_[position] = req;
    req->position = static_cast<uint32_t>(position);
  }
  // SplitMix64's next number, scaled; what is lost in evenness is below 2^-32 for any queue.
  size_t Below(size_t bound) {
    uint64_t x = state_ += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return ((x >> 32) * bound) >> 32;
  }

  uint64_t state_;
  std::vector<Req*> reqs_;
  size_t next_ = 0;
};
static_assert(sizeof(RandomOrder) == 48);  // Save knows all of it

}  // namespace flotilla
