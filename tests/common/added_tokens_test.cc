// Which tokens are found where: special or not, with white space, in normalised text; and what a
// piece is before its first merge.
#include "common/text/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/text/symbol_table.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;

// "id:text" of tokens, the text of what lies between.
std::vector<std::string> Show(const std::vector<AddedTokens::Part>& parts) {
  std::vector<std::string> shown;
  shown.reserve(parts.size());
  for (const AddedTokens::Part& part : parts)
    shown.push_back(part.id < 0 ? std::string(part.text) : StrCat(part.id, ":", part.text));
  return shown;
}

TEST(AddedTokensTest, SpecialOnesOnlyWhereTheyMayBeParsed) {
  AddedTokens tokens;
  const Normalizer none;
  ASSERT_TRUE(tokens.Add({.id = 1, .text = "<s>", .special = true}, none).ok());
  ASSERT_TRUE(tokens.Add({.id = 2, .text = "\n\n"}, none).ok());
  ASSERT_TRUE(tokens.Add({.id = 3, .text = ""}, none).ok());
  EXPECT_THAT(Show(tokens.Cut("a<s>\n\n\nb", true)), ElementsAre("a", "1:<s>", "2:\n\n", "\nb"));
  EXPECT_THAT(Show(tokens.Cut("a<s>\n\n\nb", false)), ElementsAre("a<s>", "2:\n\n", "\nb"));
  EXPECT_THAT(Show(tokens.Cut("", true)), ElementsAre());
  EXPECT_THAT(Show(tokens.CutNormalized("a<s>", true)), ElementsAre("a<s>"));
}

TEST(AddedTokensTest, RefusesWhatWouldCutACharacter) {
  AddedTokens tokens;
  for (const char* text : {"\xc3", "a\xa9", "\xff"}) {
    EXPECT_EQ(tokens.Add({.id = 1, .text = text}, Normalizer()).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(Show(tokens.Cut("é", true)), ElementsAre("é"));
}

TEST(AddedTokensTest, TakesWhiteSpaceAroundWhereAskedTo) {
  AddedTokens tokens;
  const Normalizer none;
  ASSERT_TRUE(tokens.Add({.id = 1, .text = "<r>", .rstrip = true}, none).ok());
  ASSERT_TRUE(tokens.Add({.id = 2, .text = "<l>", .lstrip = true}, none).ok());
  EXPECT_THAT(Show(tokens.Cut("a <r> \n\u00a0b \u3000<l> c", true)),
              ElementsAre("a ", "1:<r> \n\u00a0", "b", "2: \u3000<l>", " c"));
  // What one has taken the next cannot.
  EXPECT_THAT(Show(tokens.Cut("<r>  <l>", true)), ElementsAre("1:<r>  ", "2:<l>"));
  EXPECT_THAT(Show(tokens.Cut("  <l>", true)), ElementsAre("2:  <l>"));
}

TEST(AddedTokensTest, NormalisedOnesAreFoundInNormalisedText) {
  AddedTokens tokens;
  Normalizer nfc;
  nfc.AddNfc();
  ASSERT_TRUE(tokens.Add({.id = 1, .text = "e\u0301", .normalized = true}, nfc).ok());
  EXPECT_THAT(Show(tokens.Cut("x\u00e9", true)), ElementsAre("x\u00e9"));
  EXPECT_THAT(Show(tokens.CutNormalized("x\u00e9", true)), ElementsAre("x", "1:\u00e9"));
}

TEST(AddedTokensTest, RefusesOneThatIsTooLong) {
  AddedTokens tokens;
  const std::string text(2000, 'x');
  const Status status = tokens.Add({.id = 1, .text = text}, Normalizer());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  Normalizer longer;
  longer.AddReplace("x", "xxxx");
  EXPECT_TRUE(tokens.Add({.id = 1, .text = text.substr(0, 512)}, longer).ok());
  EXPECT_FALSE(tokens.Add({.id = 1, .text = text.substr(0, 512), .normalized = true}, longer).ok());
}

TEST(AddedTokensTest, RefusesMoreTextThanVocabulariesHave) {
  AddedTokens tokens;
  const Normalizer none;
  const std::string text(1024, 'x');
  for (size_t i = 0; i < AddedTokens::kMaxBytes / text.size(); ++i)
    ASSERT_TRUE(tokens.Add({.id = 1, .text = text}, none).ok());
  EXPECT_EQ(tokens.Add({.id = 1, .text = "x"}, none).code(), absl::StatusCode::kInvalidArgument);
}

std::vector<TokenId> Symbols(const SymbolTable& table, std::string_view piece) {
  std::vector<TokenId> symbols = {99};  // of another piece
  table.Append(piece, &symbols);
  symbols.erase(symbols.begin());
  return symbols;
}

TEST(SymbolTableTest, BytesAreTokensOrVanish) {
  SymbolTable table(SymbolTable::Kind::kBytes);
  table.SetByte('a', 1);
  table.SetByte(0xc3, 2);
  EXPECT_THAT(Symbols(table, "aé"), ElementsAre(1, 2));
  EXPECT_EQ(table.FindUnwritable(), ' ');
}

TEST(SymbolTableTest, ACharacterWithoutATokenBecomesItsBytes) {
  SymbolTable table(SymbolTable::Kind::kCharacters);
  table.SetCharacter(U'a', 1);
  table.SetCharacter(U'€', 2);
  for (int b = 0; b < 256; ++b) table.SetByte(static_cast<uint8_t>(b), 1000 + b);
  EXPECT_THAT(Symbols(table, "a€é"), ElementsAre(1, 2, 1000 + 0xc3, 1000 + 0xa9));
  EXPECT_EQ(table.FindUnwritable(), std::nullopt);
}

TEST(SymbolTableTest, UnknownCharactersAreFusedWhereAskedTo) {
  for (bool fuse : {false, true}) {
    SymbolTable table(SymbolTable::Kind::kCharacters);
    table.SetCharacter(U'a', 1);
    table.SetByte(0xc3, 7);  // one byte of é is not enough
    table.SetUnknown(99, fuse);
    EXPECT_EQ(Symbols(table, "éaéé").size(), fuse ? 3u : 4u);
    // Nothing is fused with the piece before.
    EXPECT_EQ(Symbols(table, "é"), std::vector<TokenId>{99});
    EXPECT_EQ(table.FindUnwritable(), std::nullopt);
  }
}

TEST(SymbolTableTest, ByteTokens) {
  EXPECT_EQ(ParseByteToken("<0x0A>"), 0x0a);
  EXPECT_EQ(ParseByteToken("<0xFF>"), 0xff);
  for (const char* other : {"<0x0a>", "<0x0>", "<0x0AA>", "0x0A", "<0x0A", "<0xG0>", ""})
    EXPECT_EQ(ParseByteToken(other), std::nullopt) << other;
}

}  // namespace
}  // namespace flotilla
