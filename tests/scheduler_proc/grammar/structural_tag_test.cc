// Structural tags: what is refused, and what those that are taken allow.
#include "scheduler_proc/grammar/structural_tag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "tests/scheduler_proc/grammar/grammar_testing.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

using testing::Allows;
using testing::ExpectFollows;
using testing::kTestEos;
using testing::TestTokens;

std::string Tag(std::string_view format) {
  return StrCat(R"({"type":"structural_tag","format":)", format, "}");
}

class StructuralTagTest : public ::testing::Test {
 protected:
  StatusOr<std::shared_ptr<const Grammar>> Compile(std::string_view format) {
    ASSIGN_OR_RETURN(std::string checked, CheckStructuralTag(Tag(format), "tag"));
    ASSIGN_OR_RETURN(const std::string compiled,
                     CompileToJson({GrammarKind::kStructuralTag, std::move(checked)}, vocabulary_));
    return GrammarFromJson(compiled, vocabulary_);
  }
  // A matcher that has followed `text`; null if it may not come.
  static std::unique_ptr<GrammarMatcher> After(const Grammar& grammar, std::string_view text) {
    auto matcher = grammar.NewMatcher();
    EXPECT_TRUE(matcher.ok()) << matcher.status();
    for (const char c : text) {
      if (!(*matcher)->Accept(static_cast<unsigned char>(c)).ok()) return nullptr;
    }
    return *std::move(matcher);
  }
  static std::vector<int32_t> Next(GrammarMatcher* matcher) {
    std::vector<uint32_t> mask(MaskWords(TestTokens().vocab_size));
    EXPECT_TRUE(matcher->FillMask(mask).ok());
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < 270; ++token) {
      if (Allows(mask, token)) allowed.push_back(token);
    }
    return allowed;
  }

  const XGrammarVocabulary vocabulary_{TestTokens()};
};

TEST_F(StructuralTagTest, WhatIsNoneIsRefused) {
  struct Case {
    const char* text;
    const char* message;
  };
  const Case cases[] = {
      {"{", "tag: not valid JSON: incomplete JSON at byte 1"},
      {"[]", R"(tag: must be an object {"type": "structural_tag", "format": {…}})"},
      {R"({"format":7})", "tag: a format must be an object"},
      {R"({"format":{}})", "tag: a format has no 'type'"},
      {R"({"format":{"type":7}})", "tag: 'type' must be a string"},
      {R"({"format":{"type":"token","token":1}})", "tag: the format 'token' is not supported"},
      {R"({"format":{"type":"any_text","max_chars":1}})",
       "tag: 'max_chars' of 'any_text' is not supported"},
      {R"({"format":{"type":"json_schema","json_schema":{},"style":"qwen_xml"}})",
       "tag: 'style' of 'json_schema' is not supported"},
      {R"({"format":{"type":"sequence","elements":{}}})", "tag: 'elements' must be an array"},
      {R"({"format":{"type":"tag","begin":{},"content":{"type":"any_text"},"end":"x"}})",
       "tag: 'begin' of a tag must be a string"},
      {R"({"format":{"type":"tag","begin":"","content":{"type":"any_text"},"end":{}}})",
       "tag: 'end' of a tag must be a string or an array of them"},
      {R"({"format":{"type":"triggered_tags","triggers":["<"],"tags":[{"type":"or"}]}})",
       "tag: 'type' must be 'tag'"},
      {R"({"format":{"type":"regex","pattern":"a{1,9999999999}"}})",
       "tag: repeats something more than 999999999 times"},
      {R"({"format":{"type":"const_string","value":"\u0000"}})", "tag: has a zero byte"},
      {R"({"format":{"type":"any_text","excludes":["a\u0000"]}})", "tag: has a zero byte"},
      {R"({"format":{"type":"any_text"},"type":"tag"})",
       "tag: 'type' beside 'format' is not 'structural_tag'"},
      {R"({"format":{"type":"any_text"},"triggers":[]})",
       "tag: 'triggers' beside 'format' is not supported"},
      {R"({"format":{"type":"json_schema","json_schema":{"not":{}}}})",
       "tag: 'not' is not supported"},
      {R"({"format":{"type":"triggered_tags","triggers":["<"],"tags":[
            {"begin":"<f>\n","content":{"type":"json_schema","json_schema":{"not":{}}},"end":">"}]}})",
       R"(tag: in the tag "<f>\n": 'not' is not supported)"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(CheckStructuralTag(c.text, "tag").status().message(), c.message) << c.text;
}

TEST_F(StructuralTagTest, ASchemaInsideIsReadAsOneAlone) {
  const auto checked = CheckStructuralTag(
      Tag(R"({"type":"json_schema","json_schema":{"type":"object","required":["a"]}})"), "tag");
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(*checked,
            R"({"format":{"type":"json_schema","json_schema":{"type":"object","required":["a"],)"
            R"("properties":{"a":{}}},"max_whitespace_cnt":2}})");
  // As deep as alone: the formats around it take nothing of that.
  std::string schema = "true";
  for (int i = 0; i < 31; ++i) schema = StrCat(R"({"additionalProperties":)", schema, "}");
  ASSERT_TRUE(CheckJsonSchema(schema, "tag").ok());
  std::string format = StrCat(R"({"type":"json_schema","json_schema":)", schema, "}");
  for (int i = 0; i < 6; ++i) format = StrCat(R"({"type":"sequence","elements":[)", format, "]}");
  EXPECT_TRUE(CheckStructuralTag(Tag(format), "tag").ok());
}

// What a pattern writes so is no zero byte.
TEST_F(StructuralTagTest, AnEscapeForZeroIsTaken) {
  const auto regex = Compile(R"({"type":"regex","pattern":"[^\\u0000-\\u001f]+"})");
  ASSERT_TRUE(regex.ok()) << regex.status();
  ExpectFollows(**regex, "ab", true);
  EXPECT_EQ(After(**regex, "\n"), nullptr);
  EXPECT_TRUE(CheckStructuralTag(Tag(R"({"type":"json_schema","json_schema":
      {"type":"string","description":"\\u0000 and \u0000"}})"),
                                 "tag")
                  .ok());
}

TEST_F(StructuralTagTest, TextUntilATriggerThenWhatTheTagHolds) {
  const auto grammar = Compile(R"({"type":"triggered_tags","triggers":["<f"],"tags":[
      {"begin":"<f>","content":{"type":"json_schema","json_schema":
        {"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}},"end":"</f>"},
      {"begin":"<fg>","content":{"type":"json_schema","json_schema":{"type":"null"}},"end":"</fg>"}]})");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  ExpectFollows(**grammar, "", true);
  ExpectFollows(**grammar, "Any {text} <or that", true);
  ExpectFollows(**grammar, "I call <f", false);
  ExpectFollows(**grammar, R"(I call <f>{"a": 12}</f> and <fg>null</fg>.)", true);
  EXPECT_EQ(After(**grammar, "<fx"), nullptr);
  EXPECT_EQ(After(**grammar, R"(<f>{"b)"), nullptr);
  EXPECT_EQ(After(**grammar, "<fg>1"), nullptr);
}

// Each text ends where its own tag does.
TEST_F(StructuralTagTest, TextsOfTagsWithOtherEnds) {
  const auto grammar = Compile(R"({"type":"sequence","elements":[
      {"type":"tag","begin":"<a>","content":{"type":"any_text"},"end":"</a>"},
      {"type":"tag","begin":"<b>","content":{"type":"any_text"},"end":["</b>","!"]}]})");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  ExpectFollows(**grammar, "<a></b>!</a><b></a></b>", true);
  ExpectFollows(**grammar, "<a></a><b>x!", true);
  EXPECT_EQ(After(**grammar, "<a></a>x"), nullptr);
}

TEST_F(StructuralTagTest, EveryFormatOfTextIsTaken) {
  struct Case {
    const char* format;
    const char* text;
    const char* never;
  };
  const Case cases[] = {
      {R"({"type":"const_string","value":"yes"})", "yes", "yo"},
      {R"({"type":"any_text","excludes":["x"]})", "abc", "x"},
      {R"({"type":"regex","pattern":"a+"})", "aa", "b"},
      {R"({"type":"grammar","grammar":"root ::= \"a\" root \"b\" | \"c\""})", "acb", "ab"},
      {R"({"type":"or","elements":[{"type":"const_string","value":"a"},
           {"type":"const_string","value":"b"}]})",
       "b", "c"},
      {R"({"type":"optional","content":{"type":"const_string","value":"a"}})", "", "b"},
      {R"({"type":"plus","content":{"type":"const_string","value":"a"}})", "aaa", "b"},
      {R"({"type":"star","content":{"type":"const_string","value":"a"}})", "", "b"},
      {R"({"type":"repeat","min":2,"max":3,"content":{"type":"const_string","value":"a"}})", "aa",
       "aaaa"},
      {R"({"type":"tags_with_separator","separator":", ","at_least_one":true,"tags":[
           {"begin":"<","content":{"type":"regex","pattern":"[a-z]"},"end":">"}]})",
       "<a>, <b>", "<a><"},
      {R"({"type":"json_schema","json_schema":{"type":"object","additionalProperties":true}})",
       R"({"any": [1]})", "["},
  };
  for (const Case& c : cases) {
    const auto grammar = Compile(c.format);
    ASSERT_TRUE(grammar.ok()) << c.format << grammar.status();
    ExpectFollows(**grammar, c.text, true);
    EXPECT_EQ(After(**grammar, c.never), nullptr) << c.format;
  }
}

// A thought may be long: it costs no steps that are not its tokens' own, and what it was is
// forgotten, here and by the copy that follows drafts.
TEST_F(StructuralTagTest, LongTextsCostLittle) {
  const auto grammar = Compile(R"({"type":"sequence","elements":[
      {"type":"tag","begin":"<t>","content":{"type":"any_text"},"end":"</t>"},
      {"type":"json_schema","json_schema":{"type":"null"}}]})");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  auto matcher = After(**grammar, "<t>");
  ASSERT_NE(matcher, nullptr);
  const uint32_t words = MaskWords(270);
  std::vector<uint32_t> masks(3 * words);
  const auto write = [&](int tokens) {
    for (int i = 0; i < tokens; ++i) {
      ASSERT_TRUE(matcher->FillMask(std::span(masks).first(words)).ok()) << i;
      const std::vector<int32_t> draft = {'x', 'y'};
      if (i % 50 == 0) {
        EXPECT_EQ(matcher->FollowGuess(draft, masks), 2u);
      }
      ASSERT_TRUE(matcher->Accept('a' + i % 26).ok()) << i;
    }
  };
  write(10'000);
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = in_use();
  write(100'000);
  const size_t after = in_use();
  if (!kSanitized) {
    EXPECT_LT(after, before + 100'000 * 40);
  }
  for (const char c : std::string("</t>nu")) ASSERT_TRUE(matcher->Accept(c).ok());
  EXPECT_THAT(Next(matcher.get()), ::testing::ElementsAre('l'));
  ASSERT_TRUE(matcher->FillMask(std::span(masks).first(words)).ok());
  EXPECT_EQ(matcher->FollowGuess(std::vector<int32_t>{'l', 'l'}, masks), 2u);
}

TEST_F(StructuralTagTest, ATextMayHaveSoManyTokens) {
  const auto grammar = Compile(R"({"type":"sequence","elements":[
      {"type":"any_text","excludes":["</t>"],"max_tokens":3},
      {"type":"const_string","value":"</t>"},{"type":"any_text"}]})");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  auto matcher = After(**grammar, "ab");
  ASSERT_NE(matcher, nullptr);
  EXPECT_GT(Next(matcher.get()).size(), 180u);
  // A draft is told where it has to end, and the matcher goes on as if nothing had been asked.
  const uint32_t words = MaskWords(270);
  std::vector<uint32_t> masks(4 * words);
  ASSERT_TRUE(matcher->FillMask(std::span(masks).first(words)).ok());
  EXPECT_EQ(matcher->FollowGuess(std::vector<int32_t>{'c', 'd', 'e'}, masks), 1u);
  EXPECT_FALSE(Allows(std::span(masks).subspan(words, words), 'd'));
  EXPECT_GT(Next(matcher.get()).size(), 180u);
  ASSERT_TRUE(matcher->Accept('c').ok());
  EXPECT_THAT(Next(matcher.get()), ::testing::ElementsAre('<'));
  for (const char c : std::string("</t>abcdefg")) ASSERT_TRUE(matcher->Accept(c).ok());
  EXPECT_GT(Next(matcher.get()).size(), 180u);
  // An end that the budget's last tokens begin may be finished.
  EXPECT_NE(After(**grammar, "a</t>abcdefg"), nullptr);
}

// An answer that goes on elsewhere is followed without masks, and then masked as if it had been.
TEST_F(StructuralTagTest, BudgetsDoNotDependOnMasksThatWereMade) {
  const auto grammar = Compile(R"({"type":"sequence","elements":[
      {"type":"any_text","excludes":["</t>"],"max_tokens":3},
      {"type":"const_string","value":"</t>"},{"type":"any_text"}]})");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const std::string text : {"abc</t>x", "ab</t>x", "a</t>x", "</t>x", "</a</t>"}) {
    const auto masked = (*grammar)->NewMatcher();
    for (size_t i = 0; i < text.size(); ++i) {
      const auto resumed = After(**grammar, text.substr(0, i));
      ASSERT_NE(resumed, nullptr);
      const std::vector<int32_t> next = Next(masked->get());
      EXPECT_EQ(Next(resumed.get()), next) << text << " at " << i;
      ASSERT_THAT(next, ::testing::Contains(text[i])) << text << " at " << i;
      ASSERT_TRUE((*masked)->Accept(text[i]).ok());
    }
  }
}

}  // namespace
}  // namespace flotilla
