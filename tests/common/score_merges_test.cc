// Vocabularies with scores: merges against SentencePiece's definition, and the tokenizer of a GGUF
// whose model is "llama" (or "gemma4"), with text that is checked by hand.
#include "common/text/score_merges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/text/incremental_detokenizer.h"
#include "common/text/tokenizer.h"
#include "tests/fakes/gguf_builder.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The definition: of all neighbours whose texts make a token, the pair of the highest score, the
// leftmost of equals.
std::vector<std::string> MergeNaively(std::string_view text,
                                      const std::map<std::string, double>& scores) {
  std::vector<std::string> parts;
  for (char c : text) parts.emplace_back(1, c);
  while (true) {
    size_t best = parts.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::string joined = parts[i] + parts[i + 1];
      if (!scores.contains(joined)) continue;
      if (best == parts.size() || scores.at(joined) > scores.at(parts[best] + parts[best + 1]))
        best = i;
    }
    if (best == parts.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(MergesByScoreTest, MergesAsDefined) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, double> scores = {{"a", 0}, {"b", 0}, {"c", 0}};
    for (int n = 0; n < 25; ++n) {
      std::string token;
      for (uint32_t length = 2 + random() % 4; length > 0; --length) token += "abc"[random() % 3];
      scores[token] = -static_cast<double>(random() % 12);  // many equal scores
    }
    std::vector<std::string_view> texts;
    std::vector<double> values;
    for (const auto& [text, score] : scores) {
      texts.push_back(text);
      values.push_back(score);
    }
    const std::vector<TokenType> types(texts.size(), TokenType::kNormal);
    const StatusOr<BpeMerger> merger = MergesByScore({texts, types, values});
    ASSERT_TRUE(merger.ok()) << merger.status();
    std::string text;
    for (uint32_t length = random() % 120; length > 0; --length) text += "abc"[random() % 3];
    std::vector<TokenId> symbols;
    for (char c : text) {
      const auto found = std::find(texts.begin(), texts.end(), std::string_view(&c, 1));
      symbols.push_back(static_cast<TokenId>(found - texts.begin()));
    }
    std::vector<TokenId> ids;
    merger->Apply(&symbols, &ids);
    std::vector<std::string> parts;
    parts.reserve(ids.size());
    for (TokenId id : ids) parts.emplace_back(texts[static_cast<size_t>(id)]);
    ASSERT_EQ(parts, MergeNaively(text, scores)) << text;
  }
}

TEST(MergesByScoreTest, OnlyNormalTokensMergeAndAreMadeByMerging) {
  const std::vector<std::string_view> texts = {"a", "b", "ab", "aba", "ba", ""};
  std::vector<TokenType> types(6, TokenType::kNormal);
  const std::vector<double> scores = {0, 0, -1, -2, -3, 0};
  EXPECT_EQ(MergesByScore({texts, types, scores})->size(), 4u);  // a·b, a·ba, ab·a, b·a
  types[2] = TokenType::kControl;
  EXPECT_EQ(MergesByScore({texts, types, scores})->size(), 2u);
}

TEST(MergesByScoreTest, RefusesWhatHasNoOrderOrTakesTooLong) {
  const std::string long_token(1000, 'x');
  const std::vector<std::string_view> texts = {"a", long_token};
  const std::vector<TokenType> types(2, TokenType::kNormal);
  EXPECT_THAT(MergesByScore({texts, types, std::vector<double>{0, 0}}).status().ToString(),
              HasSubstr("tokenizer.ggml.tokens[1] has 1000 bytes; at most 512"));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(MergesByScore({texts, types, std::vector<double>{nan, 0}}).status().ToString(),
              HasSubstr("tokenizer.ggml.scores[0] is not a number"));
}

// Ids: 0 <unk>, 1 <s>, 2 </s>, 3 … 258 the bytes, then the pieces.
struct Fields {
  std::string model = "llama";
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  std::vector<float> scores = {0, 0, 0};
  std::function<void(testing::GgufBuilder*)> more = [](testing::GgufBuilder*) {};

  Fields() {
    for (int b = 0; b < 256; ++b) Add(absl::StrFormat("<0x%02X>", b), 6, 0);
    for (const char* piece : {"▁", "a", "b", "é", "▁a", "ab", "▁ab", "▁▁"}) Add(piece, 1, 0);
    for (size_t i = 259; i < tokens.size(); ++i) scores[i] = -static_cast<float>(i);
  }
  TokenId Add(const std::string& text, int32_t type, float score) {
    tokens.push_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<TokenId>(tokens.size() - 1);
  }
  TokenId Id(const std::string& text) const {
    const auto found = std::find(tokens.begin(), tokens.end(), text);
    EXPECT_NE(found, tokens.end()) << text;
    return static_cast<TokenId>(found - tokens.begin());
  }
  StatusOr<std::unique_ptr<Tokenizer>> Create() const {
    testing::GgufBuilder builder;
    builder.AddString("tokenizer.ggml.model", model);
    builder.AddStrings("tokenizer.ggml.tokens", tokens);
    builder.AddInts("tokenizer.ggml.token_type", types);
    if (!scores.empty()) builder.AddFloats("tokenizer.ggml.scores", scores);
    builder.AddUint32("tokenizer.ggml.bos_token_id", 1);
    builder.AddUint32("tokenizer.ggml.eos_token_id", 2);
    more(&builder);
    const std::string bytes = builder.Build();
    ASSIGN_OR_RETURN(const GgufFile gguf,
                     GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                     {.metadata_only = true}));
    return CreateTokenizer(gguf);
  }
};

std::unique_ptr<Tokenizer> Create(const Fields& fields) {
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = fields.Create();
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

TEST(SentencePieceTokenizerTest, ASpaceBeforeEachTextAndBytesForTheRest) {
  const Fields fields;
  const auto tokenizer = Create(fields);
  ASSERT_NE(tokenizer, nullptr);
  const TokenId ab = fields.Id("▁ab");
  EXPECT_THAT(*tokenizer->Encode("ab"), ElementsAre(1, ab));
  EXPECT_THAT(*tokenizer->Encode(""), ElementsAre(1));
  EXPECT_THAT(*tokenizer->Encode("é€", {.add_special = false}),
              ElementsAre(fields.Id("▁"), fields.Id("é"), 3 + 0xe2, 3 + 0x82, 3 + 0xac));
  // Each text after a control token begins anew.
  EXPECT_THAT(*tokenizer->Encode("ab</s>ab"), ElementsAre(1, ab, 2, ab));
  EXPECT_THAT(*tokenizer->Encode("  ab", {.add_special = false}), ElementsAre(fields.Id("▁▁"), ab));
  EXPECT_EQ(tokenizer->Encode("a</s>", {.parse_special = false})->size(), 6u);
  EXPECT_THAT(tokenizer->eos_ids(), ElementsAre(2));
}

TEST(SentencePieceTokenizerTest, TheSpaceGoesAgainAtTheStartOfASequenceOnly) {
  const Fields fields;
  const auto tokenizer = Create(fields);
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<TokenId> ids = {1, fields.Id("▁ab"), 3 + 0xc3, 2, 3 + 0xa9, fields.Id("▁a")};
  EXPECT_EQ(tokenizer->Decode(ids, true), "ab\xc3\xa9 a");
  EXPECT_EQ(tokenizer->DecodeRest(ids, true), " ab\xc3\xa9 a");
  EXPECT_EQ(tokenizer->Decode(ids, false), "<s> ab\xef\xbf\xbd</s>\xef\xbf\xbd a");
  EXPECT_EQ(tokenizer->TokenBytes(fields.Id("▁ab")), " ab");
  EXPECT_EQ(tokenizer->TokenBytes(3 + 0xc3), "\xc3");
  for (bool skip_special : {false, true}) {
    using Begins = IncrementalDetokenizer::Begins;
    for (Begins begins : {Begins::kSequence, Begins::kAfterPrompt}) {
      IncrementalDetokenizer detokenizer(tokenizer.get(), skip_special, begins);
      std::string joined;
      for (TokenId id : ids) joined += detokenizer.Push(id);
      EXPECT_EQ(joined + detokenizer.Finish(), begins == Begins::kSequence
                                                   ? tokenizer->Decode(ids, skip_special)
                                                   : tokenizer->DecodeRest(ids, skip_special));
    }
  }
}

TEST(SentencePieceTokenizerTest, WithoutThePrefixAllSpacesAreText) {
  Fields fields;
  fields.more = [](testing::GgufBuilder* builder) {
    builder->AddBool("tokenizer.ggml.add_space_prefix", false);
    builder->AddBool("tokenizer.ggml.add_bos_token", false);
  };
  const TokenId spaces = fields.Add("  ", 4, 0);
  const auto tokenizer = Create(fields);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("ab a"), ElementsAre(fields.Id("ab"), fields.Id("▁a")));
  EXPECT_THAT(*tokenizer->Encode("   ab"), ElementsAre(spaces, fields.Id("▁ab")));
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode("  ab"), true), "  ab");
}

TEST(SentencePieceTokenizerTest, WithoutBytesUnknownCharactersAreOneUnknown) {
  Fields fields;
  for (int i = 3; i < 259; ++i) fields.types[i] = 5;
  fields.more = [](testing::GgufBuilder* builder) {
    builder->AddUint32("tokenizer.ggml.unknown_token_id", 0);
  };
  const auto tokenizer = Create(fields);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("ab€€a€"), ElementsAre(1, fields.Id("▁ab"), 0, fields.Id("a"), 0));
  fields.more = [](testing::GgufBuilder*) {};
  EXPECT_THAT(fields.Create().status().ToString(),
              HasSubstr("tokenizer.ggml.tokens has no token for '!'"));
}

TEST(SentencePieceTokenizerTest, Phi3SpecialTokensTakeTheSpaceAfterThem) {
  Fields fields;
  const TokenId user = fields.Add("<|user|>", 3, 0);
  fields.more = [](testing::GgufBuilder* builder) { builder->AddString("general.name", "Phi3"); };
  const auto tokenizer = Create(fields);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("<|user|> \n ab<s> ab", {.add_special = false}),
              ElementsAre(user, fields.Id("▁ab"), 1, fields.Id("▁"), fields.Id("▁ab")));
}

TEST(SentencePieceTokenizerTest, Gemma4HasMergesInsteadOfScores) {
  Fields fields;
  fields.model = "gemma4";
  fields.scores.clear();
  fields.more = [](testing::GgufBuilder* builder) {
    builder->AddStrings("tokenizer.ggml.merges", {"a b", "▁ a", "▁ ab"});
  };
  const auto tokenizer = Create(fields);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("ab a"), ElementsAre(1, fields.Id("ab"), fields.Id("▁a")));
  EXPECT_FALSE(tokenizer->strips_leading_space());
}

TEST(SentencePieceTokenizerTest, RefusesBrokenVocabularies) {
  Fields fields;
  fields.scores.pop_back();
  EXPECT_THAT(fields.Create().status().ToString(),
              HasSubstr("tokenizer.ggml.scores must be an array of 267 floats"));
  fields = Fields();
  fields.tokens[10] = "<0xZZ>";
  EXPECT_THAT(fields.Create().status().ToString(),
              HasSubstr("tokenizer.ggml.tokens[10] '<0xZZ>' is a byte that is not written like"));
  fields = Fields();
  fields.more = [](testing::GgufBuilder* builder) {
    builder->AddUint32("tokenizer.ggml.unknown_token_id", 1000);
  };
  EXPECT_THAT(fields.Create().status().ToString(),
              HasSubstr("tokenizer.ggml.unknown_token_id is 1000, but there are only 267 tokens"));
}

}  // namespace
}  // namespace flotilla
