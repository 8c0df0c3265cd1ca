// From rows of logits to tokens and what their logprobs are made of, where the logits are: the same
// token, whatever is asked for, as runner/sampler.h draws on the host from the same bits.
//
// Up to five kernels. AdjustLogits makes a copy of the rows that a mask, banned tokens, biases or
// penalties change. TopOfChunks and SumOfChunks share rows among blocks: the largest logit of each
// chunk, and the weights of each tile. SampleRows, a block a row, takes the token where the running
// sum of the weights, in order of id, exceeds the share `uniform` of the whole. SearchRows does so
// for rows that need the most likely tokens besides, which top-k and top-p leave or whose logprobs
// are asked for: from a sorted list of those near the largest, if that is short enough. A weight is
// a multiple of 2^-quantum_bits, kept as an integer, so no sum depends on an order and thresholds
// are exact (runner/sampler_kernels.h).
//
// Shapes: logits, adjusted [rows, vocab] float, dense. Units: tokens. Threads: the stream's.
// Errors: a row whose logits are not finite has `bad` set and no token. Source: ours.
#pragma once

#include "worker_proc/cuda/kernels/launch.h"

namespace flotilla::cuda {

inline constexpr uint32_t kMaxSampleVocab = 256 * 1024;
inline constexpr uint32_t kMaxSampleTop = 20;
inline constexpr uint32_t kNoTop = UINT32_MAX;
inline constexpr uint32_t kMaxSampleChunks = 32;
inline constexpr uint32_t kSampleTile = 256;  // tokens
inline constexpr uint32_t SampleTiles(uint32_t vocab) { return CeilDiv(vocab, kSampleTile); }

struct SamplePenalty {
  int32_t token = 0;
  float repetition = 1;  // a logit above 0 is divided by it, another multiplied
  float frequency = 0;   // taken off: the penalty times how often
  float presence = 0;    // taken off then
};
struct SampleBias {
  int32_t token = 0;
  float bias = 0;
};

// What one row is asked for.
struct SampleRow {
  uint32_t row = 0;    // of the logits
  int32_t slot = -1;   // whose last token it becomes; -1: nobody's
  int32_t given = -1;  // this token's logprob is asked for; -1: draw one
  uint32_t num_top =
      kNoTop;             // the most likely beside it, at most kMaxSampleTop; kNoTop: no logprob
  bool adjusted = false;  // any of the following
  bool has_mask = false;
  bool bans = false;           // the list that all rows have in common
  uint32_t mask = 0;           // words of `masks` before this row's
  uint32_t biases[2] = {};     // [begin, end) in `biases`, tokens differ
  uint32_t penalties[2] = {};  // the same

  bool greedy = true;
  uint32_t top_k = 0;  // 0: off
  float top_p = 1;     // of what min_p and top_k leave
  float min_p = 0;     // 0: off
  float to_log2 = 0;   // log2(e) / temperature
  double uniform = 0;  // [0, 1)

  // SetKind's: drawn by the weights of all tokens, or of all that min-p leaves; needs the most
  // likely ones, or to know how a token stands beside all.
  bool drawn_from_all = false;
  bool searches = false;
};
inline void SetKind(uint32_t vocab, SampleRow* row) {
  const bool drawn = row->given < 0 && !row->greedy;
  const bool cut = (row->top_k > 0 && row->top_k < vocab) || row->top_p < 1;
  row->drawn_from_all = drawn && !cut;
  row->searches = (drawn && cut) || row->num_top != kNoTop;
}

struct SampledRow {
  int32_t token = -1;
  uint32_t bad = 0;
  // With a logprob: of the raw logits.
  float max = 0;
  float logit = 0;    // the token's
  uint32_t rank = 0;  // 1: the most likely
  uint32_t num_top = 0;
  uint64_t total = 0;                // of all weights, temperature 1
  uint64_t top[kMaxSampleTop] = {};  // LikelihoodKeys (runner/candidates.h), in no order
};

struct SampleArgs {
  const float* logits = nullptr;
  float* adjusted = nullptr;
  uint32_t vocab = 0;
  int32_t quantum_bits = 0;
  const SampleRow* rows = nullptr;
  uint32_t num_rows = 0;
  const uint32_t* masks = nullptr;
  const int32_t* banned = nullptr;
  uint32_t num_banned = 0;
  const SampleBias* biases = nullptr;
  const SamplePenalty* penalties = nullptr;
  SampledRow* out = nullptr;
  // Rows are shared by so many blocks, at most kMaxSampleChunks. tops: [rows, 2, chunks]; sums:
  // [rows, SampleTiles(vocab)].
  uint32_t chunks = 1;
  uint64_t* tops = nullptr;
  uint64_t* sums = nullptr;
  int32_t* last_tokens = nullptr;  // of each slot; a row that is bad leaves -1
  // Whether there are rows that are adjusted, drawn from all, that search and that do not.
  bool any_adjusted = true;
  bool any_drawn = true;
  bool any_search = true;
  bool any_simple = true;
};

}  // namespace flotilla::cuda
