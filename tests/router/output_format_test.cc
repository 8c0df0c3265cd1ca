// Outputs of several parts (output_format.h), as the grammar engine takes them.
#include "router/api/output_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "scheduler_proc/grammar/grammar_spec.h"
#include "tests/scheduler_proc/grammar/grammar_testing.h"

namespace flotilla {
namespace {

namespace json = boost::json;
using testing::ExpectFollows;

class OutputFormatTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Grammar> Compile(const v1::StructuredOutput& output) {
    auto spec = ReadStructured(output, 1 << 20);
    EXPECT_TRUE(spec.ok()) << spec.status();
    auto compiled = CompileToJson(*spec, vocabulary_);
    EXPECT_TRUE(compiled.ok()) << compiled.status() << output.structural_tag();
    auto grammar = GrammarFromJson(*compiled, vocabulary_);
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    return *grammar;
  }
  static bool Takes(const Grammar& grammar, const std::string& text) {
    auto matcher = grammar.NewMatcher();
    std::vector<uint32_t> mask(MaskWords(testing::TestTokens().vocab_size));
    for (const char c : text) {
      const auto token = static_cast<int32_t>(static_cast<unsigned char>(c));
      if (!matcher.ok() || !(*matcher)->FillMask(mask).ok() || !testing::Allows(mask, token))
        return false;
      EXPECT_TRUE((*matcher)->Accept(token).ok());
    }
    return true;
  }
  static ToolSet Tools(bool strict, bool parallel = true) {
    ToolSet tools;
    const json::object schema = json::parse(R"({"properties":{"n":{"type":"integer"}},
        "required":["n"]})")
                                    .as_object();
    tools.tools.push_back({"f", "tools[0]", schema, strict});
    tools.tools.push_back({"g", "tools[1]", {}, false});
    tools.parallel = parallel;
    return tools;
  }

  const XGrammarVocabulary vocabulary_{testing::TestTokens()};
};

TEST_F(OutputFormatTest, AThoughtMayComeBeforeEachKindOfAnswer) {
  struct Case {
    const char* name;
    void (*set)(v1::StructuredOutput* out);
    const char* answer;
    const char* never;
  };
  const Case cases[] = {
      {"schema", [](auto* out) { out->set_json_schema(R"({"type":"integer"})"); }, "12", "x"},
      {"object", [](auto* out) { out->set_json_object(true); }, R"({"a": [1]})", "["},
      {"regex", [](auto* out) { out->set_regex("a+"); }, "aa", "b"},
      {"grammar", [](auto* out) { out->set_ebnf(R"(root ::= "a" root "b" | "c")"); }, "acb", "ab"},
      {"choice",
       [](auto* out) {
         out->mutable_choice()->add_options("yes \"or\"");
         out->mutable_choice()->add_options("no");
       },
       "yes \"or\"", "x"},
      {"tag",
       [](auto* out) {
         out->set_structural_tag(
             R"({"type":"structural_tag","format":{"type":"const_string","value":"hm"}})");
       },
       "hm", "x"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    v1::StructuredOutput tagged;
    c.set(&tagged);
    ASSERT_TRUE(LetThinkFirst(ReasoningStart::kTagged, std::nullopt, &tagged));
    const auto may = Compile(tagged);
    ExpectFollows(*may, c.answer, true);
    ExpectFollows(*may, StrCat("<think>Any {text} </thin.\n</think>\n\n", c.answer), true);
    ExpectFollows(*may, "<think>x", false);
    EXPECT_FALSE(Takes(*may, c.never));
    EXPECT_FALSE(Takes(*may, StrCat("<think></think>", c.never)));
    EXPECT_FALSE(Takes(*may, "<think></think>\n\n\n"));
    for (const ReasoningStart start : {ReasoningStart::kOpen, ReasoningStart::kGoesOn}) {
      v1::StructuredOutput open;
      c.set(&open);
      ASSERT_TRUE(LetThinkFirst(start, std::nullopt, &open));
      const auto must = Compile(open);
      ExpectFollows(*must, StrCat("I see.</think>", c.answer), true);
      ExpectFollows(*must, c.answer, false);
    }
  }
}

TEST_F(OutputFormatTest, WithoutAThoughtOrAWishNothingIsDone) {
  v1::StructuredOutput none, schema, wrong;
  EXPECT_FALSE(LetThinkFirst(ReasoningStart::kTagged, std::nullopt, &none));
  EXPECT_EQ(none.kind_case(), v1::StructuredOutput::KIND_NOT_SET);
  schema.set_json_schema("{}");
  EXPECT_FALSE(LetThinkFirst(ReasoningStart::kNone, 7, &schema));
  EXPECT_EQ(schema.json_schema(), "{}");
  wrong.set_json_schema("{");
  EXPECT_FALSE(LetThinkFirst(ReasoningStart::kTagged, std::nullopt, &wrong));
  HoldCalls(Tools(true), ToolSyntax::kHermes, &wrong);
  EXPECT_EQ(wrong.json_schema(), "{") << "the replica says what is wrong with it";
  wrong.mutable_choice();
  EXPECT_FALSE(LetThinkFirst(ReasoningStart::kTagged, std::nullopt, &wrong));
}

// What comes behind the budget is free, but no thought of its own.
TEST_F(OutputFormatTest, AThoughtHasABudget) {
  v1::StructuredOutput open, tagged;
  ASSERT_TRUE(LetThinkFirst(ReasoningStart::kOpen, 3, &open));
  const auto must = Compile(open);
  ExpectFollows(*must, "abc</think>\n\nFour. And <think>", true);  // which is text there
  EXPECT_FALSE(Takes(*must, "abcd"));
  ASSERT_TRUE(LetThinkFirst(ReasoningStart::kTagged, 3, &tagged));
  const auto may = Compile(tagged);
  ExpectFollows(*may, "Four.", true);
  ExpectFollows(*may, "<think>ab</think>Four.", true);
  ExpectFollows(*may, "<think>abc", false);
  EXPECT_FALSE(Takes(*may, "<think>abcd"));
  v1::StructuredOutput none;
  ASSERT_TRUE(LetThinkFirst(ReasoningStart::kOpen, 0, &none));
  EXPECT_FALSE(Takes(*Compile(none), "a"));
}

// Text that is free within a client's own form, at any place of it, is no thought, either.
TEST_F(OutputFormatTest, AThoughtIsNoPartOfAForm) {
  for (const char* format :
       {R"({"type":"or","elements":[{"type":"const_string","value":"no"},{"type":"any_text"}]})",
        R"({"type":"optional","content":{"type":"any_text","excludes":["x"]}})",
        R"({"type":"triggered_tags","triggers":["<f"],"tags":[
            {"begin":"<f>","content":{"type":"any_text"},"end":"!"}]})"}) {
    v1::StructuredOutput output;
    output.set_structural_tag(StrCat(R"({"type":"structural_tag","format":)", format, "}"));
    ASSERT_TRUE(LetThinkFirst(ReasoningStart::kTagged, 2, &output));
    const auto grammar = Compile(output);
    ExpectFollows(*grammar, "<think>a</think>Four", true);
    EXPECT_FALSE(Takes(*grammar, "<think>abc")) << format;
  }
  // What is no list stays, to be refused.
  v1::StructuredOutput wrong;
  wrong.set_structural_tag(R"({"format":{"type":"any_text","excludes":7}})");
  ASSERT_TRUE(LetThinkFirst(ReasoningStart::kTagged, 2, &wrong));
  EXPECT_FALSE(CompileToJson(*ReadStructured(wrong, 1 << 20), vocabulary_).ok());
}

// Schemas may be as deep as alone, for both.
TEST_F(OutputFormatTest, DeepSchemasHaveThoughtsAndCalls) {
  std::string schema = "true";
  for (int i = 0; i < 31; ++i) schema = StrCat(R"({"additionalProperties":)", schema, "}");
  v1::StructuredOutput output;
  output.set_json_schema(schema);
  HoldCalls(Tools(true), ToolSyntax::kHermes, &output);
  ASSERT_TRUE(output.has_structural_tag());
  ASSERT_TRUE(LetThinkFirst(ReasoningStart::kTagged, std::nullopt, &output));
  EXPECT_TRUE(ReadStructured(output, 1 << 20).ok()) << ReadStructured(output, 1 << 20).status();
}

constexpr const char* kCallF =
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>";
constexpr const char* kCallG =
    "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"any\": [true]}}\n</tool_call>";

TEST_F(OutputFormatTest, CallsOfStrictToolsBetweenTexts) {
  v1::StructuredOutput output;
  HoldCalls(Tools(true), ToolSyntax::kHermes, &output);
  const auto grammar = Compile(output);
  ExpectFollows(*grammar, "It is {\"f\": 1} <tool", true);
  ExpectFollows(*grammar, StrCat("I look.\n", kCallF, "\n", kCallG), true);
  EXPECT_FALSE(Takes(*grammar, "<tool_call>\n{\"name\": \"h"));
  EXPECT_FALSE(Takes(*grammar, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"m"));
  HoldCalls(Tools(true, /*parallel=*/false), ToolSyntax::kHermes, &(output = {}));
  const auto one = Compile(output);
  ExpectFollows(*one, StrCat("I look.\n", kCallF), true);
  EXPECT_FALSE(Takes(*one, StrCat(kCallF, "\n<")));
  // A thought is none of those texts.
  ASSERT_TRUE(LetThinkFirst(ReasoningStart::kOpen, std::nullopt, &output));
  const auto after = Compile(output);
  ExpectFollows(*after, StrCat("Is it <tool_call>x?</think>\n\n", kCallF), true);
  EXPECT_FALSE(Takes(*after, "</think><tool_call>x"));
}

TEST_F(OutputFormatTest, CallsOrAnAnswerOfAForm) {
  v1::StructuredOutput output;
  output.set_json_schema(R"({"type":"boolean"})");
  HoldCalls(Tools(false), ToolSyntax::kHermes, &output);
  const auto grammar = Compile(output);
  ExpectFollows(*grammar, "true", true);
  ExpectFollows(*grammar, StrCat(kCallG, "\n", kCallG), true);
  ExpectFollows(*grammar, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"m\": 1}}\n</tool_call>",
                true);
  EXPECT_FALSE(Takes(*grammar, "I look."));
  EXPECT_FALSE(Takes(*grammar, StrCat(kCallF, "\ntrue")));
}

constexpr const char* kListOfCalls =
    R"([{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {"any": [true]}}])";

TEST_F(OutputFormatTest, ListsOfCallsBehindTheirTags) {
  struct Case {
    ToolSyntax syntax;
    std::vector<const char*> begin;
  };
  const Case cases[] = {{ToolSyntax::kMistral, {"[TOOL_CALLS]"}},
                        {ToolSyntax::kGranite, {"<|tool_call|>", "<tool_call>"}},
                        {ToolSyntax::kPhi4Mini, {"<|tool_call|>", "functools"}}};
  for (const Case& c : cases) {
    v1::StructuredOutput output, form;
    HoldCalls(Tools(true), c.syntax, &output);
    const auto grammar = Compile(output);
    HoldCalls(Tools(true, /*parallel=*/false), c.syntax, &(output = {}));
    const auto one = Compile(output);
    form.set_json_schema(R"({"type":"boolean"})");
    HoldCalls(Tools(true), c.syntax, &form);
    const auto either = Compile(form);
    ExpectFollows(*grammar, "It is [{\"name\": \"f\"}] <|tool", true);
    ExpectFollows(*grammar, "from functools import cache", true);
    ExpectFollows(*either, "true", true);
    EXPECT_FALSE(Takes(*either, "I look."));
    for (const char* begin : c.begin) {
      ExpectFollows(*grammar, StrCat("I look. ", begin, kListOfCalls, "<|/tool_call|>"), true);
      EXPECT_FALSE(Takes(*grammar, StrCat(begin, R"([{"name": "h)")));
      EXPECT_FALSE(Takes(*grammar, StrCat(begin, R"([{"name": "f", "arguments": {"m)")));
      ExpectFollows(*one, StrCat(begin, R"([{"name": "f", "arguments": {"n": 1}}])"), true);
      EXPECT_FALSE(Takes(*one, StrCat(begin, R"([{"name": "f", "arguments": {"n": 1}},)")));
      ExpectFollows(*either, StrCat(begin, kListOfCalls), true);
      EXPECT_FALSE(Takes(*either, StrCat(begin, kListOfCalls, "t")));
    }
  }
}

TEST_F(OutputFormatTest, CallsWithTheirNamesInFront) {
  v1::StructuredOutput output;
  HoldCalls(Tools(true), ToolSyntax::kMistralNamed, &output);
  const auto grammar = Compile(output);
  const std::string f = R"([TOOL_CALLS]f[ARGS]{"n": 1})", g = R"([TOOL_CALLS]g[ARGS]{"a": 1})";
  ExpectFollows(*grammar, StrCat("I look.", f, g), true);
  EXPECT_FALSE(Takes(*grammar, "[TOOL_CALLS]h"));
  EXPECT_FALSE(Takes(*grammar, R"([TOOL_CALLS]f[ARGS]{"m)"));
  output = {};
  output.set_regex("yes|no");
  HoldCalls(Tools(true), ToolSyntax::kMistralNamed, &output);
  const auto either = Compile(output);
  ExpectFollows(*either, "yes", true);
  ExpectFollows(*either, StrCat(f, g), true);
  EXPECT_FALSE(Takes(*either, StrCat(f, "yes")));
}

TEST_F(OutputFormatTest, LlamasCallsComeFirst) {
  v1::StructuredOutput output;
  HoldCalls(Tools(true), ToolSyntax::kLlama3, &output);
  const auto grammar = Compile(output);
  const std::string call = R"({"name": "f", "parameters": {"n": 1}})";
  ExpectFollows(*grammar, "", true);
  ExpectFollows(*grammar, call, true);
  ExpectFollows(*grammar, StrCat(call, "; ", call), true);
  ExpectFollows(*grammar, StrCat("It is ", call), true);
  EXPECT_FALSE(Takes(*grammar, R"({"name": "f", "parameters": {"m)"));
  EXPECT_FALSE(Takes(*grammar, " {"));
  ExpectFollows(*grammar, R"([{"name": "f"}] is a list.)", true);  // read as text, too
  for (const char* escape : {";{", "<|python_tag|>", "<think>"})
    EXPECT_FALSE(Takes(*grammar, escape));
  ASSERT_TRUE(LetThinkFirst(ReasoningStart::kTagged, 3, &output));
  const auto thinks = Compile(output);
  ExpectFollows(*thinks, StrCat("<think>ab</think>\n\n", call), true);
  EXPECT_FALSE(Takes(*thinks, "<think>abcd"));
  output = {};
  output.set_regex("yes|no");
  HoldCalls(Tools(true, /*parallel=*/false), ToolSyntax::kLlama3, &output);
  const auto either = Compile(output);
  ExpectFollows(*either, "yes", true);
  ExpectFollows(*either, call, true);
  EXPECT_FALSE(Takes(*either, StrCat(call, ";")));
}

}  // namespace
}  // namespace flotilla
