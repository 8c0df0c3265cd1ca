// What the scheduler tells all ranks to do in one step (requirement 004: [method, args]).
//
// A plan is a delta: the worker keeps for each slot its page table and sampling state. kReset
// empties all slots (new epoch). kForward opens slots, runs rows, then closes slots. Frames are
// built by BuildStepPlan and read only through ParseStepPlan, which checks every count, slot,
// length, token and page once.
//
// Penalties need the whole sequence. The worker takes it from the rows it runs; what a slot's first
// row leaves out (a prefix hit) comes with the open as its history. Where the prompt ends and the
// output begins is said too, since after a retraction a row carries both.
//
// Overlap: a plan may be written while the one before still runs, so that a row's first token is
// not known yet. It then has kLastToken in its place, and the worker puts in what the slot sampled
// last.
//
// A row with kRowVerify goes on with more than one token, of which only the first is known: the
// others are a draft, a guess of what will be sampled (scheduler_proc/core/draft.h). A token is
// sampled after each for as long as it is the one that the draft goes on with, so one step may
// bring several tokens, the same ones as steps of one token. KV behind them is overwritten by later
// rows.
//
// A row with kRowMask samples only what its mask allows: a bit a token
// (scheduler_proc/core/grammar.h); with a draft it has one for each token of the row, which is that
// of the token sampled behind it. Masks are part of the plan, so that a plan says all by itself;
// docs/performance.md has the cost.
//
// Units: tokens, pages; positions are absolute in the sequence, from 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

inline constexpr uint32_t kStepPlanVersion = 8;
inline constexpr uint32_t kNoLogprobs = UINT32_MAX;
inline constexpr int32_t kLastToken =
    -1;  // in input_ids, a row's first: what its slot sampled last
inline constexpr uint32_t kMaxDraftTokens = 16;      // of a row
inline constexpr uint32_t kMaxLogitBias = 1024;      // tokens a slot
inline constexpr uint32_t kMaxPlanStopIds = 64;      // tokens a slot
inline constexpr float kMaxLogitBiasValue = 100.0f;  // either way, as OpenAI's
// Of repetition_penalty, which divides: a logit divided by less might be infinite.
inline constexpr float kMinRepetitionPenalty = 0.01f;
inline constexpr float kMaxPenalty = 2.0f;  // repetition; presence, frequency: either way

enum class StepCommand : uint32_t {
  kReset = 1,  // join the epoch, allocate num_pages if not yet done, run the probe, be ready
  kForward = 2,
  kShutdown = 3,
};

// As vLLM's SamplingParams, what the worker needs of it. Sampling is counter-based: the draw for
// the token at position p depends on (seed, p) only.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1]
  uint32_t top_k = 0;        // 0: off
  uint64_t seed = 0;
  uint32_t num_logprobs = kNoLogprobs;  // top-n beside each sampled token; kNoLogprobs: none at all
  uint32_t num_prompt_logprobs = kNoLogprobs;  // the same for prompt positions
  uint32_t min_tokens_until = 0;    // absolute position before which no token may be one that ends
                                    // the output: eos ids and the open's stop_ids (min_tokens)
  float presence_penalty = 0.0f;    // [-2, 2], of tokens in the output
  float frequency_penalty = 0.0f;   // [-2, 2], for each time a token is in the output
  float repetition_penalty = 1.0f;  // (0, 2], of tokens in prompt or output

  bool has_penalties() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
};

// Added to a token's logit.
struct LogitBias {
  int32_t token = 0;
  float bias = 0;  // [-100, 100]
};

// Gives the slot a fresh state (empty page table), even if it is still open: a plan may open again
// a slot that was never closed. A slot in closes is never also opened by the same plan.
struct PlanOpen {
  uint32_t slot = 0;
  uint32_t output_start = 0;  // position of the first output token: the prompt's length
  SamplingParams sampling;
  uint32_t num_logit_bias = 0;  // of the plan's logit_bias, by rising token, each once
  // Of the plan's history: the tokens at the positions 0 … num_history - 1. With penalties, at
  // least as many as the slot's first row has before its start_pos; without, none.
  uint32_t num_history = 0;
  uint32_t num_stop_ids = 0;  // of the plan's stop_ids
  uint32_t reserved = 0;      // 0
};

enum PlanRowFlags : uint32_t {
  kRowSample = 1,          // sample a token from the last position
  kRowPromptLogprobs = 2,  // logprobs of the tokens after each position of this row
  // Embeddings, of the final normed hidden states; neither goes with the others. A slot that is
  // pooled has all its rows from position 0 on pooled.
  kRowPoolMean = 4,  // add this row's to the slot's sum
  kRowEmbed = 8,     // tell the embedding: the sum's mean if pooled, else the last position's
  kRowMask = 16,     // with kRowSample: a mask says which tokens may be sampled
  // With kRowSample: the tokens after the first are a draft. No logprobs of the prompt go with it.
  kRowVerify = 32,
};

struct PlanRow {
  uint32_t slot = 0;
  uint32_t start_pos = 0;      // prefix length: KV before it is present
  uint32_t num_tokens = 0;     // ≥ 1, input_ids of this row
  uint32_t num_new_pages = 0;  // appended to the slot's page table before the forward (prefix pages
                               // of a cache hit come this way too)
  uint32_t flags = 0;
  int32_t next_token =
      -1;  // with kRowPromptLogprobs: the token after the last of this row; -1: none
};

// A plan has no more masks than requests may run and this, or it might not fit the ring; its masks
// are those of rows that sample and of their drafts.
inline constexpr uint32_t kSpareMasks = kMaxDraftTokens;

// Masks of the row.
constexpr uint32_t NumMasks(const PlanRow& row) {
  if ((row.flags & kRowMask) == 0) return 0;
  return (row.flags & kRowVerify) != 0 ? row.num_tokens : 1;
}

struct StepPlan {
  uint64_t step_id = 0;
  uint32_t epoch = 0;
  StepCommand command = StepCommand::kForward;
  uint32_t num_pages = 0;  // kReset: pages of the KV cache (0: keep the allocated ones)
  std::vector<PlanOpen> opens;
  std::vector<PlanRow> rows;
  std::vector<int32_t> input_ids;     // rows' tokens, or kLastToken first, concatenated
  std::vector<uint32_t> new_pages;    // rows' new pages, concatenated
  std::vector<uint32_t> closes;       // slots freed after the step
  std::vector<LogitBias> logit_bias;  // opens' biases, concatenated
  std::vector<int32_t> history;       // opens' histories, concatenated
  std::vector<int32_t> stop_ids;      // opens' stop_token_ids, concatenated; only with min_tokens
  // Of the rows with kRowMask: MaskWords(vocab_size) words for each token that may be sampled,
  // token t in bit t % 32 of word t / 32; concatenated.
  std::vector<uint32_t> masks;
};

// Words of a row's mask.
constexpr size_t MaskWords(uint32_t vocab_size) { return (size_t{vocab_size} + 31) / 32; }

// The bounds that a plan is checked against.
struct StepPlanLimits {
  uint32_t max_slots = 0;
  uint32_t max_tokens = 0;  // a step
  uint32_t num_pages = 0;
  uint32_t vocab_size = 0;
  uint32_t max_positions = 0;  // context length
};

void BuildStepPlan(const StepPlan& plan, std::string* frame);
// The frame without its rows' masks, for a rank that samples nothing; false: it has none, or is no
// plan.
bool DropMasks(std::string_view frame, std::string* without);
// Reuses *plan's memory. Errors: InvalidArgument naming the field.
Status ParseStepPlan(std::string_view frame, const StepPlanLimits& limits, StepPlan* plan);

}  // namespace flotilla
