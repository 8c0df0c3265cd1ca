// One step's input to the model (requirement 000: one registered structure with known leaves), the
// same for every backend. Built by PrepareBatch, read by Backend::BeginStep.
//
// T = num_tokens, S = num_seqs. Sequences are packed one after another: sequence s owns the tokens
// cu_q_lens[s] … cu_q_lens[s+1]-1, which are the last of its kv_lens[s] tokens; the kv_lens[s]
// minus that many before them are in the KV cache already (earlier chunks, a prefix hit). Backends
// that pad to buckets do it behind BeginStep: nothing here is padded.
//
// Threads: one writer, then const. Ownership: plain vectors, whose memory is reused step by step.
#pragma once

#include <cstdint>
#include <vector>

namespace flotilla {

enum class ForwardMode : uint32_t {
  kIdle = 0,    // no rows
  kExtend = 1,  // every row has more than one token, or starts a sequence
  kDecode = 2,  // every row has exactly one token after others
  kMixed = 3,   // both
};
const char* ForwardModeName(ForwardMode mode);

// A token whose logits are wanted.
struct LogitsRow {
  uint32_t token_index = 0;  // in [0, T): whose hidden state goes to the head
  uint32_t row = 0;          // in the plan: whose slot and sampling parameters
  uint32_t position = 0;     // of that token; its logits are about position + 1
  bool sample = false;       // draw the next token
  bool prompt_logprobs = false;
  int32_t target = -1;  // with prompt_logprobs: the token at position + 1; -1: unknown, no logprob

  bool has_prompt_logprob() const { return prompt_logprobs && target >= 0; }
};

// In input_ids: what the slot samples in a step that is still in flight. A backend whose sampler
// keeps it on the device puts it in (device_sampler.h); it is never kLastToken.
inline constexpr int32_t TokenOfSlot(uint32_t slot) { return -2 - static_cast<int32_t>(slot); }

struct ForwardBatch {
  ForwardMode mode = ForwardMode::kIdle;
  uint32_t num_tokens = 0;
  uint32_t num_seqs = 0;

  std::vector<int32_t> input_ids;      // [T], or TokenOfSlot
  std::vector<uint32_t> positions;     // [T] absolute, from 0
  std::vector<int64_t> out_cache_loc;  // [T] slot_mapping: page * page_size + offset; -1: no write
  std::vector<uint32_t> cu_q_lens;     // [S + 1] prefix sums of query lengths; cu_q_lens[0] = 0
  std::vector<uint32_t> kv_lens;       // [S] keys in all, the new ones included
  std::vector<uint32_t>
      page_indices;  // [S, pages_per_seq]; entries past a sequence's pages are junk
  uint32_t pages_per_seq = 0;

  std::vector<LogitsRow> logits_rows;  // in order of token_index
};

}  // namespace flotilla
