// Characters, case and white space of Python's str; template_live_test.py compares all code points.
#include "common/template/unicode_text.h"

#include <gtest/gtest.h>

#include "common/base/utf8.h"

namespace flotilla::jinja {
namespace {

TEST(TemplateUnicodeTest, Characters) {
  const std::string_view text = "aé中🙂";
  EXPECT_EQ(CountChars(text), 4u);
  EXPECT_EQ(ByteOfChar(text, 0), 0u);
  EXPECT_EQ(ByteOfChar(text, 3), 6u);
  EXPECT_EQ(ByteOfChar(text, 4), 10u);
  EXPECT_EQ(ByteOfChar(text, 9), 10u);
  std::u32string forward;
  for (size_t i = 0; i < text.size();) forward.push_back(NextChar(text, &i));
  EXPECT_EQ(forward, U"aé中🙂");
  std::u32string backward;
  for (size_t i = text.size(); i > 0;) backward.push_back(PreviousChar(text, &i));
  EXPECT_EQ(backward, U"🙂中éa");
}

TEST(TemplateUnicodeTest, Case) {
  EXPECT_EQ(Upper("straße ﬁ ŉ ǆ"), "STRASSE FI ʼN Ǆ");
  EXPECT_EQ(Lower("İSTANBUL ÀÉ"), "i̇stanbul àé");
  EXPECT_EQ(Lower("ΌΔΟΣ ΣΑΣ Σ Α.Σ Σ.Α"), "όδος σας σ α.ς σ.α");
  EXPECT_EQ(Capitalize("ǆABC"), "ǅabc");
  EXPECT_EQ(Title("they're 2nd-hand ßa"), "They'Re 2Nd-Hand Ssa");
  EXPECT_EQ(SwapCase("aBß"), "AbSS");
  EXPECT_TRUE(IsLower(U'ª') && IsLower(U'ß') && !IsLower(U'ǅ') && !IsLower(U'1'));
  EXPECT_TRUE(IsUpper(U'À') && IsUpper(U'𝐀') && !IsUpper(U'ǅ'));
  EXPECT_TRUE(IsCased(U'ǅ') && !IsCased(U'中'));
}

TEST(TemplateUnicodeTest, SpaceAndPrintable) {
  EXPECT_TRUE(IsSpace(0x1c) && IsSpace(0x85) && IsSpace(0x3000) && !IsSpace(0x200b));
  EXPECT_TRUE(IsPrintable(' ') && IsPrintable(U'é') && IsPrintable(0x1f642));
  EXPECT_FALSE(IsPrintable(0x7f) || IsPrintable(0xa0) || IsPrintable(0x200b) ||
               IsPrintable(0xe000) || IsPrintable(0x10ffff));
  EXPECT_EQ(StripSpace("\u3000 a b\u00a0\n"), "a b");
  EXPECT_EQ(StripSpace(" a ", Side::kLeft), "a ");
  EXPECT_EQ(StripSpace(" a ", Side::kRight), " a");
  EXPECT_EQ(StripSpace(" \t"), "");
  EXPECT_EQ(StripChars("éaéxé", "éa"), "x");
  EXPECT_EQ(StripChars("aba", ""), "aba");
}

TEST(TemplateUnicodeTest, Lines) {
  using Lines = std::vector<std::string_view>;
  const auto split = [](std::string_view text, bool keep_ends) {
    Lines lines;
    while (!text.empty()) lines.push_back(TakeLine(&text, keep_ends));
    return lines;
  };
  EXPECT_EQ(split("a\r\nb\u2028\rc", false), (Lines{"a", "b", "", "c"}));
  EXPECT_EQ(split("a\n\n", true), (Lines{"a\n", "\n"}));
}

}  // namespace
}  // namespace flotilla::jinja
