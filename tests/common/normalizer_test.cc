// NFC by hand-picked cases and properties (the live test compares every code point), and the steps
// of a normalizer.
#include "common/text/normalizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/base/utf8.h"
#include "common/text/metaspace.h"
#include "common/text/nfc.h"

namespace flotilla {
namespace {

TEST(NfcTest, ComposesAndOrders) {
  EXPECT_EQ(ToNfc(""), "");
  EXPECT_EQ(ToNfc("abc e\u0301"), "abc \u00e9");
  EXPECT_EQ(ToNfc("\u00e9"), "\u00e9");
  EXPECT_EQ(ToNfc("a\u0316\u0301"), "\u00e1\u0316");       // the acute is not blocked
  EXPECT_EQ(ToNfc("q\u0307\u0323"), "q\u0323\u0307");      // by class: below before above
  EXPECT_EQ(ToNfc("e\u0301\u0301"), "\u00e9\u0301");       // one composes, the other stays
  EXPECT_EQ(ToNfc("\u1100\u1161\u11a8"), "\uac01");        // Hangul
  EXPECT_EQ(ToNfc("\u212b \u2126"), "\u00c5 \u03a9");      // singletons
  EXPECT_EQ(ToNfc("\u0958"), "\u0915\u093c");              // excluded from composition
  EXPECT_EQ(ToNfc("\u09c7\u09be"), "\u09cb");              // two starters
  EXPECT_EQ(ToNfc("\u0301x"), "\u0301x");                  // a mark with nothing before it
  EXPECT_EQ(ToNfc("\U0001D15E"), "\U0001D157\U0001D165");  // beyond the BMP
}

TEST(NfcTest, MarksOfLaterVersionsStayWhereTheyAre) {
  // U+10F46 (230) and U+10F47 (220) came with Unicode 11.
  EXPECT_EQ(ToNfc("a\U00010F46\U00010F47"), "a\U00010F46\U00010F47");
  EXPECT_EQ(ToNfc("\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(ToNfc("e\u0897\u0301"), "e\u0897\u0301");
}

TEST(NfcTest, OnceIsEnough) {
  std::mt19937 random(5);
  constexpr char32_t kBases[] = {'a', 'e', ' ', 0xe9, 0x1100, 0x1161, 0x11a8, 0x3b1, 0x915, 0xac00};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (uint32_t n = random() % 12; n > 0; --n) {
      const char32_t mark = 0x300 + random() % 0x70;
      AppendUtf8(random() % 2 ? mark : kBases[random() % std::size(kBases)], &text);
    }
    const std::string once = ToNfc(text);
    ASSERT_EQ(FindInvalidUtf8(once), std::nullopt);
    ASSERT_EQ(ToNfc(once), once);
    if (IsPlainlyNfc(text)) {
      ASSERT_EQ(once, text);
    }
  }
}

TEST(NfcTest, AMillionMarksInARowAreNoAttack) {
  std::string text = "a";
  for (int i = 0; i < 250'000; ++i) text += "\u0301\u0316";
  // By class: all that go below, then all that go above (the first of which composes).
  const std::string once = ToNfc(text);
  EXPECT_EQ(once.size(), text.size() - 1);
  EXPECT_EQ(once.substr(0, 6), "\u00e1\u0316\u0316");
}

std::string Apply(const Normalizer& normalizer, std::string_view text, bool at_start = true) {
  std::string scratch;
  return std::string(normalizer.Apply(text, at_start, &scratch));
}

TEST(NormalizerTest, StepsGoInOrder) {
  Normalizer normalizer;
  EXPECT_EQ(Apply(normalizer, "a b"), "a b");
  normalizer.AddPrepend(std::string(kMetaspace));
  normalizer.AddReplace(" ", std::string(kMetaspace));
  EXPECT_EQ(Apply(normalizer, " a  b"), "▁▁a▁▁b");
  EXPECT_EQ(Apply(normalizer, "a", false), "▁a");
  EXPECT_EQ(Apply(normalizer, ""), "");
  normalizer.AddNfc();
  EXPECT_EQ(Apply(normalizer, "e\u0301"), "▁\u00e9");
}

TEST(NormalizerTest, PrependUnlessThere) {
  Normalizer always;
  always.AddReplace(" ", std::string(kMetaspace));
  always.AddPrependUnlessThere(std::string(kMetaspace), /*first_only=*/false);
  EXPECT_EQ(Apply(always, "a", false), "▁a");
  EXPECT_EQ(Apply(always, " a", false), "▁a");
  Normalizer first;
  first.AddPrependUnlessThere(std::string(kMetaspace), /*first_only=*/true);
  EXPECT_EQ(Apply(first, "a", true), "▁a");
  EXPECT_EQ(Apply(first, "a", false), "a");
}

TEST(NormalizerTest, KnowsHowFarATextMayGrow) {
  Normalizer normalizer;
  EXPECT_EQ(normalizer.growth(), 1u);
  normalizer.AddReplace("  ", "_");
  normalizer.AddPrepend("__");
  EXPECT_EQ(normalizer.growth(), 1u);
  normalizer.AddReplace("ab", "xyz");
  EXPECT_EQ(normalizer.growth(), 2u);
  normalizer.AddNfc();
  EXPECT_EQ(normalizer.growth(), 6u);
  EXPECT_EQ(ToNfc("\U0001D160").size(), 12u);  // what NFC makes longest
  for (int i = 0; i < 100; ++i) normalizer.AddReplace(" ", std::string(64, ' '));
  EXPECT_EQ(normalizer.growth(), Normalizer::kMaxGrowth + 1);
  EXPECT_EQ(normalizer.num_steps(), 104u);
}

TEST(NormalizerTest, WhatDoesNotChangeIsNotCopied) {
  Normalizer normalizer;
  normalizer.AddNfc();
  normalizer.AddReplace(" ", "_");
  const std::string text = "résumé";
  std::string scratch;
  EXPECT_EQ(normalizer.Apply(text, true, &scratch).data(), text.data());
}

}  // namespace
}  // namespace flotilla
