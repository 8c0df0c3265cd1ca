// A step's metadata as one block of bytes, so that one copy brings it to the device: what a graph's
// kernels read through fixed pointers, lengths and positions included.
//
// Layout for a bucket of T tokens and S sequences, each array at a multiple of 16 bytes:
// slot_mapping [T] int64, input_ids [T] int32, positions [T] uint32, kv_lens [S] uint32, cu_q_lens
// [S + 1] uint32, page_indices uint32 with room for [S, pages_per_seq]. Padding: tokens have slot
// -1 (no write) and belong to no sequence, sequences have no queries and length 0. The page tables
// are as wide as the step's (attention's plan says where each begins), and only these are copied.
//
// Units: bytes, tokens, pages. Threads: any (pure). Errors: none; the step fits the bucket.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_proc/model/backend.h"
#include "worker_proc/runner/forward_batch.h"

namespace flotilla::cuda {

// Where the arrays of a bucket lie.
struct MetadataLayout {
  MetadataLayout(const PlanShape& bucket, uint32_t pages_per_seq);

  PlanShape bucket;
  uint32_t pages_per_seq = 0;
  size_t slot_mapping = 0;  // offsets
  size_t input_ids = 0;
  size_t positions = 0;
  size_t kv_lens = 0;
  size_t cu_q_lens = 0;
  size_t page_indices = 0;
  size_t bytes = 0;  // of all of it

  // The arrays at `memory`, as the bucket's kernels see them: its shape, not a step's.
  AttentionContext At(const std::byte* memory) const;
};

// Writes `batch`, padded, to `out` (layout.bytes long). Returns the bytes that must be copied.
size_t PackMetadata(const ForwardBatch& batch, const MetadataLayout& layout, std::byte* out);

}  // namespace flotilla::cuda
