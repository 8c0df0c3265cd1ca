#include "router/answer/answer_parser.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace flotilla {
namespace {

// One line a part, so that a failure can be read.
std::string Show(const AnswerText& text) {
  std::string out;
  if (!text.reasoning.empty()) StrAppend(&out, "R[", text.reasoning, "]");
  if (!text.content.empty()) StrAppend(&out, "T[", text.content, "]");
  for (const ToolCallPiece& call : text.calls)
    StrAppend(&out, call.index, ":", call.name, "(", call.arguments, ")");
  return out;
}

void Join(AnswerText next, AnswerText* out) {
  out->reasoning += next.reasoning;
  out->content += next.content;
  for (ToolCallPiece& call : next.calls) {
    const bool begins = out->calls.empty() || out->calls.back().index != call.index;
    EXPECT_EQ(begins, !call.name.empty()) << "the name comes first, and once";
    if (begins)
      out->calls.push_back(std::move(call));
    else
      out->calls.back().arguments += call.arguments;
  }
}

// What is made of `text` cut before each of `cuts`.
std::string Parse(const AnswerSyntax& syntax, std::string_view text, std::vector<size_t> cuts) {
  AnswerParser parser(syntax);
  AnswerText all;
  size_t begin = 0;
  cuts.push_back(text.size());
  for (size_t end : cuts) {
    AnswerText piece;
    parser.Push(text.substr(begin, end - begin), &piece);
    Join(std::move(piece), &all);
    begin = end;
  }
  AnswerText last;
  parser.Finish(&last);
  Join(std::move(last), &all);
  EXPECT_EQ(parser.called_tools(), !all.calls.empty());
  return Show(all);
}

// Cut nowhere, at every position, at every two positions, and between all bytes.
void Check(const AnswerSyntax& syntax, std::string_view text, const std::string& expected) {
  EXPECT_EQ(Parse(syntax, text, {}), expected) << text;
  std::vector<size_t> all;
  for (size_t i = 0; i <= text.size(); ++i) {
    all.push_back(i);
    for (size_t j = i; j <= text.size(); ++j)
      ASSERT_EQ(Parse(syntax, text, {i, j}), expected) << text << " cut at " << i << ", " << j;
  }
  EXPECT_EQ(Parse(syntax, text, all), expected) << text;
}

AnswerSyntax Tools(ToolSyntax syntax, std::vector<std::string> names = {"f", "g"}) {
  return {.tools = {.syntax = syntax, .names = std::move(names)}};
}

TEST(AnswerParserTest, CallsMayHaveToComeFirst) {
  AnswerSyntax hermes = Tools(ToolSyntax::kHermes);
  hermes.tools.first = true;
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  Check(hermes, StrCat("\n", call, "\n", call), "0:f({})1:f({})");
  Check(hermes, StrCat("{\"a\": \"", "<tool_call>{}", "\"} "), "T[{\"a\": \"<tool_call>{}\"} ]");
  Check(hermes, StrCat("x", call), StrCat("T[x", call, "]"));
  AnswerSyntax llama = Tools(ToolSyntax::kLlama3);
  llama.tools.first = true;
  Check(llama, R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {}})",
        "0:f({})1:g({})");
  Check(llama, R"(<|python_tag|>{"name": "f", "parameters": {}})", "0:f({})");
  Check(llama, R"(x <|python_tag|>{"name": "f", "parameters": {}})",
        R"(T[x <|python_tag|>{"name": "f", "parameters": {}}])");
}

TEST(AnswerParserTest, ACallThatTheThoughtIsCutBeforeIsNone) {
  AnswerSyntax named = Tools(ToolSyntax::kArguments, {"f"});
  named.reasoning = ReasoningStart::kTagged;
  Check(named, "<thi", "");
  Check(named, "<think>Hm", "R[Hm]");
  Check(named, "<think>Hm</thi", "R[Hm</thi]");
  Check(named, "<think>Hm</think>", "R[Hm]");
  Check(named, "<think>Hm</think>\n\n", "R[Hm]");
  Check(named, "<think>Hm</think>{}", "R[Hm]0:f({})");
}

TEST(AnswerParserTest, WithoutSyntaxAllIsText) {
  Check({}, "<think>a</think> <tool_call>{\"name\":\"f\"}</tool_call> ",
        "T[<think>a</think> <tool_call>{\"name\":\"f\"}</tool_call> ]");
}

TEST(AnswerParserTest, HermesCalls) {
  const AnswerSyntax hermes = Tools(ToolSyntax::kHermes);
  Check(hermes,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": "
        "\"}\\\"\"}]}}\n</tool_call>",
        "0:f({\"a\": [1, {\"b\": \"}\\\"\"}]})");
  Check(hermes,
        "Let me "
        "see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</"
        "tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>\n",
        "T[Let me see.]0:f({})1:g({})");
  Check(hermes, "<tool_call>{\"arguments\": {\"a\":1}, \"id\": 7, \"name\": \"x\"}</tool_call> so",
        "T[so]0:x({\"a\":1})");
  Check(hermes, "<tool_call>[{\"name\":\"f\"},\n{\"name\":\"g\",\"arguments\":{}}]</tool_call>",
        "0:f({})1:g({})");
}

TEST(AnswerParserTest, HermesWithoutItsLastTag) {
  const AnswerSyntax hermes = Tools(ToolSyntax::kHermes);
  Check(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "0:f({})");
  Check(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool", "0:f({})");
  Check(hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}} x", "T[x]0:f({})");
}

// As Qwen writes now and then.
TEST(AnswerParserTest, HermesWithABraceTooMany) {
  const AnswerSyntax hermes = Tools(ToolSyntax::kHermes);
  Check(hermes, "<tool_call>\n{\"name\":\"f\",\"arguments\":{}}}\n</tool_call> so", "T[so]0:f({})");
  Check(hermes,
        "<tool_call>{\"name\":\"f\"} }\n<tool_call>{\"name\":\"g\",\"arguments\":{\"a\":{}}}}",
        "0:f({})1:g({\"a\":{}})");
  Check(hermes, "<tool_call>{\"name\":\"f\"}</tool_call>}", "T[}]0:f({})");
}

TEST(AnswerParserTest, ACallMayFollowOneThatFails) {
  const AnswerSyntax hermes = Tools(ToolSyntax::kHermes);
  Check(hermes, "<tool_call>\n<tool_call>\n{\"name\":\"f\"}</tool_call>", "T[<tool_call>]0:f({})");
  Check(hermes, "<tool_call><tool_call>{\"name\":\"f\"}", "T[<tool_call>]0:f({})");
  Check(hermes, "<tool_call>{\"name\": <tool_call>{\"name\":\"f\"}",
        "T[<tool_call>{\"name\":]0:f({})");
  Check(Tools(ToolSyntax::kLlama3), "{\"a\"<|python_tag|>{\"name\":\"f\"}", "T[{\"a\"]0:f({})");
}

TEST(AnswerParserTest, WhatLooksLikeACallAndIsNoneIsText) {
  const AnswerSyntax hermes = Tools(ToolSyntax::kHermes);
  for (const char* text :
       {"a <tool_call b", "<tool_call", "<tool_call>hello", "<tool_call>{\"name\": 7}", "1 < 2 ",
        "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
        "<tool_call>{\"a\":[1,2],\"b\":true}x",
        "<tool_call>{\"name\":\"f\",\"arguments\":\"x\"}</tool_call>",
        "<tool_call>{\"name\" \"f\"}", "<tool_call>{\"name\":\"f\",\"argum",
        "<tool_call>{\"arguments\":{}}"})
    Check(hermes, text, StrCat("T[", text, "]"));
}

TEST(AnswerParserTest, ACallThatIsCutOffKeepsWhatThereIs) {
  Check(Tools(ToolSyntax::kHermes), "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"b",
        "0:f({\"a\": \"b)");
}

TEST(AnswerParserTest, LlamaCalls) {
  const AnswerSyntax llama = Tools(ToolSyntax::kLlama3);
  Check(llama, "{\"name\": \"f\", \"parameters\": {\"a\": \"ü\"}}", "0:f({\"a\": \"ü\"})");
  Check(llama,
        " {\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}; "
        "{\"name\":\"g\",\"parameters\":{\"n\":-1.5e3}}\n",
        "0:f({})1:g({\"n\":-1.5e3})");
  Check(llama, "<|python_tag|>{\"name\":\"f\",\"parameters\":{}}", "0:f({})");
  Check(llama, "Yes <|python_tag|>{\"name\":\"f\",\"parameters\":{}}", "T[Yes]0:f({})");
}

TEST(AnswerParserTest, LlamasOtherObjectsAreText) {
  const AnswerSyntax llama = Tools(ToolSyntax::kLlama3);
  for (const char* text : {"{\"name\": \"Bob\", \"age\": 7}", "{\"a\":1}", " {",
                           "Hi {\"name\":\"f\"}", "  Hi  ", "<|python_tag|>print(1)", "[1] says {",
                           "[{\"name\": \"Bob\"}]", "[{\"name\":\"f\",\"parameters\":{}}]"})
    Check(llama, text, StrCat("T[", text, "]"));
}

TEST(AnswerParserTest, ArgumentsOfTheOneFunction) {
  Check(Tools(ToolSyntax::kArguments, {"f"}), "{\"a\": 1} ", "0:f({\"a\": 1} )");
  Check(Tools(ToolSyntax::kArguments, {"f"}), "", "0:f()");
}

TEST(AnswerParserTest, AListOfCalls) {
  const AnswerSyntax list = Tools(ToolSyntax::kList);
  Check(list, "[{\"name\":\"f\",\"parameters\":{\"a\":1}} , {\"name\": \"g\", \"parameters\": {}}]",
        "0:f({\"a\":1})1:g({})");
}

// A list that was cut is no answer.
TEST(AnswerParserTest, APieceOfAListOfCallsIsNoText) {
  const AnswerSyntax list = Tools(ToolSyntax::kList);
  for (const char* text : {"", "[", "[ ", "[{", "[{\"name\": \"ge", "[{\"name\":\"f\",\"para"})
    Check(list, text, "");
  const std::string call = "[{\"name\":\"f\",\"parameters\":{\"a\":1";
  Check(list, call, "0:f({\"a\":1)");
  for (const char* text : {"}}", "}}, ", "}}, {", "}}, {\"name\":\"g"})
    Check(list, call + text, "0:f({\"a\":1})");
  AnswerSyntax thoughtful = list;
  thoughtful.reasoning = ReasoningStart::kTagged;
  Check(thoughtful, "<thi", "");
  Check(thoughtful, "<think>Hm</think>\n[{\"na", "R[Hm]");
}

TEST(AnswerParserTest, OneCallIfTheyMayNotBeParallel) {
  AnswerSyntax one = Tools(ToolSyntax::kHermes);
  one.tools.max_calls = 1;
  Check(one,
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"g\"}</"
        "tool_call>",
        "0:f({})");
  AnswerSyntax list = Tools(ToolSyntax::kLlama3);
  list.tools.max_calls = 1;
  Check(list, "{\"name\":\"f\",\"parameters\":{}};{\"name\":\"g\",\"parameters\":{}}", "0:f({})");
}

TEST(AnswerParserTest, Reasoning) {
  const AnswerSyntax tagged = {.reasoning = ReasoningStart::kTagged};
  Check(tagged, "<think>\nHm,\n\nso.\n</think>\n\nFour. ", "R[Hm,\n\nso.]T[Four. ]");
  Check(tagged, "\n<think></think>4", "T[4]");
  Check(tagged, "<think>Hm ", "R[Hm]");
  Check(tagged, "<think>a </thin b", "R[a </thin b]");
  Check(tagged, " <thin", "T[ <thin]");
  Check(tagged, " 4 <think>x</think>", "T[ 4 <think>x</think>]");
  const AnswerSyntax open = {.reasoning = ReasoningStart::kOpen};
  Check(open, "Hm </think> 4", "R[Hm]T[4]");
  Check(open, "Hm", "R[Hm]");
}

TEST(AnswerParserTest, WhatIsThoughtCallsNothing) {
  AnswerSyntax both = Tools(ToolSyntax::kHermes);
  both.reasoning = ReasoningStart::kTagged;
  Check(both,
        "<think>a "
        "<tool_call>{\"name\":\"f\"}</tool_call></think>\n<tool_call>{\"name\":\"g\"}</tool_call>",
        "R[a <tool_call>{\"name\":\"f\"}</tool_call>]0:g({})");
}

AnswerSyntax Qwen3Coder() {
  AnswerSyntax syntax = Tools(ToolSyntax::kQwen3Coder);
  syntax.tools.parameters["f"] = {
      {"n", ParameterType::kJson}, {"o", ParameterType::kTextOrNull}, {"b", ParameterType::kJson}};
  return syntax;
}

TEST(AnswerParserTest, Qwen3CodersParametersBecomeJson) {
  Check(Qwen3Coder(),
        "I look.\n<tool_call>\n<function=f>\n<parameter=city>\nParis \"here\"\n</parameter>\n"
        "<parameter=n>\n 3 \n</parameter>\n<parameter=b>True</parameter>\n</function>\n</tool_call>"
        "\n<tool_call>\n<function=g>\n</function>\n</tool_call>\nx",
        R"(T[I look.x]0:f({"city": "Paris \"here\"", "n": 3, "b": true})1:g({}))");
}

// Text that looks like a number or like tags is text; what should be JSON and is none is text, too.
TEST(AnswerParserTest, Qwen3CodersValuesAreWhatTheSchemaSays) {
  const auto call = [](const std::string& parameters) {
    return StrCat("<tool_call>\n<function=f>\n", parameters, "</function>\n</tool_call>");
  };
  Check(Qwen3Coder(), call("<parameter=zip>\n01234\n</parameter>\n"), R"(0:f({"zip": "01234"}))");
  Check(Qwen3Coder(), call("<parameter=code>\n\nif (a < b) {}\n\n</parameter>\n"),
        R"(0:f({"code": "\nif (a < b) {}\n"}))");
  Check(Qwen3Coder(), call("<parameter=code><function=g></function></parameter>"),
        R"(0:f({"code": "<function=g></function>"}))");
  Check(Qwen3Coder(), call("<parameter=n>\n{\"a\": [1, null]}\n</parameter>\n"),
        R"(0:f({"n": {"a": [1, null]}}))");
  Check(Qwen3Coder(), call("<parameter=n>\nthree\n</parameter>\n"), R"(0:f({"n": "three"}))");
  Check(Qwen3Coder(), call("<parameter=o>null</parameter><parameter=p>null</parameter>"),
        R"(0:f({"o": null, "p": "null"}))");
}

// Strict readers take no name twice, and no JSON that is too deep.
TEST(AnswerParserTest, Qwen3CodersArgumentsCanBeRead) {
  Check(Qwen3Coder(),
        "<tool_call><function=f><parameter=a>1</parameter>x<parameter=a>2</parameter>"
        "<parameter=b>false</parameter></function></tool_call>",
        R"(0:f({"a": "1", "b": false}))");
  const std::string deep = StrCat(std::string(32, '['), std::string(32, ']'));
  Check(Qwen3Coder(),
        StrCat("<tool_call><function=f><parameter=n>", deep, "</parameter></function>"),
        StrCat("0:f({\"n\": \"", deep, "\"})"));
}

// What models forget, and what is no call.
TEST(AnswerParserTest, Qwen3CodersCallsMayLackTags) {
  Check(Qwen3Coder(),
        "Well. <function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        R"(T[Well.]0:f({"a": "1"}))");
  Check(Qwen3Coder(), "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</tool_call> y",
        R"(T[y]0:f({"a": "1"}))");
  const std::string told = "<function=f>\n<parameter=a>\n1\n";
  Check(Qwen3Coder(), StrCat("<tool_call>\n", told, "</function>\n</tool_call>\nDone."),
        R"(T[Done.]0:f({"a": "1"}))");
  Check(Qwen3Coder(),
        StrCat("<tool_call>\n", told, "</tool_call>\n<tool_call>\n", told,
               "<parameter=b>2</parameter></function></tool_call>"),
        R"(0:f({"a": "1"})1:f({"a": "1", "b": 2}))");
  Check(Qwen3Coder(), StrCat("<tool_call>\n", told, "</parameter>\n"), R"(0:f({"a": "1"}))");
  Check(Qwen3Coder(), "<tool_call><function=\"f\" ><parameter= a >1</parameter></function>",
        R"(0:f({"a": "1"}))");
  Check(Qwen3Coder(), "The tag `<function=f>` opens a call.\n\nMore.",
        "T[The tag `<function=f>` opens a call.\n\nMore.]");
  Check(Qwen3Coder(), "<tool_call><function=f>\nI think <parameter=a>",
        "T[<tool_call><function=f>\nI think <parameter=a>]");
  Check(Qwen3Coder(), "as in <function=other> or <func", "T[as in <function=other> or <func]");
  Check(Qwen3Coder(), "<tool_call>{\"name\": \"f\"}</tool_call>",
        "T[<tool_call>{\"name\": \"f\"}</tool_call>]");
  Check(Qwen3Coder(), "<tool_call><function=f><parameter=a>1", "0:f({)");
}

constexpr ToolSyntax kMistrals[] = {ToolSyntax::kMistral, ToolSyntax::kMistralNamed};

TEST(AnswerParserTest, MistralsCallsAreAList) {
  for (const ToolSyntax syntax : kMistrals) {
    const AnswerSyntax mistral = Tools(syntax);
    Check(mistral,
          R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}, "id": "123456789"}, {"name":)"
          R"( "other", "arguments": {}}])",
          R"(0:f({"a": [1]})1:other({}))");
    Check(mistral, "I look.\n[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}]\n",
          "T[I look.]0:f({})");
    Check(mistral, R"([TOOL_CALLS] {"name":"f","arguments":{}})", "0:f({})");
    Check(mistral, R"([TOOL_CALLS][{"arguments":{"b":2},"name":"f"}] and so, on)",
          R"(T[and so, on]0:f({"b":2}))");
    Check(mistral, R"([TOOL_CALLS][{"name":"f","arguments":{"a": "}])", R"(0:f({"a": "}]))");
    // Behind the list a grammar holds nothing any more.
    Check(mistral, R"([TOOL_CALLS][{"name":"f"}] {"name": "x", "arguments": {}})",
          R"(T[{"name": "x", "arguments": {}}]0:f({}))");
  }
}

TEST(AnswerParserTest, MistralsCallsHaveTheirNamesInFront) {
  for (const ToolSyntax syntax : kMistrals) {
    const AnswerSyntax mistral = Tools(syntax);
    Check(mistral, R"([TOOL_CALLS]f[ARGS]{"a": "{\"}"}[TOOL_CALLS]x.y-z{"b": {}})",
          R"(0:f({"a": "{\"}"})1:x.y-z({"b": {}}))");
    Check(mistral, R"(Yes.[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"a": 1}</s>)",
          R"(T[Yes.</s>]0:f({"a": 1}))");
    Check(mistral, "[TOOL_CALLS] f [ARGS] {}\n[TOOL_CALLS]g {}", "0:f({})1:g({})");
    Check(mistral, R"([TOOL_CALLS]f[ARGS]{"a": )", R"(0:f({"a": ))");
    Check(mistral, R"([TOOL_CALLS]f[ARGS]{}{"name":"x","arguments":{}})",
          R"(T[{"name":"x","arguments":{}}]0:f({}))");
  }
}

TEST(AnswerParserTest, MistralsTextsAreNoCalls) {
  for (const ToolSyntax syntax : kMistrals) {
    for (const char* text :
         {"[TOOL_CALLS", "[TOOL_CALLS]", "[TOOL_CALLS] [", "[TOOL_CALLS]f", "[TOOL_CALLS]f[AR",
          "[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS] x", "[TOOL_CALLS] is a tag {}",
          "[TOOL_CALLS]f[CALL_ID]1{}", "[TOOL_CALLS]f[CALL_ID]1 2", "[TOOL_CALLS]f[TOOL_CALLS]",
          "[TOOL_CALLS][\"f\"]", "[TOOL_CALLS][[CALL_ID]", "[TOOL_CALLS][{\"name\": 7}]",
          "f[ARGS]{}", "[{\"name\": \"f\", \"arguments\": {}}]"})
      Check(Tools(syntax), text, StrCat("T[", text, "]"));
  }
}

TEST(AnswerParserTest, GranitesCalls) {
  const AnswerSyntax granite = Tools(ToolSyntax::kGranite);
  constexpr const char* kList =
      R"([{"name": "f", "arguments": {"a": 1}}, {"name": "x", "arguments": {}}])";
  const std::string calls = R"(0:f({"a": 1})1:x({}))";
  Check(granite, StrCat("<|tool_call|>", kList), calls);
  Check(granite, StrCat("<tool_call>\n", kList), calls);
  Check(granite, StrCat("I look. <tool_call>", kList, "</tool_call>"), StrCat("T[I look.]", calls));
  Check(granite, R"(<|tool_call|>{"name": "f"})", "0:f({})");
  for (const char* text : {"<|tool_call|>", "a < b <|tool", "<|tool_call|>[1]", "<tool_call>x"})
    Check(granite, text, StrCat("T[", text, "]"));
}

TEST(AnswerParserTest, PhisCalls) {
  const AnswerSyntax phi = Tools(ToolSyntax::kPhi4Mini);
  Check(phi, R"(<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>)",
        R"(0:f({"a": 1}))");
  Check(phi, R"(So: functools[{"name": "f", "arguments": {}}, {"name": "g", "parameters": {}}])",
        "T[So:]0:f({})1:g({})");
  Check(phi, R"(functools[{"name": "f"}]<|/tool)", "0:f({})");
  for (const char* text : {"from functools import cache", "functools", "`functools[0]`, func",
                           "functools[{\"a\": 1}]"})
    Check(phi, text, StrCat("T[", text, "]"));
}

TEST(AnswerParserTest, OneCallOfAList) {
  AnswerSyntax one = Tools(ToolSyntax::kMistral);
  one.tools.max_calls = 1;
  Check(one, R"([TOOL_CALLS][{"name":"f"}, {"name":"g"}] x)", "T[x]0:f({})");
  Check(one, "[TOOL_CALLS]f{}[TOOL_CALLS]g{}", "0:f({})");
}

TEST(AnswerParserTest, TheTemplateAndThePromptTellWhereReasoningStarts) {
  const std::string thinks = "{{ '</think>' }}";
  EXPECT_EQ(ReasoningStartOf(thinks, "assistant\n", {}), ReasoningStart::kTagged);
  EXPECT_EQ(ReasoningStartOf(thinks, "assistant\n<think>\n", {}), ReasoningStart::kOpen);
  EXPECT_EQ(ReasoningStartOf(thinks, "assistant\n<think>\n\n</think>\n\n", {}),
            ReasoningStart::kNone);
  EXPECT_EQ(ReasoningStartOf("", "<think>\n", {}), ReasoningStart::kNone);
  EXPECT_EQ(ReasoningStartOf(thinks, "", {.reasoning_parser = "none"}), ReasoningStart::kNone);
  EXPECT_EQ(ReasoningStartOf("", "", {.reasoning_parser = "think"}), ReasoningStart::kTagged);
}

TEST(AnswerParserTest, ABegunAnswerTellsWhetherItStillThinks) {
  const std::string thinks = "{{ '</think>' }}";
  EXPECT_EQ(ReasoningGoesOn(thinks, " <think>\n", {}), ReasoningStart::kOpen);
  EXPECT_EQ(ReasoningGoesOn(thinks, "<think>Well,", {}), ReasoningStart::kGoesOn);
  EXPECT_EQ(ReasoningGoesOn(thinks, "It writes <think>", {}), ReasoningStart::kNone);
  EXPECT_EQ(ReasoningGoesOn(thinks, "<think>Well</think>So", {}), ReasoningStart::kNone);
  EXPECT_EQ(ReasoningGoesOn(thinks, "So", {}), ReasoningStart::kNone);
  EXPECT_EQ(ReasoningGoesOn("", "<think>Well, ", {}), ReasoningStart::kNone);
}

TEST(ReasoningParserTest, AThoughtThatGoesOnKeepsItsSpace) {
  for (const ReasoningStart start : {ReasoningStart::kOpen, ReasoningStart::kGoesOn}) {
    ReasoningParser parser(start);
    std::string reasoning, content;
    for (const char* piece : {" let", " me see</th", "ink> So"}) {
      parser.Push(piece, &reasoning, &content);
    }
    parser.Finish(&reasoning, &content);
    EXPECT_EQ(reasoning, start == ReasoningStart::kOpen ? "let me see" : " let me see");
    EXPECT_EQ(content, "So");
  }
}

}  // namespace
}  // namespace flotilla
