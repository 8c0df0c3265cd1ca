// A request's n and best_of: which choices are generated, with which seeds, and what of them the
// client gets. The same in the router and in the engine.
//
// best_of candidates are generated, each a request of its own with one choice, and n are answered.
// Candidate 0 has the request's seed, so it is what n = 1 gives; candidate i has ChoiceSeed(seed,
// i), so it depends on neither n nor best_of. With best_of > n those with the highest mean logprob
// of their tokens are answered, the best as choice 0; of equal ones the earlier candidate comes
// first. Only candidate 0 computes prompt logprobs: they are the prompt's, so the same for all.
//
// Threads: one at a time. Errors: none; callers have checked n and best_of.
// Source: OpenAI's API reference (best_of: "the highest log probability per token"); SplitMix64 of
// Steele, Lea, Flood, "Fast splittable pseudorandom number generators".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "flotilla/v1/engine.pb.h"

namespace flotilla {

inline constexpr int32_t kMaxChoices = 16;  // of n and best_of

// The seed of candidate `index`: 0 has `seed` itself, i the i-th number that SplitMix64 draws from
// the state `seed`: z = seed + i * 0x9e3779b97f4a7c15; z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
// z = (z ^ z >> 27) * 0x94d049bb133111eb; z ^ z >> 31; all modulo 2^64.
uint64_t ChoiceSeed(uint64_t seed, size_t index);

struct ChoiceOptions {
  size_t num_choices = 1;      // n
  size_t num_candidates = 1;   // best_of
  bool hide_logprobs = false;  // they are computed to rank by, nobody asked for them
  bool prompt_first = false;   // prompt logprobs must be complete before any choice begins

  bool ranked() const { return num_candidates > num_choices; }
};
ChoiceOptions ChoicesOf(const v1::GenerateRequest& request);

// The request of candidate `index` alone. `request` has its seed.
v1::GenerateRequest ChoiceRequest(const v1::GenerateRequest& request, size_t index);

// Joins the candidates' deltas into what the client gets of the n choices.
class ChoiceMerger {
 public:
  explicit ChoiceMerger(const ChoiceOptions& options)
      : options_(options), candidates_(options.num_candidates) {}

  // Appends to *out what can go on now: prompt logprobs in deltas without a choice, then choices
  // with their index; `last` is the choice's, and usage and timing are told by the methods below.
  // Of one candidate, `delta` itself. `delta` has no error.
  void Add(size_t candidate, v1::Delta&& delta, std::vector<v1::Delta>* out);

  bool done() const { return num_ended_ == candidates_.size(); }
  // Memory of deltas that wait for others; with best_of also of those that were given at the end.
  uint64_t kept_bytes() const { return kept_bytes_; }
  // Of all candidates that have ended: the prompt's tokens once, of its cached tokens those that no
  // candidate computed, every token generated.
  const v1::Usage& usage() const { return usage_; }
  // Of the candidate that ended last; null if none told it.
  const v1::Timing* timing() const { return timing_.has_value() ? &*timing_ : nullptr; }

 private:
  struct Candidate {
    std::vector<v1::Delta> kept;
    double sum_logprobs = 0;
    size_t num_tokens = 0;

    double mean_logprob() const;
  };
  void TakeEnd(v1::Delta* delta);
  void Release(size_t candidate, size_t index, std::vector<v1::Delta>* out);
  std::vector<size_t> Best() const;

  const ChoiceOptions options_;
  std::vector<Candidate> candidates_;
  size_t num_ended_ = 0;
  bool prompt_done_ = false;
  uint64_t kept_bytes_ = 0;
  v1::Usage usage_;
  std::optional<v1::Timing> timing_;
};

}  // namespace flotilla
