#include "worker_proc/cuda/graph/step_metadata.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace flotilla::cuda {
namespace {

// Requirement 004's example of a prefix hit: A is new with 5 tokens, B has 2 of its 3 cached.
ForwardBatch Example() {
  ForwardBatch batch;
  batch.mode = ForwardMode::kExtend;
  batch.num_tokens = 6;
  batch.num_seqs = 2;
  batch.input_ids = {10, 11, 12, 13, 14, 22};
  batch.positions = {0, 1, 2, 3, 4, 2};
  batch.out_cache_loc = {0, 1, 2, 3, 4, 10};
  batch.cu_q_lens = {0, 5, 6};
  batch.kv_lens = {5, 3};
  batch.page_indices = {0, 1, 2, 7};
  batch.pages_per_seq = 2;
  return batch;
}

TEST(StepMetadataTest, PadsAndPlaces) {
  const MetadataLayout layout({8, 4}, 3);
  std::vector<std::byte> memory(layout.bytes, std::byte{0xee});
  const size_t copied = PackMetadata(Example(), layout, memory.data());
  EXPECT_EQ(copied, layout.page_indices + 2 * 2 * sizeof(uint32_t));
  EXPECT_LT(copied, layout.bytes);

  const AttentionContext context = layout.At(memory.data());
  EXPECT_EQ(context.num_tokens, 8u);
  EXPECT_EQ(context.num_seqs, 4u);
  EXPECT_EQ(context.pages_per_seq, 3u);
  const auto expect = [](const auto* actual, std::vector<int64_t> expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(static_cast<int64_t>(actual[i]), expected[i]) << i;
    }
  };
  expect(context.input_ids, {10, 11, 12, 13, 14, 22, 0, 0});
  expect(context.positions, {0, 1, 2, 3, 4, 2, 0, 0});
  expect(context.slot_mapping, {0, 1, 2, 3, 4, 10, -1, -1});
  expect(context.kv_lens, {5, 3, 0, 0});
  expect(context.cu_q_lens, {0, 5, 6, 6, 6});
  expect(context.page_indices, {0, 1, 2, 7});
}

TEST(StepMetadataTest, ArraysDoNotOverlapAndAreAligned) {
  for (const PlanShape bucket : {PlanShape{1, 1}, PlanShape{7, 3}, PlanShape{576, 64}}) {
    const MetadataLayout layout(bucket, 5);
    const size_t begins[] = {layout.slot_mapping, layout.input_ids, layout.positions,
                             layout.kv_lens,      layout.cu_q_lens, layout.page_indices};
    const size_t sizes[] = {8u * bucket.num_tokens,     4u * bucket.num_tokens,
                            4u * bucket.num_tokens,     4u * bucket.num_seqs,
                            4u * (bucket.num_seqs + 1), 20u * bucket.num_seqs};
    for (size_t i = 0; i < std::size(begins); ++i) {
      EXPECT_EQ(begins[i] % 16, 0u);
      const size_t next = i + 1 < std::size(begins) ? begins[i + 1] : layout.bytes;
      EXPECT_LE(begins[i] + sizes[i], next);
    }
  }
}

}  // namespace
}  // namespace flotilla::cuda
