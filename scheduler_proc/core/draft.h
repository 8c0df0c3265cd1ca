// Speculative decoding without a second model: what a request repeats of its own text is drafted,
// and verified in one step (kRowVerify, shm/step_plan.h). The last tokens are looked for earlier in
// the sequence; what followed there is the draft. A step of a few tokens more takes little longer
// while it is the weights that take the time, so each token that was guessed right is nearly free;
// and since a token depends on the logits and its position alone, the output is the same.
//
// Units: tokens. Threads: any (pure). Source: prompt lookup decoding, vLLM's and SGLang's "ngram".
#pragma once

#include <cstdint>
#include <span>

namespace flotilla {

// A match is so long at least; of several the longest, up to so many tokens, and then the last.
inline constexpr uint32_t kMinDraftMatch = 3, kMaxDraftMatch = 12;
// So far back it is looked for, and by all who run together: what a step can spare (a microsecond
// for some hundred tokens, at the worst).
inline constexpr uint32_t kMaxDraftDistance = 16 * 1024;
inline constexpr uint32_t kMaxDraftDistanceOfAll = 32 * 1024;

// Where the draft of what follows begins in `tokens`; 0: among the last `distance` nothing like
// their end was there before.
uint32_t FindDraft(std::span<const int32_t> tokens, uint32_t distance);

// How often tokens of a request's drafts were right of late, in thousandths.
class DraftRate {
 public:
  double value() const { return permille_ / 1000.0; }
  // `accepted` of `drafted` tokens, from the first on, were sampled; one more was compared. Of a
  // draft that was not sent the first token is compared all the same.
  void OnVerified(uint32_t drafted, uint32_t accepted);

  // For snapshot.cc: all of it, in both directions.
  template <typename Archive, typename Self>
  static void Fields(Archive& field, Self& self) {
    field(self.permille_);
  }
  bool valid() const { return permille_ <= 1000; }

 private:
  static constexpr uint16_t kFirst = 600;
  uint16_t permille_ = kFirst;
};
static_assert(sizeof(DraftRate) == 2);  // Fields lists all of it

// How many tokens of a draft of `most` to verify: as many as are likelier right than `least`, the
// share of a token's time at which one more pays.
uint32_t DraftLength(DraftRate rate, uint32_t most, double least);
// How many of so many tokens should be right.
double DraftGain(DraftRate rate, uint32_t length);

}  // namespace flotilla
