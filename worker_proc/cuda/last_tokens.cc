#include "worker_proc/cuda/last_tokens.h"

#include <utility>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

constexpr uint32_t kSlotsAtOnce = 4;  // the exchange moves packs of 16 bytes

}  // namespace

uint64_t LastTokens::BytesOf(uint32_t num_slots) {
  return uint64_t{CeilDiv(num_slots, kSlotsAtOnce)} * kSlotsAtOnce * sizeof(int32_t);
}

StatusOr<std::unique_ptr<LastTokens>> LastTokens::Create(Device* device, CudaGather* gather,
                                                         uint32_t num_slots) {
  const std::vector<std::byte> none(BytesOf(num_slots));
  ASSIGN_OR_RETURN(DeviceBuffer tokens, device->Allocate(none.size()));
  device->UploadAll(none, tokens);
  return std::unique_ptr<LastTokens>(new LastTokens(std::move(tokens), gather));
}

StatusOr<bool> LastTokens::Done(ResultRing* ring) {
  gather_.Look();
  ASSIGN_OR_RETURN(const auto results, ring->Poll());
  return results.has_value();
}

StatusOr<std::unique_ptr<FollowingSampler>> FollowingSampler::Create(Device* device,
                                                                     LastTokens* last_tokens) {
  ASSIGN_OR_RETURN(auto ring, ResultRing::Create(device->graphs(), last_tokens->bytes()));
  return std::unique_ptr<FollowingSampler>(new FollowingSampler(last_tokens, std::move(ring)));
}

// Of a step that waits for its end, the host shares the tokens.
Status FollowingSampler::Sample(Tensor /*logits*/, std::span<const SampleQuery> /*queries*/,
                                std::span<int32_t> /*tokens*/) {
  return absl::UnimplementedError("only rank 0 samples");
}

StatusOr<bool> FollowingSampler::Begin(Tensor /*logits*/,
                                       std::span<const SampleQuery> /*queries*/) {
  RETURN_IF_ERROR(ring_->BeginStep());
  last_tokens_.Share();
  RETURN_IF_ERROR(
      ring_->EndStep(reinterpret_cast<std::byte*>(last_tokens_.data()), last_tokens_.bytes()));
  return true;
}

StatusOr<bool> FollowingSampler::Done() { return last_tokens_.Done(ring_.get()); }

Status FollowingSampler::Take(std::span<const SampleQuery> queries, std::span<int32_t> tokens) {
  ASSIGN_OR_RETURN(const auto results, ring_->Poll());
  CHECK(results.has_value());
  const auto* const of_slots = reinterpret_cast<const int32_t*>(results->data());
  Status status = OkStatus();
  for (size_t i = 0; i < queries.size(); ++i) {
    tokens[i] = queries[i].given >= 0 ? queries[i].given : of_slots[queries[i].slot];
    if (tokens[i] < 0) status = absl::DataLossError("rank 0's logits are not finite");
  }
  ring_->Release();
  return status;
}

}  // namespace flotilla::cuda
