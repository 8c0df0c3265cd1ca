#include "worker_proc/cuda/step_metadata.h"

#include <cstring>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

constexpr size_t kAlignment = 16;
constexpr size_t kArrays = 6;

}  // namespace

Status StepMetadata::Reserve(const Backend::StepBounds& bounds) {
  const uint64_t tokens = bounds.max_tokens;
  const uint64_t seqs = bounds.max_seqs;
  const uint64_t pages = CeilDiv(bounds.max_positions, bounds.page_size);
  const uint64_t bytes = tokens * (sizeof(int32_t) + sizeof(uint32_t) + sizeof(int64_t)) +
                         (2 * seqs + 1 + seqs * pages) * sizeof(uint32_t) + kArrays * kAlignment;
  ASSIGN_OR_RETURN(memory_, device_.Allocate(bytes));
  packed_.reserve(bytes);
  return OkStatus();
}

// Returns where the values will be.
template <typename T>
const T* StepMetadata::Add(const std::vector<T>& values) {
  const size_t begin = (packed_.size() + kAlignment - 1) / kAlignment * kAlignment;
  packed_.resize(begin + values.size() * sizeof(T));
  CHECK(packed_.size() <= memory_.bytes());
  if (!values.empty())
    std::memcpy(packed_.data() + begin, values.data(), values.size() * sizeof(T));
  return reinterpret_cast<const T*>(memory_.data() + begin);
}

AttentionContext StepMetadata::Upload(const ForwardBatch& batch) {
  packed_.clear();
  AttentionContext context;
  context.num_tokens = batch.num_tokens;
  context.num_seqs = batch.num_seqs;
  context.input_ids = Add(batch.input_ids);
  context.positions = Add(batch.positions);
  context.slot_mapping = Add(batch.out_cache_loc);
  context.cu_q_lens = Add(batch.cu_q_lens);
  context.kv_lens = Add(batch.kv_lens);
  context.page_indices = Add(batch.page_indices);
  context.pages_per_seq = batch.pages_per_seq;
  device_.Upload(packed_.data(), packed_.size(), memory_.data());
  return context;
}

}  // namespace flotilla::cuda
