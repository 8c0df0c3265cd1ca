// Tools and reasoning in /v1/chat/completions, end to end over HTTP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "router/api/chat_request.h"
#include "router/api/messages_request.h"
#include "router/api/responses_request.h"
#include "tests/fakes/byte_vocabulary.h"
#include "tests/router/router_harness.h"
#include "tests/router/template_model.h"

namespace flotilla {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":
       {"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}}}}},
       {"type":"function","function":{"name":"g"}}])";

class ToolsTest : public ::testing::Test {
 protected:
  // The model writes `text` and then ends for want of max_tokens.
  HttpAnswer Chat(std::string_view text, std::string_view fields) {
    const std::vector<int32_t> ids = *GetTestModel().tokenizer->Encode(std::string(text));
    harness_.engine().SetScript(ids);
    return Post(
        harness_.port(), "/v1/chat/completions",
        StrCat(R"({"model":"smol","messages":[{"role":"user","content":"Hi"}],"max_tokens":)",
               ids.size(), ",", std::string(fields), "}"));
  }
  json::value Message(std::string_view text, std::string_view fields) {
    const HttpAnswer answer = Chat(text, fields);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return ParseOrFail(answer.body).at("choices").at(0).at("message");
  }
  std::string Refused(std::string_view fields, int status = 400) {
    const HttpAnswer answer = Chat("x", fields);
    EXPECT_EQ(answer.status, status) << answer.body;
    return ErrorField(answer, "param");
  }
  // The schema that the replica was given with the last request.
  std::string Schema() { return SchemaBehindThought(harness_.engine().submits().back().request()); }

  RouterHarness harness_{WithParsers()};
};

constexpr const char* kTwoCalls =
    "I look. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
    "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";

TEST_F(ToolsTest, CallsAreToldApartFromTheText) {
  const json::value message = Message(kTwoCalls, kTools);
  EXPECT_EQ(message.at("content"), "I look.");
  const json::array& calls = message.at("tool_calls").as_array();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].at("type"), "function");
  EXPECT_TRUE(calls[0].at("id").as_string().starts_with("call_"));
  EXPECT_NE(calls[0].at("id"), calls[1].at("id"));
  EXPECT_EQ(calls[0].at("function").at("name"), "f");
  EXPECT_EQ(calls[0].at("function").at("arguments"), "{\"a\": 1}");
  EXPECT_EQ(calls[1].at("function").at("name"), "g");
}

TEST_F(ToolsTest, StreamedCallsBeginWithIdAndName) {
  const HttpAnswer answer = Chat(kTwoCalls, StrCat(kTools, R"(,"stream":true)"));
  std::string content, arguments;
  std::vector<std::string> names;
  for (const std::string& event : Events(answer.body)) {
    if (event == "[DONE]") continue;
    const json::value root = ParseOrFail(event);
    const json::object& delta = root.at("choices").at(0).at("delta").as_object();
    if (const json::value* text = delta.if_contains("content"))
      content += std::string(text->as_string());
    const json::value* calls = delta.if_contains("tool_calls");
    if (calls == nullptr) continue;
    for (const json::value& call : calls->as_array()) {
      const json::object& function = call.at("function").as_object();
      EXPECT_EQ(call.as_object().contains("id"), function.contains("name"));
      if (function.contains("name")) names.emplace_back(function.at("name").as_string());
      EXPECT_EQ(call.at("index").as_int64(), static_cast<int64_t>(names.size()) - 1);
      arguments += std::string(function.at("arguments").as_string());
    }
  }
  EXPECT_EQ(content, "I look.");
  EXPECT_THAT(names, ::testing::ElementsAre("f", "g"));
  EXPECT_EQ(arguments, "{\"a\": 1}{}");
}

TEST_F(ToolsTest, AnOutputThatEndsItselfAfterACallIsFinishedByIt) {
  CompletionRequest request;
  request.chat = true;
  auto model = std::make_shared<ModelHandle>();
  model->tokenizer = std::make_shared<testing::ByteVocabulary>();
  request.model = std::move(model);
  request.prompts.resize(1);
  request.syntax.tools.syntax = ToolSyntax::kHermes;
  v1::Delta delta;
  v1::ChoiceDelta* choice = delta.add_choices();
  choice->set_text("<tool_call>{\"name\":\"f\"}");
  choice->set_finish_reason(v1::FINISH_REASON_STOP);
  EXPECT_EQ(ChoiceFormatter(request, 0).OnDelta(delta).finish_reason, "tool_calls");
  choice->set_finish_reason(v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(ChoiceFormatter(request, 0).OnDelta(delta).finish_reason, "length");
  choice->set_text("f");
  choice->set_finish_reason(v1::FINISH_REASON_STOP);
  EXPECT_EQ(ChoiceFormatter(request, 0).OnDelta(delta).finish_reason, "stop");
}

TEST_F(ToolsTest, OneCallIfTheyMayNotBeParallel) {
  const json::value message = Message(kTwoCalls, StrCat(kTools, R"(,"parallel_tool_calls":false)"));
  EXPECT_EQ(message.at("tool_calls").as_array().size(), 1u);
}

TEST_F(ToolsTest, WithoutToolsCallsAreText) {
  EXPECT_EQ(Message(kTwoCalls, R"("seed":1)").at("content"), kTwoCalls);
}

TEST_F(ToolsTest, ANamedFunctionsArgumentsAreHeldToItsSchema) {
  const json::value message = Message(
      "{\"a\":2}", StrCat(kTools, R"(,"tool_choice":{"type":"function","function":{"name":"f"}})"));
  EXPECT_TRUE(message.at("content").is_null());
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("name"), "f");
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("arguments"), "{\"a\":2}");
  EXPECT_EQ(Schema(), R"({"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},)"
                      R"("$defs":{"n":{"type":"integer"}}})");
}

TEST_F(ToolsTest, RequiredIsAListOfCalls) {
  const std::string required = StrCat(kTools, R"(,"tool_choice":"required")");
  const json::value message =
      Message(R"([{"name":"g","parameters":{}},{"name":"f","parameters":{"a":1}}])", required);
  EXPECT_EQ(message.at("tool_calls").as_array().size(), 2u);
  const json::value schema = ParseOrFail(Schema());
  EXPECT_EQ(schema.at("minItems"), 1);
  EXPECT_FALSE(schema.as_object().contains("maxItems"));
  const json::value& f = schema.at("$defs").at("f");
  EXPECT_EQ(f.at("$defs").at("n").at("type"), "integer");
  EXPECT_EQ(f.at("properties").at("a").at("$ref"), "#/$defs/f/$defs/n");
  EXPECT_EQ(schema.at("items").at("anyOf").as_array().size(), 2u);
  Message("[]", StrCat(required, R"(,"parallel_tool_calls":false)"));
  EXPECT_EQ(ParseOrFail(Schema()).at("maxItems"), 1);
}

TEST_F(ToolsTest, ReasoningIsToldApart) {
  const std::string text = "<think>\nHm.\n</think>\n\nFour.";
  const json::value message = Message(text, R"("seed":1)");
  EXPECT_EQ(message.at("reasoning_content"), "Hm.");
  EXPECT_EQ(message.at("content"), "Four.");
  std::string reasoning;
  for (const std::string& event : Events(Chat(text, R"("stream":true)").body)) {
    if (event == "[DONE]") continue;
    const json::value root = ParseOrFail(event);
    const json::object& delta = root.at("choices").at(0).at("delta").as_object();
    if (const json::value* piece = delta.if_contains("reasoning_content"))
      reasoning += std::string(piece->as_string());
  }
  EXPECT_EQ(reasoning, "Hm.");
}

constexpr const char* kThoughtfulCall =
    "<think>Hm.</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

TEST_F(ToolsTest, AThoughtComesBeforeACallThatIsDemanded) {
  const json::value message =
      Message("<think>Hm.</think>\n\n[{\"name\":\"f\",\"parameters\":{\"a\":1}}]",
              StrCat(kTools, R"(,"tool_choice":"required")"));
  EXPECT_EQ(message.at("reasoning_content"), "Hm.");
  EXPECT_TRUE(message.at("content").is_null());
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("arguments"), "{\"a\":1}");
}

TEST_F(ToolsTest, AToolThatIsStrictHoldsItsCallsThoughTheModelMayChoose) {
  const auto format = [&] {
    const v1::GenerateRequest sent = harness_.engine().submits().back().request();
    return ParseOrFail(sent.structured().structural_tag()).at("format").at("elements").at(1);
  };
  const auto tools = [](const char* strict) {
    return StrCat(R"("tools":[{"type":"function","function":{"name":"f","strict":)", strict,
                  R"(,"parameters":{"type":"object","required":["a"]}}}])");
  };
  Message("x", tools("false"));
  EXPECT_FALSE(harness_.engine().submits().back().request().has_structured());
  const json::value message = Message(kThoughtfulCall, tools("true"));
  EXPECT_EQ(message.at("reasoning_content"), "Hm.");
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("name"), "f");
  EXPECT_EQ(format().at("type"), "triggered_tags");
  EXPECT_EQ(format().at("tags").at(0).at("content").at("json_schema").at("required").at(0), "a");
  // Beside an answer's form any arguments will do, if the tool is not strict.
  Message("true", StrCat(tools("false"), R"(,"guided_json":{"type":"boolean"})"));
  EXPECT_EQ(format().at("type"), "or");
  EXPECT_EQ(format().at("elements").at(0).at("tags").at(0).at("content").at("json_schema"),
            ParseOrFail(R"({"type":"object","additionalProperties":true})"));
  EXPECT_EQ(format().at("elements").at(1).at("json_schema").at("type"), "boolean");
  // What an answer would look like has no meaning for a call that is demanded.
  Message("{}", StrCat(kTools, R"(,"guided_json":{"type":"boolean"},"tool_choice":)",
                       R"({"type":"function","function":{"name":"g"}})"));
  EXPECT_EQ(Schema(), R"({"type":"object"})");
}

TEST_F(ToolsTest, AThoughtHasABudget) {
  const auto sent = [&] { return harness_.engine().submits().back().request(); };
  Message("<think>Hm.</think>Four.", R"("thinking_token_budget":7)");
  const json::value tag = ParseOrFail(sent().structured().structural_tag());
  const json::value& parts = tag.at("format").at("elements");
  EXPECT_EQ(parts.at(0).at("content").at("elements").at(1).at("max_tokens"), 7);
  EXPECT_EQ(parts.at(1).at("type"), "any_text");
  // One that can't be reached is none.
  Message("Four.", R"("thinking_token_budget":1000)");
  EXPECT_FALSE(sent().has_structured());
}

TEST_F(ToolsTest, NamesMayHave128Bytes) {
  const std::string named =
      StrCat(R"("tools":[{"type":"function","function":{"name":")", std::string(128, 'n'), "\"}}]");
  EXPECT_EQ(Chat("Hm.", named).status, 200);
}

TEST_F(ToolsTest, ErrorsNameTheField) {
  const auto tool = [](std::string_view function) {
    return StrCat(R"("tools":[{"type":"function","function":)", function, "}]");
  };
  EXPECT_EQ(Refused(R"("tools":7)"), "tools");
  EXPECT_EQ(Refused(R"("tools":[7])"), "tools[0]");
  EXPECT_EQ(Refused(R"("tools":[{"type":"retrieval"}])"), "tools[0].type");
  EXPECT_EQ(Refused(R"("tools":[{"type":"function"}])"), "tools[0].function");
  EXPECT_EQ(Refused(tool("{}")), "tools[0].function.name");
  EXPECT_EQ(Refused(tool(R"({"name":"a b"})")), "tools[0].function.name");
  EXPECT_EQ(Refused(tool(StrCat(R"({"name":")", std::string(129, 'n'), "\"}"))),
            "tools[0].function.name");
  EXPECT_EQ(Refused(tool(R"({"name":"f","parameters":[]})")), "tools[0].function.parameters");
  EXPECT_EQ(Refused(tool(R"({"name":"f"}},{"type":"function","function":{"name":"f"})")),
            "tools[1].function.name");
  EXPECT_EQ(Refused(StrCat(kTools, R"(,"tool_choice":"any")")), "tool_choice");
  EXPECT_EQ(
      Refused(StrCat(kTools, R"(,"tool_choice":{"type":"function","function":{"name":"h"}})")),
      "tool_choice.function.name");
  EXPECT_EQ(Refused(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_TRUE(harness_.engine().submits().empty());
}

// --tool-call-parser can't make a template show what it has no place for.
TEST(ToolsNotShownTest, ToolsThatThePromptIsWithoutAreRefused) {
  HarnessOptions options = WithParsers();
  options.engine.shows_tools = false;
  RouterHarness harness(options);
  const auto ask = [&](const char* path, std::string_view more) {
    return Post(harness.port(), path,
                StrCat(R"({"model":"smol","messages":[{"role":"user","content":"Hi"}],)",
                       R"("max_tokens":1,)", kTools, std::string(more), "}"));
  };
  const HttpAnswer refused = ask("/v1/chat/completions", "");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(ErrorField(refused, "param"), "tools");
  EXPECT_EQ(ErrorField(refused, "message"),
            "'tools': the prompt is the same without them, since this model's chat template shows "
            "none. Ask for a call by 'tool_choice', 'required' or a function.");
  EXPECT_EQ(ask("/apply-template", "").status, 400);
  EXPECT_EQ(ask("/v1/chat/completions", R"(,"tool_choice":"none")").status, 200);
  EXPECT_EQ(ask("/v1/chat/completions", R"(,"tool_choice":"required")").status, 200);
}

// The model of a template that shows tools, and a parser by what it says.
class TemplateTest : public ::testing::Test {
 protected:
  std::variant<CompletionRequest, ApiError> Parse(const char* chat_template,
                                                  const std::string& messages = "",
                                                  const std::string& fields = "\"user\":\"u\"",
                                                  const std::string& tools = kTools) {
    return ParseChat(StrCat(R"({"model":"m","messages":[{"role":"user","content":"Hi"})", messages,
                            "],", fields, ",", tools, "}"),
                     TemplateModel(chat_template), parsers_);
  }

  ParserChoice parsers_;
};

TEST_F(TemplateTest, ShowsTheToolsAsTheClientWroteThem) {
  const auto parsed = Parse("<tool_call>{{ tools[1] | tojson }}");
  const auto& request = std::get<CompletionRequest>(parsed);
  EXPECT_THAT(request.prompts[0].text,
              HasSubstr(R"({"type": "function", "function": {"name": "g"}})"));
  EXPECT_EQ(request.syntax.tools.syntax, ToolSyntax::kHermes);
}

// Qwen3-Coder writes all arguments as texts: which of them are JSON, the schema says.
TEST_F(TemplateTest, TellsWhichParametersAreJson) {
  constexpr const char* kCoder = "{{ '<tool_call><function=f><parameter=a>' }}{{ tools }}";
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f",
      "parameters":{"type":"object","properties":{"text":{"type":"string"},"any":{},
      "count":{"type":"integer"},"maybe":{"type":["string","null"]},
      "either":{"anyOf":[{"type":"string"},{"type":"number"}]},"unit":{"enum":["a","b"]},
      "level":{"enum":[1,2]},"place":{"$ref":"#/$defs/p"},"grade":{"$ref":"#/$defs/g"},
      "round":{"$ref":"#/$defs/r"},"nowhere":{"$ref":"#/$defs/q"},"five":{"const":5}},
      "$defs":{"p":{"type":"object"},"g":{"type":"string","enum":["1","2"]},
      "r":{"$ref":"#/$defs/r"}}}}}])";
  const auto parsed = Parse(kCoder, "", R"("user":"u")", tools);
  ASSERT_TRUE(std::holds_alternative<CompletionRequest>(parsed));
  const ToolCallOptions& read = std::get<CompletionRequest>(parsed).syntax.tools;
  EXPECT_EQ(read.syntax, ToolSyntax::kQwen3Coder);
  EXPECT_EQ(read.parameters.at("f"), (ParameterTypes{{"count", ParameterType::kJson},
                                                     {"either", ParameterType::kJson},
                                                     {"five", ParameterType::kJson},
                                                     {"level", ParameterType::kJson},
                                                     {"maybe", ParameterType::kTextOrNull},
                                                     {"nowhere", ParameterType::kJson},
                                                     {"place", ParameterType::kJson}}));
  const auto refused = Parse(kCoder, "", R"("guided_json":{})", tools);
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  EXPECT_EQ(std::get<ApiError>(refused).param, "tools");
}

// A router may be updated before its replicas, as the handle of this model is of one.
TEST_F(TemplateTest, OlderReplicasGetWhatTheyKnow) {
  const auto parse = [&](const std::string& fields) {
    return Parse("<tool_call>{{ tools }}{{ '</think>' if false }}", "", fields);
  };
  const auto schema = parse(R"("tool_choice":"none","guided_json":{"type":"null"})");
  const auto& plain = std::get<CompletionRequest>(schema);
  EXPECT_EQ(plain.params.structured().json_schema(), R"({"type":"null"})");
  EXPECT_EQ(plain.syntax.reasoning, ReasoningStart::kNone);
  for (const auto& [fields, field] :
       {std::pair{R"("guided_json":{"type":"null"})", "tools"},
        {R"("thinking_token_budget":7)", "thinking_token_budget"},
        {R"("tool_choice":"none","structural_tag":"{}")", "structural_tag"}}) {
    const auto refused = parse(fields);
    ASSERT_TRUE(std::holds_alternative<ApiError>(refused)) << fields;
    EXPECT_EQ(std::get<ApiError>(refused).param, field);
    EXPECT_THAT(std::get<ApiError>(refused).message, HasSubstr("of this router's version"));
  }
}

// A call that was made has to come back by its id.
TEST_F(TemplateTest, TellsWhichIdsItTakes) {
  constexpr const char* kShort =
      "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}";
  const auto parsed =
      Parse(StrCat("<tool_call>{{ tools }}{% if false %}", kShort, "{% endif %}").c_str());
  EXPECT_TRUE(std::get<CompletionRequest>(parsed).syntax.tools.short_ids);
  EXPECT_FALSE(std::get<CompletionRequest>(Parse("<tool_call>{{ tools }}")).syntax.tools.short_ids);
}

TEST_F(TemplateTest, ThatKnowsNoToolsIsNoReasonToKeepSilentAboutThem) {
  const auto parsed = Parse("{{ messages[0].content }}");
  ASSERT_TRUE(std::holds_alternative<ApiError>(parsed));
  EXPECT_EQ(std::get<ApiError>(parsed).param, "tools");
}

// A model wrote them, and may be told that they are wrong.
TEST_F(TemplateTest, ShowsArgumentsThatAreNoJsonAsTheyAre) {
  for (const auto& [arguments, shown] : {std::pair{R"({\"a\": 1})", R"({"a": 1})"},
                                         {"", "{}"},
                                         {R"({\"a\")", R"("{\"a\"")"},
                                         {"none", R"("none")"}}) {
    const auto parsed = Parse(
        "<tool_call>{{ messages[1].tool_calls[0].function.arguments | tojson }}",
        StrCat(R"(,{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":)",
               R"({"name":"f","arguments":")", arguments, "\"}}]}"));
    ASSERT_TRUE(std::holds_alternative<CompletionRequest>(parsed)) << arguments;
    EXPECT_EQ(std::get<CompletionRequest>(parsed).prompts[0].text, StrCat("<tool_call>", shown));
  }
}

// Of whichever server the conversation is from.
TEST_F(TemplateTest, ShowsThoughtsByAnyOfTheirNames) {
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const auto parsed =
        Parse("<tool_call>{{ messages[1].reasoning_content }}|{{ messages[1].thinking }}",
              StrCat(R"(,{"role":"assistant","content":"x",")", name, R"(":"Hm"})"));
    ASSERT_TRUE(std::holds_alternative<CompletionRequest>(parsed)) << name;
    EXPECT_EQ(std::get<CompletionRequest>(parsed).prompts[0].text, "<tool_call>Hm|Hm");
  }
}

TEST_F(TemplateTest, KnowsHowMuchIsToBeThought) {
  const char* source = "<tool_call>{{ reasoning_effort }}|{{ enable_thinking }}";
  const auto shown = [&](const std::string& fields) {
    const auto parsed = Parse(source, "", fields);
    const auto* request = std::get_if<CompletionRequest>(&parsed);
    return request == nullptr ? std::get<ApiError>(parsed).message : request->prompts[0].text;
  };
  EXPECT_EQ(shown(R"("reasoning_effort":"low")"), "<tool_call>low|");
  EXPECT_EQ(shown(R"("reasoning_effort":"none")"), "<tool_call>none|False");
  EXPECT_EQ(shown(R"("reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true})"),
            "<tool_call>none|True");
  parsers_.default_chat_template_kwargs = R"({"enable_thinking":false,"reasoning_effort":"low"})";
  EXPECT_EQ(shown(R"("user":"u")"), "<tool_call>low|False");
  EXPECT_EQ(shown(R"("reasoning_effort":"high","chat_template_kwargs":{"enable_thinking":true})"),
            "<tool_call>high|True");
}

TEST_F(TemplateTest, KnowsItFromEveryApi) {
  const ModelTable models = TemplateModel("{{ reasoning_effort }}|{{ enable_thinking }}|{{ own }}");
  const auto text = [](const std::variant<CompletionRequest, ApiError>& parsed) {
    const auto* request = std::get_if<CompletionRequest>(&parsed);
    return request == nullptr ? std::get<ApiError>(parsed).message : request->prompts[0].text;
  };
  parsers_.default_chat_template_kwargs = R"({"own":1})";
  EXPECT_EQ(text(ParseResponses(R"({"input":"x","reasoning":{"effort":"low"}})", models, parsers_)),
            "low||1");
  EXPECT_EQ(text(ParseMessages(R"({"max_tokens":1,"messages":[{"role":"user","content":"x"}],
                                   "thinking":{"type":"disabled"},"output_config":{"effort":"max"},
                                   "chat_template_kwargs":{"own":2}})",
                               models, parsers_)),
            "max|False|2");
}

TEST_F(TemplateTest, SeesNoCallsWhereTheListIsEmpty) {
  const char* source = "<tool_call>{{ messages[1].tool_calls is defined }}";
  const auto parsed = Parse(source, R"(,{"role":"assistant","content":"x","tool_calls":[]})");
  EXPECT_EQ(std::get<CompletionRequest>(parsed).prompts[0].text, "<tool_call>False");
  const auto refused = Parse(source, R"(,{"role":"assistant","tool_calls":[]})");
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  EXPECT_EQ(std::get<ApiError>(refused).param, "messages[1].content");
}

TEST_F(TemplateTest, ThatOpensAThoughtIsGoneOnWith) {
  const auto parsed = Parse("</think><tool_call>{{ messages[0].content }}<think>\n");
  EXPECT_EQ(std::get<CompletionRequest>(parsed).syntax.reasoning, ReasoningStart::kOpen);
}

}  // namespace
}  // namespace flotilla
