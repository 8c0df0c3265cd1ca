// The parts of the BPE tokenizer: merging against a naive one, and special tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "common/text/bpe_merger.h"
#include "common/text/special_token_matcher.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;

// The definition, word for word.
std::vector<TokenId> MergeNaively(std::vector<TokenId> ids,
                                  const std::map<std::pair<TokenId, TokenId>, TokenId>& merged,
                                  const std::map<std::pair<TokenId, TokenId>, uint32_t>& rank) {
  while (true) {
    size_t best = ids.size();
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const std::pair pair(ids[i], ids[i + 1]);
      if (!rank.contains(pair)) continue;
      if (best == ids.size() || rank.at(pair) < rank.at({ids[best], ids[best + 1]})) best = i;
    }
    if (best == ids.size()) return ids;
    ids[best] = merged.at({ids[best], ids[best + 1]});
    ids.erase(ids.begin() + best + 1);
  }
}

TEST(BpeMergerTest, ShortAndLongWordsMergeAsDefined) {
  std::mt19937 random(17);
  for (int round = 0; round < 300; ++round) {
    BpeMerger merger;
    std::map<std::pair<TokenId, TokenId>, TokenId> merged;
    std::map<std::pair<TokenId, TokenId>, uint32_t> rank;
    TokenId next = 3;  // three letters, then what they merge to
    for (uint32_t r = 0; r < 24; ++r) {
      const std::pair<TokenId, TokenId> pair(random() % next, random() % next);
      if (rank.contains(pair)) continue;
      rank[pair] = r;
      merged[pair] = next;
      merger.Add(pair.first, pair.second, r, next++);
    }
    const size_t length = round % 2 == 0 ? random() % (BpeMerger::kShort + 1)
                                         : BpeMerger::kShort + 1 + random() % 300;
    std::vector<TokenId> word;
    for (size_t i = 0; i < length; ++i) word.push_back(random() % 3);
    const std::vector<TokenId> expected = MergeNaively(word, merged, rank);
    std::vector<TokenId> out = {99};
    merger.Apply(&word, &out);
    ASSERT_EQ(out[0], 99);
    ASSERT_EQ(std::vector<TokenId>(out.begin() + 1, out.end()), expected);
  }
}

TEST(BpeMergerTest, EqualRanksMergeFromTheLeft) {
  BpeMerger merger;  // runs of one letter: 2, 3 and 4 of it, all of one rank
  for (TokenId left = 1; left <= 3; ++left) {
    for (TokenId right = 1; left + right <= 4; ++right) merger.Add(left, right, 7, left + right);
  }
  for (size_t length : {5u, 10u, 200u}) {
    std::vector<TokenId> word(length, 1);
    std::vector<TokenId> out;
    merger.Apply(&word, &out);
    std::vector<TokenId> expected(length / 4, 4);
    if (length % 4 > 0) expected.push_back(static_cast<TokenId>(length % 4));
    EXPECT_EQ(out, expected) << length;
  }
}

TEST(SpecialTokenMatcherTest, FindsTheLongestFromLeftToRight) {
  SpecialTokenMatcher matcher;
  matcher.Add("<a>", 1);
  matcher.Add("<a><b>", 2);
  matcher.Add("<a><bcd>", 3);
  matcher.Add("b>", 4);
  const std::string text = "x<a<a><b><a><bc<a><bcd>b";
  std::vector<std::pair<size_t, TokenId>> found;
  for (size_t at = 0;;) {
    const auto match = matcher.Find(text, at);
    if (match.length == 0) break;
    found.emplace_back(match.begin, match.id);
    at = match.begin + match.length;
  }
  EXPECT_THAT(found, ElementsAre(std::pair(3u, 2), std::pair(9u, 1), std::pair(15u, 3)));
  EXPECT_EQ(matcher.Find(text, text.size()).begin, text.size());
  EXPECT_EQ(SpecialTokenMatcher().Find("abc", 0).begin, 3u);
}

}  // namespace
}  // namespace flotilla
