// How far one engine's logits are from the reference's, position by position and over a text.
//
// Units: nats. KL is that of the reference's distribution to the other's. Pure. Errors: DataLoss
// for logits that are not finite.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/status.h"

namespace flotilla::bench {

// Where the reference leads by more than this, another top-1 is more than a coin's toss.
inline constexpr double kDecidedMargin = 0.5;

struct PositionScore {
  double kl = 0;
  double margin = 0;  // by which the reference's top-1 leads
  bool same_top1 = false;
  bool has_next = false;  // the text goes on; `nll` is valid
  double nll = 0;         // of the text's next token, in the other's distribution
};
// Of rows of one length. next: the token that follows in the text; -1: none.
StatusOr<PositionScore> ScorePosition(std::span<const float> reference,
                                      std::span<const float> logits, int32_t next);

struct QualityScore {
  uint64_t positions = 0;
  uint64_t same_top1 = 0;
  uint64_t decided = 0;  // positions with a margin over kDecidedMargin
  uint64_t decided_same_top1 = 0;
  uint64_t predicted = 0;  // positions that have a next token
  double sum_kl = 0;
  double max_kl = 0;
  double sum_nll = 0;

  void Add(const PositionScore& position);
  double mean_kl() const;
  double perplexity() const;
};

}  // namespace flotilla::bench
