// DeviceSampler on a CUDA device: queries are packed, brought there, answered by kernels/sample.h,
// and what comes back made into logprobs.
//
// Steps that are begun behind each other: results come through a ring of pinned memory on the copy
// stream (graph/result_ring.h); tokens stay where the next step's embedding reads them, and of
// several ranks come to all (last_tokens.h).
//
// Memory: for the largest tensor of logits when it is made, so that no call allocates on the
// device. Lists of biases and penalties longer than their room are cut into several launches.
// Units: tokens, rows. Threads: one. Ownership: device and last tokens outlive it. Errors: Create:
// ResourceExhausted.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "worker_proc/cuda/cuda_tensor.h"
#include "worker_proc/cuda/graph/result_ring.h"
#include "worker_proc/cuda/last_tokens.h"
#include "worker_proc/runner/device_sampler.h"

namespace flotilla::cuda {

class CudaSampler final : public DeviceSampler {
 public:
  static StatusOr<std::unique_ptr<CudaSampler>> Create(Device* device, LastTokens* last_tokens,
                                                       uint32_t max_rows, uint32_t vocab,
                                                       std::span<const int32_t> eos_ids);

  Status Sample(Tensor logits, std::span<const SampleQuery> queries,
                std::span<int32_t> tokens) override;
  StatusOr<bool> Begin(Tensor logits, std::span<const SampleQuery> queries) override;
  StatusOr<bool> Done() override;
  Status Take(std::span<const SampleQuery> queries, std::span<int32_t> tokens) override;

  uint64_t bytes() const { return bytes_; }

 private:
  CudaSampler(Device* device, LastTokens* last_tokens, uint32_t vocab)
      : device_(*device), last_tokens_(*last_tokens), vocab_(vocab) {}
  Status Allocate(uint32_t max_rows, std::span<const int32_t> eos_ids);
  // Every kernel once: what a device loads at a first use may wait for all that it was given.
  Status RunEachKernel();
  // False: its lists have no room beside those of the rows before.
  bool Pack(const SampleQuery& query);
  void PackBiases(std::span<const LogitBias> biases, std::span<const int32_t> banned);
  void ForgetPacked();
  void Launch(Tensor logits);  // what is packed, which is forgotten
  Status Take(const SampleQuery& query, const SampledRow& row, int32_t* token);
  Status TakeAll(std::span<const SampleQuery> queries, const SampledRow* rows,
                 std::span<int32_t> tokens);

  Device& device_;
  LastTokens& last_tokens_;
  const uint32_t vocab_;
  std::vector<int32_t> eos_ids_;  // within the vocabulary
  uint64_t bytes_ = 0;
  uint32_t list_room_ = 0;  // entries
  DeviceBuffer adjusted_, rows_, masks_, banned_, biases_, penalties_, out_;
  DeviceBuffer tops_, sums_;
  std::unique_ptr<ResultRing> ring_;  // of steps that were begun

  // Of the launch that is being packed.
  std::vector<SampleRow> packed_rows_;
  std::vector<uint32_t> packed_masks_;
  std::vector<SampleBias> packed_biases_;
  std::vector<SamplePenalty> packed_penalties_;
  std::vector<SampledRow> results_;
  std::vector<uint32_t> words_;
  std::vector<uint64_t> keys_;
};

}  // namespace flotilla::cuda
