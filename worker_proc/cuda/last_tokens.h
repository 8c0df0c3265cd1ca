// What each slot sampled last, in the device's memory, where the next step's embedding reads it. Of
// several ranks rank 0 samples and shares: then all slots' tokens are on each rank's device, in the
// order of the steps, without the host.
//
// FollowingSampler is the other ranks' DeviceSampler: it draws nothing, and its steps' tokens are
// rank 0's.
//
// Shapes: [slots], int32; -1: logits that were not finite. Units: tokens. Threads: the rank's.
// Ownership: device and gather outlive both. Errors: ResourceExhausted from Create; whether the
// others came is the gather's to say.
#pragma once

#include <memory>

#include "worker_proc/cuda/cuda_gather.h"
#include "worker_proc/cuda/cuda_tensor.h"
#include "worker_proc/cuda/graph/result_ring.h"
#include "worker_proc/runner/device_sampler.h"

namespace flotilla::cuda {

class LastTokens {
 public:
  // An exchange of so many slots' tokens.
  static uint64_t BytesOf(uint32_t num_slots);
  static StatusOr<std::unique_ptr<LastTokens>> Create(Device* device, CudaGather* gather,
                                                      uint32_t num_slots);

  int32_t* data() const { return tokens_.as<int32_t>(); }
  uint64_t bytes() const { return tokens_.bytes(); }
  // All ranks, at the end of each step that is begun; of one rank nothing happens.
  void Share() { gather_.Broadcast({&tensor_, 1, static_cast<uint32_t>(bytes() / sizeof(float))}); }
  // Whether the ring's oldest step is done; asked again and again by whoever waits for it.
  StatusOr<bool> Done(ResultRing* ring);

 private:
  LastTokens(DeviceBuffer tokens, CudaGather* gather)
      : tokens_(std::move(tokens)), tensor_{tokens_.data(), Element::kFloat32}, gather_(*gather) {}

  DeviceBuffer tokens_;
  CudaTensor tensor_;  // the tokens' bits
  CudaGather& gather_;
};

class FollowingSampler final : public DeviceSampler {
 public:
  static StatusOr<std::unique_ptr<FollowingSampler>> Create(Device* device,
                                                            LastTokens* last_tokens);
  Status Sample(Tensor logits, std::span<const SampleQuery> queries,
                std::span<int32_t> tokens) override;
  StatusOr<bool> Begin(Tensor logits, std::span<const SampleQuery> queries) override;
  StatusOr<bool> Done() override;
  Status Take(std::span<const SampleQuery> queries, std::span<int32_t> tokens) override;

 private:
  FollowingSampler(LastTokens* last_tokens, std::unique_ptr<ResultRing> ring)
      : last_tokens_(*last_tokens), ring_(std::move(ring)) {}

  LastTokens& last_tokens_;
  const std::unique_ptr<ResultRing> ring_;  // of all slots' tokens
};

}  // namespace flotilla::cuda
