// GrammarMatcher::FollowGuess for matchers of tests, which are copied as easily as that.
#pragma once

#include <cstdint>
#include <span>

namespace flotilla::testing {

template <typename Matcher>
uint32_t FollowGuess(Matcher matcher, std::span<const int32_t> guess, std::span<uint32_t> masks) {
  const size_t words = masks.size() / (guess.size() + 1);
  uint32_t followed = 0;
  for (const int32_t token : guess) {
    if (!matcher.Accept(token).ok() || matcher.IsTerminated()) break;
    if (!matcher.FillMask(masks.subspan((followed + 1) * words, words)).ok()) break;
    ++followed;
  }
  return followed;
}

}  // namespace flotilla::testing
