// A Collective that a rank can step out of for a while: then its operations succeed at once, and
// what they should fill keeps what it holds. For a step whose values nobody wants, when other ranks
// may not be there.
//
// Threads: as the inner one, which it does not own. Errors: the inner one's.
#pragma once

#include "shm/collective.h"

namespace flotilla {

class SteppingOut final : public Collective {
 public:
  explicit SteppingOut(Collective* inner) : inner_(*inner) {}
  void set_out(bool out) { out_ = out; }

  uint32_t rank() const override { return inner_.rank(); }
  uint32_t size() const override { return inner_.size(); }
  Status AllReduceSum(std::span<float> data) override {
    return out_ ? OkStatus() : inner_.AllReduceSum(data);
  }
  Status AllGather(std::span<const std::byte> in, std::span<const size_t> counts,
                   std::span<std::byte> out) override {
    return out_ ? OkStatus() : inner_.AllGather(in, counts, out);
  }
  Status Gather(std::span<const std::byte> in, std::span<const size_t> counts,
                std::span<std::byte> out, uint32_t root) override {
    return out_ ? OkStatus() : inner_.Gather(in, counts, out, root);
  }
  Status Broadcast(std::span<std::byte> data, uint32_t root) override {
    return out_ ? OkStatus() : inner_.Broadcast(data, root);
  }
  Status Barrier() override { return out_ ? OkStatus() : inner_.Barrier(); }
  Status Reset(uint32_t epoch) override { return inner_.Reset(epoch); }

 private:
  Collective& inner_;
  bool out_ = false;
};

}  // namespace flotilla
