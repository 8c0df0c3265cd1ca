#include "worker_proc/cuda/graph/step_metadata.h"

#include <algorithm>
#include <span>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

constexpr size_t kArrayAlignment = 16;

// Copies `values` and pads them with `padding` to `count`.
template <typename T>
void PutPadded(std::span<const T> values, size_t count, T padding, std::byte* out) {
  CHECK(values.size() <= count);
  T* const to = reinterpret_cast<T*>(out);
  std::copy(values.begin(), values.end(), to);
  std::fill(to + values.size(), to + count, padding);
}

}  // namespace

MetadataLayout::MetadataLayout(const PlanShape& shape, uint32_t pages)
    : bucket(shape), pages_per_seq(pages) {
  const auto place = [this](size_t size) {
    const size_t at = bytes;
    bytes += (size + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
    return at;
  };
  slot_mapping = place(sizeof(int64_t) * bucket.num_tokens);
  input_ids = place(sizeof(int32_t) * bucket.num_tokens);
  positions = place(sizeof(uint32_t) * bucket.num_tokens);
  kv_lens = place(sizeof(uint32_t) * bucket.num_seqs);
  cu_q_lens = place(sizeof(uint32_t) * (size_t{bucket.num_seqs} + 1));
  page_indices = place(sizeof(uint32_t) * bucket.num_seqs * pages_per_seq);
}

AttentionContext MetadataLayout::At(const std::byte* memory) const {
  AttentionContext context;
  context.num_tokens = bucket.num_tokens;
  context.num_seqs = bucket.num_seqs;
  context.slot_mapping = reinterpret_cast<const int64_t*>(memory + slot_mapping);
  context.input_ids = reinterpret_cast<const int32_t*>(memory + input_ids);
  context.positions = reinterpret_cast<const uint32_t*>(memory + positions);
  context.kv_lens = reinterpret_cast<const uint32_t*>(memory + kv_lens);
  context.cu_q_lens = reinterpret_cast<const uint32_t*>(memory + cu_q_lens);
  context.page_indices = reinterpret_cast<const uint32_t*>(memory + page_indices);
  context.pages_per_seq = pages_per_seq;
  return context;
}

size_t PackMetadata(const ForwardBatch& batch, const MetadataLayout& layout, std::byte* out) {
  const size_t tokens = layout.bucket.num_tokens;
  const size_t seqs = layout.bucket.num_seqs;
  CHECK(batch.pages_per_seq <= layout.pages_per_seq);
  PutPadded<int64_t>(batch.out_cache_loc, tokens, -1, out + layout.slot_mapping);
  PutPadded<int32_t>(batch.input_ids, tokens, 0, out + layout.input_ids);
  PutPadded<uint32_t>(batch.positions, tokens, 0, out + layout.positions);
  PutPadded<uint32_t>(batch.kv_lens, seqs, 0, out + layout.kv_lens);
  PutPadded<uint32_t>(batch.cu_q_lens, seqs + 1, batch.num_tokens, out + layout.cu_q_lens);
  const size_t entries = size_t{batch.num_seqs} * batch.pages_per_seq;
  std::copy_n(batch.page_indices.begin(), entries,
              reinterpret_cast<uint32_t*>(out + layout.page_indices));
  return layout.page_indices + entries * sizeof(uint32_t);
}

}  // namespace flotilla::cuda
