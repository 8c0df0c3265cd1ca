#include "scheduler_proc/core/draft.h"

#include <algorithm>

namespace flotilla {
namespace {

constexpr int kWeight = 8;       // a token counts an eighth, those before it the rest
constexpr uint32_t kBlock = 32;  // tokens that are compared at once

bool HasToken(const int32_t* block, int32_t token) {
  int32_t found = 0;
  for (uint32_t i = 0; i < kBlock; ++i) found |= block[i] == token;
  return found != 0;
}

}  // namespace

uint32_t FindDraft(std::span<const int32_t> tokens, uint32_t distance) {
  const auto size = static_cast<uint32_t>(tokens.size());
  if (size <= kMinDraftMatch) return 0;
  const int32_t* const ids = tokens.data();
  const uint32_t last = size - 1;
  const uint32_t first =
      size > distance ? std::max(size - distance, kMinDraftMatch - 1) : kMinDraftMatch - 1;
  uint32_t best = 0, best_length = kMinDraftMatch - 1;
  for (uint32_t end = last; end > first;) {  // a match ends before `end`
    if (end >= first + kBlock && !HasToken(ids + end - kBlock, ids[last])) {
      end -= kBlock;
      continue;
    }
    const uint32_t at = --end;
    if (ids[at] != ids[last]) continue;
    const uint32_t most = std::min(kMaxDraftMatch, at + 1);
    uint32_t length = 1;
    while (length < most && ids[at - length] == ids[last - length]) ++length;
    if (length <= best_length) continue;
    best = at + 1;
    best_length = length;
    if (length == kMaxDraftMatch) break;
  }
  return best;
}

void DraftRate::OnVerified(uint32_t drafted, uint32_t accepted) {
  int rate = permille_;
  for (uint32_t i = 0; i < accepted; ++i) rate += (1000 - rate + kWeight - 1) / kWeight;
  if (accepted < drafted) rate -= rate / kWeight;
  permille_ = static_cast<uint16_t>(rate);
}

uint32_t DraftLength(DraftRate rate, uint32_t most, double least) {
  uint32_t length = 0;
  for (double right = rate.value(); length < most && right > least; right *= rate.value()) ++length;
  return length;
}

double DraftGain(DraftRate rate, uint32_t length) {
  double gain = 0, right = 1;
  for (uint32_t i = 0; i < length; ++i) gain += right *= rate.value();
  return gain;
}

}  // namespace flotilla
