// Strictness and replacement of common/base/utf8, by cases and against a naive decoder.
#include "common/base/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/text/byte_level.h"
#include "common/text/incremental_detokenizer.h"

namespace flotilla {
namespace {

std::string DecodeAll(std::string_view bytes) {
  std::string text;
  if (DecodeUtf8Replacing(bytes, &text) < bytes.size()) text += kReplacementCharacter;
  return text;
}

TEST(Utf8Test, EveryCodePointIsValidAndSurrogatesAreNot) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text = "ab";
    AppendUtf8(c, &text);
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    ASSERT_EQ(FindInvalidUtf8(text), surrogate ? std::optional<size_t>(2) : std::nullopt)
        << static_cast<uint32_t>(c);
    if (surrogate) continue;
    ASSERT_EQ(DecodeAll(text), text);
    // Each cut of the last character is unfinished, so it would be held back.
    for (size_t cut = 3; cut < text.size(); ++cut) {
      std::string decided;
      ASSERT_EQ(DecodeUtf8Replacing(text.substr(0, cut), &decided), 2u);
    }
  }
}

TEST(Utf8Test, ReplacesMaximalSubparts) {
  // Table 3-8 of the Unicode standard and its neighbours; as Python's errors="replace".
  EXPECT_EQ(DecodeAll("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64"),
            "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
            "b\xef\xbf\xbd"
            "c\xef\xbf\xbd\xef\xbf\xbd"
            "d");
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(DecodeAll("\xe0\x80\x80"), r + r + r);  // overlong
  EXPECT_EQ(DecodeAll("\xed\xa0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(DecodeAll("\xf0\x90\x80"), r);          // cut
  EXPECT_EQ(DecodeAll("\xf4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(DecodeAll("\xc0\xaf"), r + r);
  EXPECT_EQ(DecodeAll("\xff"), r);
  EXPECT_EQ(DecodeAll(""), "");
}

TEST(Utf8Test, ReportsTheOffsetOfTheFirstBadByte) {
  for (size_t offset = 0; offset < 40; ++offset) {
    std::string text(offset, 'a');
    text += "\xff tail";
    EXPECT_EQ(FindInvalidUtf8(text), offset);
    text = std::string(offset, 'a') + "\xe2\x82";
    EXPECT_EQ(FindInvalidUtf8(text), offset);
  }
}

TEST(Utf8Test, DecodedTextIsAlwaysValid) {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (uint32_t n = random() % 24; n > 0; --n) bytes.push_back(static_cast<char>(random()));
    const std::string text = DecodeAll(bytes);
    ASSERT_EQ(FindInvalidUtf8(text), std::nullopt);
    if (!FindInvalidUtf8(bytes).has_value()) {
      ASSERT_EQ(text, bytes);
    }
  }
}

TEST(ByteLevelTest, EachByteHasOneCharacterAndBack) {
  for (int b = 0; b < 256; ++b) {
    std::string written;
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(b)), &written);
    EXPECT_EQ(ByteLevelToBytes(written), std::string(1, static_cast<char>(b)));
  }
  EXPECT_EQ(ByteLevelToBytes("Ġhi"), " hi");
  EXPECT_EQ(ByteLevelToBytes("Ċ"), "\n");
  EXPECT_EQ(ByteLevelToBytes(" "), std::nullopt);
  EXPECT_EQ(ByteLevelToBytes("日"), std::nullopt);
  EXPECT_EQ(ByteLevelToBytes("\xc4"), std::nullopt);
}

}  // namespace
}  // namespace flotilla
