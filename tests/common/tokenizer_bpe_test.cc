// The parts of the BPE tokenizer: merging against a naive one, special tokens, pre-tokenizer rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "common/text/bpe_merger.h"
#include "common/text/pre_tokenizer.h"
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

std::vector<std::string> SplitBy(const char* name, std::string_view text) {
  auto pre_tokenizer = PreTokenizer::Create(name);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  std::vector<std::string_view> pieces;
  EXPECT_TRUE((*pre_tokenizer)->Split(text, &pieces).ok());
  return {pieces.begin(), pieces.end()};
}

TEST(PreTokenizerTest, Gpt2) {
  EXPECT_THAT(SplitBy("gpt-2", "I'll go  to\n\n x2024 !?  "),
              ElementsAre("I", "'ll", " go", " ", " to", "\n\n", " x", "2024", " !?", "  "));
}

TEST(PreTokenizerTest, SmollmCutsEachDigitFirst) {
  EXPECT_THAT(SplitBy("smollm", "a   12b ٣½"),
              ElementsAre("a", "   ", "1", "2", "b", " ", "٣", "½"));
  EXPECT_THAT(SplitBy("smollm", "a   b"), ElementsAre("a", "  ", " b"));
}

TEST(PreTokenizerTest, ListsTheKnownRules) {
  const auto unknown = PreTokenizer::Create("dbrx");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()),
              ::testing::AllOf(::testing::HasSubstr("'dbrx'"),
                               ::testing::HasSubstr("known: gpt-2, smollm")));
}

TEST(PreTokenizerTest, NoPieceIsLost) {
  std::mt19937 random(23);
  const std::vector<std::string> parts = {" ",      "  ",     "\n", "\t", "a", "Z",  "é",
                                          "'s",     "'",      "1",  "٣",  "!", "日", "😀",
                                          "\u180e", "\u00a0", "\v", "-",  "Ⅻ"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (uint32_t n = random() % 30; n > 0; --n) text += parts[random() % parts.size()];
    for (const char* name : {"gpt-2", "smollm"}) {
      std::string joined;
      for (const std::string& piece : SplitBy(name, text)) {
        ASSERT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

}  // namespace
}  // namespace flotilla
