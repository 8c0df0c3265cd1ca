#include "worker_proc/comm/timed_collective.h"

#include <string>
#include <utility>

#include "common/base/metrics.h"

namespace flotilla {

TimedCollective::TimedCollective(std::unique_ptr<Collective> inner, const Clock* clock,
                                 prometheus::Registry* registry)
    : inner_(std::move(inner)), clock_(clock) {
  const auto add = [&](const char* kind) {
    return &AddHistogram(registry,
                         {"flotilla_worker_collective_seconds",
                          "One collective operation, waiting for the other ranks included.",
                          {{"kind", kind}, {"rank", std::to_string(inner_->rank())}}},
                         {1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 1});
  };
  all_reduce_ = add("all_reduce");
  all_gather_ = add("all_gather");
  gather_ = add("gather");
  broadcast_ = add("broadcast");
  barrier_ = add("barrier");
}

template <typename Operation>
Status TimedCollective::Timed(prometheus::Histogram* histogram, Operation operation) {
  const int64_t start_ns = clock_->NowNs();
  Status status = operation();
  histogram->Observe(static_cast<double>(clock_->NowNs() - start_ns) * 1e-9);
  return status;
}

Status TimedCollective::AllReduceSum(std::span<float> data) {
  return Timed(all_reduce_, [&] { return inner_->AllReduceSum(data); });
}
Status TimedCollective::AllGather(std::span<const std::byte> in, std::span<const size_t> counts,
                                  std::span<std::byte> out) {
  return Timed(all_gather_, [&] { return inner_->AllGather(in, counts, out); });
}
Status TimedCollective::Gather(std::span<const std::byte> in, std::span<const size_t> counts,
                               std::span<std::byte> out, uint32_t root) {
  return Timed(gather_, [&] { return inner_->Gather(in, counts, out, root); });
}
Status TimedCollective::Broadcast(std::span<std::byte> data, uint32_t root) {
  return Timed(broadcast_, [&] { return inner_->Broadcast(data, root); });
}
Status TimedCollective::Barrier() {
  return Timed(barrier_, [&] { return inner_->Barrier(); });
}

}  // namespace flotilla
