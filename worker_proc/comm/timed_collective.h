// A Collective that measures another: seconds by kind of operation, as a metric. What the worker
// puts around the shared-memory collective.
//
// Threads: as the inner one, which it owns. Errors: the inner one's.
#pragma once

#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>

#include "common/base/clock.h"
#include "shm/collective.h"

namespace flotilla {

class TimedCollective final : public Collective {
 public:
  TimedCollective(std::unique_ptr<Collective> inner, const Clock* clock,
                  prometheus::Registry* registry);

  uint32_t rank() const override { return inner_->rank(); }
  uint32_t size() const override { return inner_->size(); }
  Status AllReduceSum(std::span<float> data) override;
  Status AllGather(std::span<const std::byte> in, std::span<const size_t> counts,
                   std::span<std::byte> out) override;
  Status Gather(std::span<const std::byte> in, std::span<const size_t> counts,
                std::span<std::byte> out, uint32_t root) override;
  Status Broadcast(std::span<std::byte> data, uint32_t root) override;
  Status Barrier() override;
  Status Reset(uint32_t epoch) override { return inner_->Reset(epoch); }

 private:
  template <typename Operation>
  Status Timed(prometheus::Histogram* histogram, Operation operation);

  const std::unique_ptr<Collective> inner_;
  const Clock* const clock_;
  prometheus::Histogram* all_reduce_;
  prometheus::Histogram* all_gather_;
  prometheus::Histogram* gather_;
  prometheus::Histogram* broadcast_;
  prometheus::Histogram* barrier_;
};

}  // namespace flotilla
