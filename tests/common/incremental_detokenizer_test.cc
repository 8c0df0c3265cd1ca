// Incremental pieces against Decode of everything, over a vocabulary of raw bytes.
#include "common/text/incremental_detokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/base/utf8.h"
#include "tests/fakes/byte_vocabulary.h"

namespace flotilla {
namespace {

using testing::ByteVocabulary;

TEST(IncrementalDetokenizerTest, PiecesJoinToDecodeAndNeverCutACharacter) {
  const ByteVocabulary vocabulary;
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::vector<TokenId> ids;
    for (uint32_t n = random() % 30; n > 0; --n) {
      // Mostly continuation and lead bytes, some ids out of range.
      const uint32_t kind = random() % 8;
      ids.push_back(kind < 3   ? static_cast<TokenId>(0x80 + random() % 0x40)
                    : kind < 6 ? static_cast<TokenId>(0xc0 + random() % 0x40)
                               : static_cast<TokenId>(random() % 270) - 3);
    }
    for (bool skip_special : {false, true}) {
      IncrementalDetokenizer detokenizer(&vocabulary, skip_special);
      std::string joined;
      for (TokenId id : ids) {
        const std::string piece = detokenizer.Push(id);
        ASSERT_EQ(FindInvalidUtf8(piece), std::nullopt);
        ASSERT_LE(detokenizer.held_back().size(), 3u);
        joined += piece;
      }
      joined += detokenizer.Finish();
      ASSERT_EQ(joined, vocabulary.Decode(ids, skip_special));
      ASSERT_TRUE(detokenizer.held_back().empty());
    }
  }
}

TEST(IncrementalDetokenizerTest, HoldsBackUntilTheCharacterIsWhole) {
  const ByteVocabulary vocabulary;
  IncrementalDetokenizer detokenizer(&vocabulary, false);
  EXPECT_EQ(detokenizer.Push(0xe2), "");
  EXPECT_EQ(detokenizer.Push(0x82), "");
  EXPECT_EQ(detokenizer.held_back(), "\xe2\x82");
  EXPECT_EQ(detokenizer.Push(0xac), "€");
  EXPECT_EQ(detokenizer.Push(0xe2), "");
  EXPECT_EQ(detokenizer.Push('x'), "\xef\xbf\xbdx");
  EXPECT_EQ(detokenizer.Push(0xf0), "");
  EXPECT_EQ(detokenizer.Finish(), "\xef\xbf\xbd");
  EXPECT_EQ(detokenizer.Finish(), "");
}

std::string PushAll(IncrementalDetokenizer* detokenizer, std::initializer_list<TokenId> ids) {
  std::string joined;
  for (TokenId id : ids) joined += detokenizer->Push(id);
  return joined;
}

TEST(IncrementalDetokenizerTest, ASkippedControlTokenDoesNotCutACharacter) {
  const ByteVocabulary vocabulary;
  IncrementalDetokenizer skipping(&vocabulary, true);
  EXPECT_EQ(PushAll(&skipping, {0xc3, 256, 0xa9}), "é");
  IncrementalDetokenizer showing(&vocabulary, false);
  EXPECT_EQ(PushAll(&showing, {0xc3, 256}), "\xef\xbf\xbd<|end|>");
}

}  // namespace
}  // namespace flotilla
