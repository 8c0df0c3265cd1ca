#include "common/base/log_text.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

std::string Printable(std::string_view bytes, Quoted quoted) {
  std::string out;
  AppendPrintable(bytes, quoted, &out);
  return out;
}

TEST(LogTextTest, OrdinaryTextStaysAsItIs) {
  for (const char* text : {"", "plain", "käse 中文 🙂", "C:\\dir \"x\" a=b"})
    EXPECT_EQ(Printable(text, Quoted::kNo), text);
  EXPECT_EQ(QuotedText("C:\\dir \"x\""), R"("C:\\dir \"x\"")");
}

TEST(LogTextTest, NothingMovesTheCursorOrEndsALine) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\nb\rc\td", "a\\u000ab\\u000dc\\u0009d"},
      {"\x1b[31m\x7f\x1f", "\\u001b[31m\\u007f\\u001f"},
      {"\xC2\x85|\xC2\x9B", "\\u0085|\\u009b"},                           // NEL, CSI
      {"\xE2\x80\xA8|\xE2\x80\xA9", "\\u2028|\\u2029"},                   // separators
      {"\xE2\x80\xAE|\xE2\x81\xA6|\xD8\x9C", "\\u202e|\\u2066|\\u061c"},  // direction
      {"\xEF\xBB\xBF", "\\ufeff"}};
  for (const auto& [bytes, printed] : cases) {
    EXPECT_EQ(Printable(bytes, Quoted::kNo), printed);
    EXPECT_EQ(Printable(bytes, Quoted::kYes), printed);
  }
  EXPECT_EQ(Printable(std::string_view("\0x", 2), Quoted::kYes), "\\u0000x");
}

TEST(LogTextTest, WhatIsNotUtf8IsReplaced) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(Printable("\xFFx\x80", Quoted::kYes), r + "x" + r);
  EXPECT_EQ(Printable("\xC0\x8A", Quoted::kYes), r + r);          // '\n' in two bytes
  EXPECT_EQ(Printable("\xE0\x80\x8A", Quoted::kYes), r + r + r);  // and in three
  EXPECT_EQ(Printable("\xED\xA0\x80", Quoted::kYes), r + r + r);  // half of a surrogate pair
  EXPECT_EQ(Printable("\xF4\x90\x80\x80", Quoted::kYes), r + r + r + r);  // past the last
  EXPECT_EQ(Printable("\xF0\x9F\x99", Quoted::kYes), r);                  // cut
}

TEST(LogTextTest, KnowsNumbersOfJson) {
  for (const char* yes : {"0", "-1", "1.5", "-0.25", "1e+06", "12E-3"})
    EXPECT_TRUE(IsJsonNumber(yes)) << yes;
  for (const char* no : {"", "-", "01", "+1", ".5", "1.", "1e", "nan", "inf", "0x1", "1 ", "1a"})
    EXPECT_FALSE(IsJsonNumber(no)) << no;
}

}  // namespace
}  // namespace flotilla
