#include "worker_proc/bench/bench_batches.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace flotilla::bench {
namespace {

uint32_t PagesOf(uint32_t tokens) { return (tokens + kPageSize - 1) / kPageSize; }

// All pages of the sequences in a random order that is always the same.
std::vector<uint32_t> ShuffledPages(uint32_t count) {
  std::vector<uint32_t> pages(count);
  std::iota(pages.begin(), pages.end(), 0u);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(7));
  return pages;
}

}  // namespace

uint32_t PagesOf(std::span<const SequenceSize> sequences) {
  uint32_t pages = 0;
  for (const SequenceSize& sequence : sequences) pages += PagesOf(sequence.kv_tokens);
  return pages;
}

uint32_t TokensOf(std::span<const SequenceSize> sequences) {
  uint32_t tokens = 0;
  for (const SequenceSize& sequence : sequences) tokens += sequence.q_tokens;
  return tokens;
}

StepPlan MakePlan(std::span<const SequenceSize> sequences, uint32_t vocab_size) {
  StepPlan plan;
  plan.new_pages = ShuffledPages(PagesOf(sequences));
  std::mt19937 random(11);
  for (uint32_t slot = 0; slot < sequences.size(); ++slot) {
    const SequenceSize& sequence = sequences[slot];
    PlanOpen open;
    open.slot = slot;
    open.output_start = sequence.kv_tokens;
    open.sampling.temperature = 0;
    plan.opens.push_back(open);
    PlanRow row;
    row.slot = slot;
    row.start_pos = sequence.kv_tokens - sequence.q_tokens;
    row.num_tokens = sequence.q_tokens;
    row.num_new_pages = PagesOf(sequence.kv_tokens);
    row.flags = kRowSample;
    plan.rows.push_back(row);
    plan.closes.push_back(slot);
    for (uint32_t i = 0; i < sequence.q_tokens; ++i) {
      plan.input_ids.push_back(static_cast<int32_t>(random() % vocab_size));
    }
  }
  return plan;
}

ForwardBatch MakeBatch(std::span<const SequenceSize> sequences) {
  ForwardBatch batch;
  batch.num_seqs = static_cast<uint32_t>(sequences.size());
  batch.num_tokens = TokensOf(sequences);
  for (const SequenceSize& sequence : sequences) {
    batch.pages_per_seq = std::max(batch.pages_per_seq, PagesOf(sequence.kv_tokens));
  }
  const std::vector<uint32_t> pages = ShuffledPages(PagesOf(sequences));
  auto next = pages.begin();
  batch.input_ids.assign(batch.num_tokens, 0);
  batch.cu_q_lens.push_back(0);
  batch.page_indices.assign(size_t{batch.num_seqs} * batch.pages_per_seq, 0);
  for (uint32_t s = 0; s < batch.num_seqs; ++s) {
    const SequenceSize& sequence = sequences[s];
    uint32_t* const own = batch.page_indices.data() + size_t{s} * batch.pages_per_seq;
    const uint32_t count = PagesOf(sequence.kv_tokens);
    std::copy(next, next + count, own);
    next += count;
    for (uint32_t p = sequence.kv_tokens - sequence.q_tokens; p < sequence.kv_tokens; ++p) {
      batch.positions.push_back(p);
      batch.out_cache_loc.push_back(int64_t{own[p / kPageSize]} * kPageSize + p % kPageSize);
    }
    batch.cu_q_lens.push_back(batch.cu_q_lens.back() + sequence.q_tokens);
    batch.kv_lens.push_back(sequence.kv_tokens);
  }
  return batch;
}

ForwardBatch MakeFillBatch(uint32_t begin, uint32_t tokens, uint32_t max_positions) {
  ForwardBatch batch;
  batch.num_seqs = 1;
  batch.num_tokens = tokens;
  batch.input_ids.assign(tokens, 0);
  for (uint32_t i = begin; i < begin + tokens; ++i) {
    batch.positions.push_back(i % max_positions);
    batch.out_cache_loc.push_back(i);
  }
  batch.cu_q_lens = {0, tokens};
  batch.kv_lens = {tokens};
  return batch;
}

}  // namespace flotilla::bench
