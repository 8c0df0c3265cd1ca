#include "scheduler_proc/grammar/xgrammar_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler_proc/grammar/step_budget.h"
#include "tests/scheduler_proc/grammar/grammar_testing.h"

namespace flotilla {
namespace {

using testing::Allows;
using testing::ExpectFollows;
using ::testing::HasSubstr;
using testing::kTestEos;
using testing::TestTokens;

class XGrammarBackendTest : public ::testing::Test {
 protected:
  StatusOr<std::shared_ptr<const Grammar>> Compile(GrammarKind kind, const std::string& text) {
    ASSIGN_OR_RETURN(const std::string compiled, CompileToJson({kind, text}, vocabulary_));
    return GrammarFromJson(compiled, vocabulary_);
  }
  std::string Refusal(GrammarKind kind, const std::string& text) {
    const Status status = Compile(kind, text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  }

  const XGrammarVocabulary vocabulary_{TestTokens()};
};

TEST_F(XGrammarBackendTest, EndsExactlyWhereTheGrammarMay) {
  const auto regex = Compile(GrammarKind::kRegex, "a+b?");
  ASSERT_TRUE(regex.ok()) << regex.status();
  ExpectFollows(**regex, "", false);
  ExpectFollows(**regex, "aa", true);
  ExpectFollows(**regex, "ab", true);
  const auto schema =
      Compile(GrammarKind::kJsonSchema,
              R"({"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]})");
  ASSERT_TRUE(schema.ok()) << schema.status();
  ExpectFollows(**schema, R"({"a": tru)", false);
  ExpectFollows(**schema, R"({"a": true)", false);
  ExpectFollows(**schema, R"({"a": true})", true);
  const auto object = Compile(GrammarKind::kJsonObject, "");
  ASSERT_TRUE(object.ok()) << object.status();
  ExpectFollows(**object, R"({"any": [1, {"x": null}]})", true);
  const auto choice = Compile(GrammarKind::kChoice, R"(root ::= "yes" | "no")");
  ASSERT_TRUE(choice.ok()) << choice.status();
  ExpectFollows(**choice, "yes", true);
  ExpectFollows(**choice, "n", false);
}

// A request begins in the scheduler's loop: it must not take long there, whatever the grammar.
TEST_F(XGrammarBackendTest, BeginningTakesNoSteps) {
  const auto grammar = Compile(GrammarKind::kEbnf, R"(root ::= "a" root "b" | "c")");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  std::vector<uint32_t> first(MaskWords(270)), again(MaskWords(270)), later(MaskWords(270));
  {
    ScopedStepBudget none(0);
    const auto matcher = (*grammar)->NewMatcher();
    ASSERT_TRUE(matcher.ok()) << matcher.status();
    EXPECT_TRUE((*matcher)->FillMask(first).ok());
  }
  // It is the mask that would be made, and of the beginning alone.
  auto matcher = (*grammar)->NewMatcher();
  ASSERT_TRUE((*matcher)->FillMask(again).ok());
  EXPECT_EQ(first, again);
  EXPECT_TRUE(Allows(first, 'a') && Allows(first, 'c'));
  ASSERT_TRUE((*matcher)->Accept('c').ok());
  ASSERT_TRUE((*matcher)->FillMask(later).ok());
  EXPECT_FALSE(Allows(later, 'a'));
  EXPECT_TRUE(Allows(later, kTestEos));
}

TEST_F(XGrammarBackendTest, MasksHoldLongTokensAndNoneThatDoNotExist) {
  const auto grammar = Compile(GrammarKind::kRegex, "[ab]*");
  ASSERT_TRUE(grammar.ok());
  auto matcher = (*grammar)->NewMatcher();
  ASSERT_TRUE(matcher.ok());
  std::vector<uint32_t> mask(MaskWords(270));
  ASSERT_TRUE((*matcher)->FillMask(mask).ok());
  std::vector<int32_t> allowed;
  for (int32_t token = 0; token < static_cast<int32_t>(mask.size() * 32); ++token) {
    if (Allows(mask, token)) allowed.push_back(token);
  }
  EXPECT_THAT(allowed, ::testing::ElementsAre('a', 'b', kTestEos, 257));  // 257 is "ab"
  ASSERT_TRUE((*matcher)->Accept(257).ok());
  ASSERT_TRUE((*matcher)->Accept(kTestEos).ok());
  EXPECT_TRUE((*matcher)->IsTerminated());
}

TEST_F(XGrammarBackendTest, RefusesTokensThatTheGrammarDoesNot) {
  const auto grammar = Compile(GrammarKind::kRegex, "ab");
  ASSERT_TRUE(grammar.ok());
  auto matcher = (*grammar)->NewMatcher();
  ASSERT_TRUE(matcher.ok());
  ASSERT_TRUE((*matcher)->Accept('a').ok());
  EXPECT_EQ((*matcher)->Accept('c').code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(XGrammarBackendTest, ObjectsHaveNoOtherKeys) {
  const auto grammar =
      Compile(GrammarKind::kJsonSchema, R"({"type":"object","properties":{"a":{"type":"null"}}})");
  ASSERT_TRUE(grammar.ok());
  auto matcher = (*grammar)->NewMatcher();
  ASSERT_TRUE(matcher.ok());
  for (const char c : std::string("{\"")) ASSERT_TRUE((*matcher)->Accept(c).ok());
  EXPECT_FALSE((*matcher)->Accept('b').ok());
}

TEST_F(XGrammarBackendTest, RequiredKeysComeThoughTheyAreNoProperties) {
  for (const char* others : {"", R"(,"additionalProperties":{"type":"boolean"})"}) {
    const auto schema = CheckJsonSchema(
        StrCat(R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a","b"])",
               others, "}"),
        "schema");
    ASSERT_TRUE(schema.ok());
    const auto grammar = Compile(GrammarKind::kJsonSchema, *schema);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    ExpectFollows(**grammar, R"({"a": null, "b": true})", true);
    auto matcher = (*grammar)->NewMatcher();
    ASSERT_TRUE(matcher.ok());
    for (const char c : std::string(R"({"a": null)")) ASSERT_TRUE((*matcher)->Accept(c).ok());
    EXPECT_FALSE((*matcher)->Accept('}').ok());
  }
}

TEST_F(XGrammarBackendTest, UnionsOfDefinitionsCompile) {
  const auto schema = CheckJsonSchema(
      R"({"oneOf":[{"$ref":"#/$defs/Cat"},{"$ref":"#/$defs/Dog"}],"$defs":{
          "Cat":{"type":"object","properties":{"kind":{"const":"cat"},"lives":{"type":"integer"}},
                 "required":["kind","lives"]},
          "Dog":{"type":"object","properties":{"kind":{"const":"dog"}},"required":["kind"]}}})",
      "schema");
  ASSERT_TRUE(schema.ok());
  const auto grammar = Compile(GrammarKind::kJsonSchema, *schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  ExpectFollows(**grammar, R"({"kind": "cat", "lives": 9})", true);
  ExpectFollows(**grammar, R"({"kind": "dog"})", true);
  ExpectFollows(**grammar, R"({"kind": "cat")", false);
}

TEST_F(XGrammarBackendTest, ShortStringsAsPatternsAllowWhatStringsMay) {
  const auto schema = CheckJsonSchema(R"({"type":"string","minLength":2,"maxLength":4})", "schema");
  ASSERT_TRUE(schema.ok());
  const auto grammar = Compile(GrammarKind::kJsonSchema, *schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  ExpectFollows(**grammar, R"("ab")", true);
  ExpectFollows(**grammar, "\"\xc3\xa4\xe2\x82\xac\"", true);  // two characters
  for (const char* wrong : {"\"a\"", "\"abcde\"", "\"a\nb\"", R"("a\n")"}) {
    auto matcher = (*grammar)->NewMatcher();
    ASSERT_TRUE(matcher.ok());
    Status status;
    for (const char c : std::string(wrong)) {
      if (status.ok()) status = (*matcher)->Accept(static_cast<unsigned char>(c));
    }
    EXPECT_FALSE(status.ok()) << wrong;
  }
}

// One mask stands for many places of a long string: it must be right in each.
TEST_F(XGrammarBackendTest, EachPlaceOfALongStringHasItsMask) {
  constexpr int32_t kAb = 257, kFalse = 261;
  for (const int64_t most : {1, 5, 128, 129, 512}) {
    const auto schema =
        CheckJsonSchema(StrCat(R"({"type":"string","maxLength":)", most, "}"), "schema");
    ASSERT_TRUE(schema.ok());
    const auto grammar = Compile(GrammarKind::kJsonSchema, *schema);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    auto matcher = (*grammar)->NewMatcher();
    std::vector<uint32_t> mask(MaskWords(270));
    ASSERT_TRUE((*matcher)->Accept('"').ok());
    for (int64_t length = 0; length <= most; ++length) {
      ASSERT_TRUE((*matcher)->FillMask(mask).ok());
      EXPECT_EQ(Allows(mask, 'x'), length < most) << length << " of " << most;
      EXPECT_EQ(Allows(mask, kAb), length + 2 <= most) << length << " of " << most;
      EXPECT_EQ(Allows(mask, kFalse), length + 5 <= most) << length << " of " << most;
      EXPECT_TRUE(Allows(mask, '"')) << length << " of " << most;
      if (length < most) {
        ASSERT_TRUE((*matcher)->Accept('x').ok());
      }
    }
  }
}

// What follows the strings differs, where their masks are the same but for that. The parser itself
// knows, token by token.
TEST_F(XGrammarBackendTest, MasksAreWhatTheParserTakes) {
  const auto schema = CheckJsonSchema(
      R"({"type":"object","properties":{"a":{"type":"string","minLength":1,"maxLength":9},
          "b":{"type":"array","items":{"type":"string","maxLength":8},"minItems":1},
          "c":{"type":"string","maxLength":9}},"required":["a","b","c"]})",
      "schema");
  ASSERT_TRUE(schema.ok());
  const auto grammar = Compile(GrammarKind::kJsonSchema, *schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const std::string text = R"({"a":"ab12345xy","b": ["truexxxx", ""],"c":"xx"})";
  std::vector<uint32_t> mask(MaskWords(270));
  for (size_t length = 0; length < text.size(); ++length) {
    const auto after = [&] {
      auto matcher = *(*grammar)->NewMatcher();
      for (const char c : text.substr(0, length)) {
        EXPECT_TRUE(matcher->Accept(static_cast<unsigned char>(c)).ok()) << text.substr(0, length);
      }
      return matcher;
    };
    ASSERT_TRUE(after()->FillMask(mask).ok());
    for (int32_t token = 0; token < 264; ++token) {
      if (token == kTestEos) continue;
      EXPECT_EQ(after()->Accept(token).ok(), Allows(mask, token))
          << "token " << token << " after " << text.substr(0, length);
    }
  }
}

// Whatever way a string's schema is compiled: control characters in it are no JSON.
TEST_F(XGrammarBackendTest, StringsHaveNoControlCharacters) {
  for (const char* schema :
       {R"({"type":"string"})", R"({"type":"string","minLength":1,"maxLength":100})",
        R"({"type":"string","minLength":1})", R"({"type":"string","pattern":"^.{1,9}$"})",
        R"({"type":"string","pattern":"^[^a]+$"})"}) {
    const auto grammar = Compile(GrammarKind::kJsonSchema, schema);
    ASSERT_TRUE(grammar.ok()) << schema << grammar.status();
    ExpectFollows(**grammar, "\"b", false);
    auto matcher = (*grammar)->NewMatcher();
    ASSERT_TRUE(matcher.ok());
    ASSERT_TRUE((*matcher)->Accept('"').ok());
    std::vector<uint32_t> mask(MaskWords(TestTokens().vocab_size));
    ASSERT_TRUE((*matcher)->FillMask(mask).ok());
    for (int32_t token = 0; token < 0x20; ++token) EXPECT_FALSE(Allows(mask, token)) << schema;
  }
}

TEST_F(XGrammarBackendTest, BlanksAreBounded) {
  const auto grammar = Compile(GrammarKind::kJsonSchema, R"({"type":"object","properties":{}})");
  ASSERT_TRUE(grammar.ok());
  auto matcher = (*grammar)->NewMatcher();
  ASSERT_TRUE(matcher.ok());
  ASSERT_TRUE((*matcher)->Accept('{').ok());
  int blanks = 0;
  while (blanks < 100 && (*matcher)->Accept('\n').ok()) ++blanks;
  EXPECT_EQ(blanks, 2);
}

TEST_F(XGrammarBackendTest, RefusalsSayWhy) {
  EXPECT_THAT(Refusal(GrammarKind::kRegex, "(a"), HasSubstr("arenthes"));
  EXPECT_THAT(Refusal(GrammarKind::kEbnf, "root ::= nothing"), HasSubstr("\"nothing\""));
  EXPECT_THAT(Refusal(GrammarKind::kEbnf, "start ::= \"a\""), HasSubstr("root"));
  EXPECT_THAT(Refusal(GrammarKind::kJsonSchema, R"({"type":"strange"})"), HasSubstr("strange"));
  // xgrammar only warns of this one.
  EXPECT_THAT(
      Refusal(GrammarKind::kJsonSchema, R"({"allOf":[{"type":"object"},{"type":"string"}]})"),
      HasSubstr("allOf"));
  EXPECT_EQ(
      Refusal(GrammarKind::kJsonSchema, R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"),
      "oneOf with overlapping or non-provably-disjoint branches cannot be represented exactly");
}

// xgrammar would make them of rules in which "." may be a quote or the end of the line.
TEST_F(XGrammarBackendTest, PatternsThatMayLeaveTheirStringAreRefused) {
  for (const char* pattern : {"^Gr\u00f6\u00dfe: .+$", R"(a\\x22b)", R"(\\u0022)", "\u00e4"}) {
    const std::string schema = StrCat(R"({"type":"string","pattern":")", pattern, R"("})");
    EXPECT_THAT(Refusal(GrammarKind::kJsonSchema, schema), HasSubstr("pattern")) << schema;
  }
}

TEST_F(XGrammarBackendTest, WhatCannotBeginIsRefused) {
  EXPECT_THAT(Refusal(GrammarKind::kEbnf, "root ::= root"), HasSubstr("no token"));
  EXPECT_THAT(Refusal(GrammarKind::kJsonSchema, R"({"$ref":"#"})"), HasSubstr("no token"));
}

TEST_F(XGrammarBackendTest, AmbiguityEndsWithAMessageInsteadOfNever) {
  const std::string text = "root ::= s\ns ::= s s s | s s | [a-z ]+ | \"\"";
  const StatusOr<std::string> compiled = CompileToJson({GrammarKind::kEbnf, text}, vocabulary_);
  Status status = compiled.status();
  if (compiled.ok()) {
    const auto grammar = GrammarFromJson(*compiled, vocabulary_);
    ASSERT_TRUE(grammar.ok());
    auto matcher = (*grammar)->NewMatcher();
    ASSERT_TRUE(matcher.ok());
    std::vector<uint32_t> mask(MaskWords(270));
    for (int i = 0; i < 1000 && status.ok(); ++i) {
      status = (*matcher)->FillMask(mask);
      if (status.ok()) status = (*matcher)->Accept('a');
    }
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("too many steps"));
}

// What a matcher answers to a guess is what another one finds that accepts it, and it goes on as
// though it had not been asked.
TEST_F(XGrammarBackendTest, GuessesHaveTheMasksThatWouldCome) {
  constexpr size_t kMost = 8;
  const size_t words = MaskWords(270);
  const auto schema = CheckJsonSchema(
      R"({"type":"array","items":{"type":"object","properties":{"a":{"type":"string","maxLength":9},
          "b":{"enum":["red","green"]}},"required":["a","b"]}})",
      "schema");
  ASSERT_TRUE(schema.ok());
  const auto grammar = Compile(GrammarKind::kJsonSchema, *schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  std::string text = "[";
  for (int i = 0; i < 12; ++i) text += R"({"a": "xyz","b": "red"}, )";
  text += R"({"a": "","b":"green"}])";
  auto matcher = *(*grammar)->NewMatcher();
  auto plain = *(*grammar)->NewMatcher();
  std::vector<uint32_t> mask(words), plain_mask(words), masks;
  size_t all_right = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    ASSERT_TRUE(matcher->FillMask(mask).ok() && plain->FillMask(plain_mask).ok());
    ASSERT_EQ(mask, plain_mask) << at;
    // All the more it has to make good when it was not asked for long.
    if (at < 60 || at > 150) {
      std::vector<int32_t> guess(text.begin() + static_cast<ptrdiff_t>(at), text.end());
      guess.push_back(kTestEos);
      guess.resize(std::min(guess.size(), kMost));
      if (at % 3 == 0) guess[at % guess.size()] = 0x07;  // never allowed
      masks.assign((guess.size() + 1) * words, 0);
      std::copy(mask.begin(), mask.end(), masks.begin());
      const uint32_t followed = matcher->FollowGuess(guess, masks);
      const auto right = std::find_if(guess.begin(), guess.end(),
                                      [](int32_t t) { return t == 0x07 || t == kTestEos; });
      ASSERT_EQ(followed, right - guess.begin()) << at << ' ' << text.substr(at);
      all_right += followed == kMost;
      auto follower = *(*grammar)->NewMatcher();
      for (size_t i = 0; i < at + followed; ++i) ASSERT_TRUE(follower->Accept(text[i]).ok());
      ASSERT_TRUE(follower->FillMask(plain_mask).ok());
      ASSERT_TRUE(std::equal(plain_mask.begin(), plain_mask.end(),
                             masks.begin() + static_cast<ptrdiff_t>(followed * words)))
          << at;
    }
    ASSERT_TRUE(matcher->Accept(text[at]).ok() && plain->Accept(text[at]).ok());
  }
  EXPECT_GT(all_right, 100u);
  ASSERT_TRUE(matcher->Accept(kTestEos).ok());
  EXPECT_TRUE(matcher->IsTerminated());
}

// A guess has steps of its own: a request must not fail because of what it might have said.
TEST_F(XGrammarBackendTest, GuessesEndWithTheirSteps) {
  const auto grammar = Compile(GrammarKind::kEbnf, "root ::= s\ns ::= s s | [a-z]");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const std::vector<int32_t> guess(16, 'a');
  std::vector<uint32_t> mask(MaskWords(270)), masks;
  auto asked = *(*grammar)->NewMatcher(), plain = *(*grammar)->NewMatcher();
  bool ended = false;
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = plain->FillMask(mask);
    const Status asked_status = asked->FillMask(mask);
    ASSERT_EQ(asked_status, status) << i;
    if (!status.ok()) break;
    masks.assign((guess.size() + 1) * mask.size(), 0);
    std::copy(mask.begin(), mask.end(), masks.begin());
    const uint32_t followed = asked->FollowGuess(guess, masks);
    EXPECT_TRUE(!ended || followed == 0) << "it is not asked again";
    ended |= followed < guess.size();
    status = plain->Accept('a');
    ASSERT_EQ(asked->Accept('a'), status) << i;
  }
  EXPECT_TRUE(ended);
  EXPECT_THAT(std::string(status.message()), HasSubstr("too many steps"));
}

TEST_F(XGrammarBackendTest, ForeignJsonIsRefused) {
  EXPECT_FALSE(GrammarFromJson("{}", vocabulary_).ok());
  EXPECT_FALSE(GrammarFromJson("", vocabulary_).ok());
  VocabularyTokens other = TestTokens();
  other.vocab_size = 300;
  const auto compiled = CompileToJson({GrammarKind::kRegex, "a"}, vocabulary_);
  ASSERT_TRUE(compiled.ok());
  EXPECT_FALSE(GrammarFromJson(*compiled, XGrammarVocabulary(other)).ok());
}

TEST(StepBudgetTest, ThrowsWhenItIsEmptyAndIsGoneWithItsScope) {
  {
    const ScopedStepBudget budget(10);
    ChargeGrammarSteps(10);
    EXPECT_EQ(budget.used(), 10);
    EXPECT_THROW(ChargeGrammarSteps(1), StepBudgetExceeded);
  }
  EXPECT_NO_THROW(ChargeGrammarSteps(1 << 30));
}

}  // namespace
}  // namespace flotilla
