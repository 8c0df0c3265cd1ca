// StopMatcher against its definition, tried at every byte.
#include "detokenizer_proc/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace flotilla {
namespace {

std::optional<StopMatcher::Match> LongestEndingAt(const std::vector<std::string>& stops,
                                                  std::string_view text) {
  std::optional<StopMatcher::Match> best;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty() || !text.ends_with(stops[i])) continue;
    if (!best.has_value() || stops[i].size() > best->length)
      best = {static_cast<int32_t>(i), stops[i].size()};
  }
  return best;
}

size_t LongestOpenEnd(const std::vector<std::string>& stops, std::string_view text) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = std::min(stop.size(), text.size()); n > longest; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

TEST(StopMatcherTest, FindsWhatTheDefinitionFinds) {
  std::mt19937 random(41);
  const auto word = [&](uint32_t max) {
    std::string text;
    for (uint32_t n = random() % (max + 1); n > 0; --n) text.push_back("ab"[random() % 2]);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops(random() % 5);
    for (std::string& stop : stops) stop = word(6);
    const std::string text = word(60);
    StopMatcher matcher(stops);
    for (size_t i = 0; i < text.size(); ++i) {
      const auto match = matcher.Push(text[i]);
      const std::string_view seen(text.data(), i + 1);
      const auto expected = LongestEndingAt(stops, seen);
      ASSERT_EQ(match.has_value(), expected.has_value());
      if (match.has_value()) {
        ASSERT_EQ(match->index, expected->index);
        ASSERT_EQ(match->length, expected->length);
      }
      ASSERT_EQ(matcher.open_bytes(), LongestOpenEnd(stops, seen));
    }
  }
}

TEST(StopMatcherTest, EmptyAndInvalidStopStringsNeverMatch) {
  StopMatcher matcher({"", "\xff", "\xe2\x82"});
  for (char c : std::string("a\xe2\x82\xac\xff")) {
    EXPECT_FALSE(matcher.Push(c).has_value());
    EXPECT_EQ(matcher.open_bytes(), 0u);
  }
}

}  // namespace
}  // namespace flotilla
