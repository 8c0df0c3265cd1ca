#include "worker_proc/runner/token_history.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace flotilla {
namespace {

using Counts = std::map<int32_t, std::pair<uint32_t, uint32_t>>;

Counts CountsOf(const TokenHistory& history) {
  Counts counts;
  for (const TokenCount& count : history.counts()) {
    EXPECT_FALSE(counts.contains(count.token)) << "each token once";
    if (count.in_prompt + count.in_output > 0) {
      counts[count.token] = {count.in_prompt, count.in_output};
    }
  }
  return counts;
}

TEST(TokenHistoryTest, CountsPromptAndOutputApart) {
  TokenHistory history;
  history.Reset(4);
  history.Append(std::vector<int32_t>{5, 7, 5});
  history.Append(std::vector<int32_t>{9, 5, 9, 9});  // the last of the prompt, then output
  EXPECT_EQ(history.size(), 7u);
  EXPECT_EQ(CountsOf(history), (Counts{{5, {2, 1}}, {7, {1, 0}}, {9, {1, 2}}}));
  history.Truncate(5);
  EXPECT_EQ(CountsOf(history), (Counts{{5, {2, 1}}, {7, {1, 0}}, {9, {1, 0}}}));
  history.Truncate(1);
  EXPECT_EQ(CountsOf(history), (Counts{{5, {1, 0}}}));
  history.Truncate(3);
  EXPECT_EQ(history.size(), 1u) << "there is nothing to take away";
  history.Reset(0);
  EXPECT_EQ(history.size(), 0u);
  EXPECT_TRUE(CountsOf(history).empty());
  history.Append(std::vector<int32_t>{3});
  EXPECT_EQ(CountsOf(history), (Counts{{3, {0, 1}}}));
}

TEST(TokenHistoryTest, AnyAppendsAndTruncationsCountAsTheSequenceTheyLeave) {
  std::mt19937 random(3);
  TokenHistory history;
  for (int round = 0; round < 50; ++round) {
    const uint32_t output_start = random() % 30;
    history.Reset(output_start);
    std::vector<int32_t> sequence;
    for (int i = 0; i < 40; ++i) {
      if (random() % 3 == 0) {
        sequence.resize(random() % (sequence.size() + 1));
        history.Truncate(static_cast<uint32_t>(sequence.size()));
      } else {
        std::vector<int32_t> tokens(random() % 6);
        for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 9);
        sequence.insert(sequence.end(), tokens.begin(), tokens.end());
        history.Append(tokens);
      }
      Counts expected;
      for (size_t at = 0; at < sequence.size(); ++at) {
        auto& count = expected[sequence[at]];
        ++(at < output_start ? count.first : count.second);
      }
      ASSERT_EQ(CountsOf(history), expected);
      ASSERT_EQ(history.size(), sequence.size());
    }
  }
}

}  // namespace
}  // namespace flotilla
