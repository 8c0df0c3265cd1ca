// gRPC's Chat with tools and reasoning: end to end beside HTTP, and what its fields make of a
// request.
#include "router/grpc/grpc_chat.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <optional>

#include "router/grpc/grpc_texts.h"
#include "tests/fakes/byte_vocabulary.h"
#include "tests/router/router_harness.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":
        {"a":{"type":"integer"}}}}},{"type":"function","function":{"name":"g"}}])";
constexpr const char* kNamed = R"({"type":"function","function":{"name":"f"}})";
constexpr const char* kTwoCalls =
    "<think>Hm.</think>I look. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
    "</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
constexpr const char* kList = R"([{"name":"g","parameters":{}},{"name":"f","parameters":{"a":1}}])";

struct Call {
  std::string id, name, arguments;
};
// A choice's deltas, joined.
struct Choice {
  std::string text, reasoning;
  std::vector<Call> calls;
  size_t num_ids = 0;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;

  void Add(const v1::ChoiceDelta& delta) {
    text += delta.text();
    reasoning += delta.reasoning();
    num_ids += static_cast<size_t>(delta.token_ids_size());
    if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED)
      finish_reason = delta.finish_reason();
    for (const v1::ToolCallDelta& call : delta.tool_calls()) {
      EXPECT_EQ(call.id().empty(), call.name().empty());
      if (!call.id().empty()) calls.push_back({call.id(), call.name(), ""});
      ASSERT_EQ(static_cast<size_t>(call.index()) + 1, calls.size());
      calls.back().arguments += call.arguments();
    }
  }
  // As the message of HTTP's answer, without ids.
  std::string AsMessage() const {
    json::array list;
    for (const Call& call : calls)
      list.push_back(json::object{{"name", call.name}, {"arguments", call.arguments}});
    return json::serialize(json::array{text, reasoning, std::move(list)});
  }
};

class GrpcChatTest : public ::testing::Test {
 protected:
  GrpcChatTest()
      : stub_(v1::Inference::NewStub(
            grpc::CreateChannel(StrCat("127.0.0.1:", harness_.app().grpc_port()),
                                grpc::InsecureChannelCredentials()))) {}

  // The model writes `text` and then ends for want of max_tokens.
  v1::ChatRequest Request(std::string_view text) {
    const std::vector<int32_t> ids = *GetTestModel().tokenizer->Encode(std::string(text));
    harness_.engine().SetScript(ids);
    v1::ChatRequest request;
    request.mutable_base()->mutable_stopping()->set_max_tokens(static_cast<int32_t>(ids.size()));
    v1::ChatMessage* message = request.add_messages();
    message->set_role("user");
    message->set_content("Hi");
    return request;
  }
  grpc::Status Chat(const v1::ChatRequest& request, std::vector<Choice>* choices) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    auto reader = stub_->Chat(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      for (const v1::ChoiceDelta& delta : message.choices()) {
        const auto index = static_cast<size_t>(delta.index());
        if (choices->size() <= index) choices->resize(index + 1);
        (*choices)[index].Add(delta);
      }
    }
    return reader->Finish();
  }
  Choice Answer(const v1::ChatRequest& request) {
    std::vector<Choice> choices;
    const grpc::Status status = Chat(request, &choices);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return choices.empty() ? Choice() : choices[0];
  }
  std::string Refused(const v1::ChatRequest& request,
                      grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT) {
    std::vector<Choice> choices;
    const grpc::Status status = Chat(request, &choices);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  }

  RouterHarness harness_{WithParsers()};
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(GrpcChatTest, WhoDoesNotAskGetsWhatTheModelWrote) {
  v1::ChatRequest request = Request(kTwoCalls);
  request.set_tools_json(R"([{"any":"thing"}])");
  const Choice choice = Answer(request);
  EXPECT_EQ(choice.text, kTwoCalls);
  EXPECT_TRUE(choice.calls.empty());
  EXPECT_EQ(choice.reasoning, "");
}

TEST_F(GrpcChatTest, TheAnswerIsToldApart) {
  v1::ChatRequest request = Request(kTwoCalls);
  request.set_tools_json(kTools);
  request.set_parse_answer(true);
  const Choice choice = Answer(request);
  EXPECT_EQ(choice.text, "I look.");
  EXPECT_EQ(choice.reasoning, "Hm.");
  ASSERT_EQ(choice.calls.size(), 2u);
  EXPECT_THAT(choice.calls[0].id, StartsWith("call_"));
  EXPECT_NE(choice.calls[0].id, choice.calls[1].id);
  EXPECT_EQ(choice.calls[0].name, "f");
  EXPECT_EQ(choice.calls[0].arguments, "{\"a\": 1}");
  EXPECT_EQ(choice.calls[1].name, "g");
  EXPECT_EQ(choice.calls[1].arguments, "{}");
  EXPECT_EQ(choice.num_ids, GetTestModel().tokenizer->Encode(kTwoCalls)->size()) << "all of them";
  EXPECT_EQ(choice.finish_reason, v1::FINISH_REASON_LENGTH) << "as HTTP, though it called";
}

TEST_F(GrpcChatTest, TheAnswerAndThePromptAreHttps) {
  struct Case {
    const char* text;
    const char* choice;  // JSON
    std::optional<bool> parallel;
  };
  const Case cases[] = {{kTwoCalls, "\"auto\"", {}},    {kTwoCalls, "\"none\"", {}},
                        {kTwoCalls, "", false},         {kList, "\"required\"", {}},
                        {kList, "\"required\"", false}, {"{\"a\":2}", kNamed, {}},
                        {"{\"a\":", kNamed, true}};
  for (const Case& c : cases) {
    v1::ChatRequest request = Request(c.text);
    request.set_tools_json(kTools);
    request.set_tool_choice_json(c.choice);
    std::string fields;
    if (*c.choice != '\0') StrAppend(&fields, R"(,"tool_choice":)", c.choice);
    if (c.parallel.has_value()) {
      request.set_parallel_tool_calls(*c.parallel);
      StrAppend(&fields, R"(,"parallel_tool_calls":)", *c.parallel ? "true" : "false");
    }
    const Choice choice = Answer(request);
    const HttpAnswer answer =
        Post(harness_.port(), "/v1/chat/completions",
             StrCat(R"({"model":"smol","messages":[{"role":"user","content":"Hi"}],"max_tokens":)",
                    request.base().stopping().max_tokens(), R"(,"tools":)", kTools, fields, "}"));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const json::value root = ParseOrFail(answer.body);
    const json::object& message = root.at("choices").at(0).at("message").as_object();
    Choice http;
    if (message.at("content").is_string())
      http.text = std::string(message.at("content").as_string());
    if (message.contains("reasoning_content"))
      http.reasoning = std::string(message.at("reasoning_content").as_string());
    if (message.contains("tool_calls")) {
      for (const json::value& call : message.at("tool_calls").as_array())
        http.calls.push_back({"", std::string(call.at("function").at("name").as_string()),
                              std::string(call.at("function").at("arguments").as_string())});
    }
    EXPECT_EQ(choice.AsMessage(), http.AsMessage()) << c.text << c.choice;
    const std::vector<v1::Submit> submits = harness_.engine().submits();
    const v1::GenerateRequest& by_grpc = submits[submits.size() - 2].request();
    const v1::GenerateRequest& by_http = submits.back().request();
    EXPECT_EQ(by_grpc.structured().DebugString(), by_http.structured().DebugString());
    EXPECT_EQ(by_grpc.token_ids().SerializeAsString(), by_http.token_ids().SerializeAsString());
  }
}

TEST_F(GrpcChatTest, EachChoiceIsToldApartAndFollowsItsEcho) {
  v1::ChatRequest request = Request("<think>Hm.</think>Four.");
  request.set_parse_answer(true);
  request.mutable_base()->mutable_sampling()->set_n(2);
  request.mutable_base()->mutable_output()->set_echo(true);
  std::vector<Choice> choices;
  ASSERT_TRUE(Chat(request, &choices).ok());
  ASSERT_EQ(choices.size(), 2u);
  for (const Choice& choice : choices) {
    EXPECT_TRUE(choice.text.ends_with("<|im_start|>assistant\nFour.")) << choice.text;
    EXPECT_EQ(choice.reasoning, "Hm.");
  }
}

TEST_F(GrpcChatTest, ErrorsNameTheField) {
  struct Case {
    const char* tools;
    const char* choice;
    const char* says;
  };
  const Case cases[] = {
      {"[7", "", "'tools_json' is not valid JSON"},
      {"{}", "", "'tools_json' must be an array"},
      {"[7]", "", "'tools_json[0]' must be an object"},
      {R"([{"type":"retrieval"}])", "", "'tools_json[0].type' must"},
      {R"([{"type":"function","function":{"name":"a b"}}])", "", "'tools_json[0].function.name'"},
      {kTools, "auto", "'tool_choice_json' is not valid JSON"},
      {kTools, "\"any\"", "'tool_choice_json' must be"},
      {kTools, R"({"type":"function","function":{"name":"h"}})",
       "'tool_choice_json.function.name' names no function of 'tools_json'"},
      {"", "\"required\"", "'tool_choice_json' asks for a call, and there are no 'tools_json'"},
  };
  for (const Case& c : cases) {
    v1::ChatRequest request = Request("x");
    request.set_tools_json(c.tools);
    request.set_tool_choice_json(c.choice);
    request.set_parse_answer(true);
    EXPECT_THAT(Refused(request), HasSubstr(c.says));
  }
  v1::ChatRequest request = Request("x");
  request.set_parse_answer(true);
  request.mutable_messages(0)->set_tool_calls_json("[1");
  EXPECT_THAT(Refused(request), HasSubstr("'messages[0].tool_calls_json' is not valid JSON"));
  request.mutable_messages(0)->set_tool_calls_json("[1]");
  EXPECT_THAT(Refused(request), HasSubstr("'messages[0].tool_calls_json' must have objects"));
  request = Request("x");
  request.set_thinking_token_budget(-1);
  EXPECT_THAT(Refused(request), HasSubstr("'thinking_token_budget' must be 0 or more"));
  EXPECT_TRUE(harness_.engine().submits().empty());
}

TEST_F(GrpcChatTest, WhatAReplicaSaysOfAGrammarIsAboutTheTool) {
  v1::ChatRequest request = Request("x");
  request.set_tools_json(kTools);
  request.set_tool_choice_json(kNamed);
  const auto refuse = [&] {
    harness_.engine().RefuseNext(1, 3, "structured.json_schema: nests too deep");
  };
  refuse();
  EXPECT_EQ(Refused(request), "'tools_json[0].function.parameters': nests too deep.");
  request.set_tool_choice_json("\"required\"");
  refuse();
  EXPECT_EQ(Refused(request), "'tools_json': nests too deep.");
  request = Request("x");
  request.set_parse_answer(true);
  request.mutable_base()->mutable_structured()->set_json_schema("{}");
  refuse();
  EXPECT_EQ(Refused(request), "'base.structured': nests too deep.") << "it went out as another";
  request.set_parse_answer(false);
  refuse();
  EXPECT_EQ(Refused(request), "structured.json_schema: nests too deep");
}

// --- What the fields make of a request ----------------------------------------------------------

class SetChatPromptTest : public ::testing::Test {
 protected:
  SetChatPromptTest() {
    auto model = std::make_shared<ModelHandle>();
    model->max_model_len = 1024;
    model->max_prompt_bytes = 1 << 20;
    model->tokenizer = std::make_shared<testing::ByteVocabulary>();
    model->vocab_size = model->tokenizer->vocab_size();
    model->chat_format = ChatFormat::Create(
        "<tool_call>{{ tools | tojson if tools else '-' }}"
        "{% for m in messages %}{% if m.tool_calls %}"
        "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}",
        {}, {});
    model_ = std::move(model);
    chat_.add_messages()->set_role("user");
    chat_.set_tools_json(kTool);
  }
  CompletionRequest Set() {
    CompletionRequest request;
    request.model = model_;
    const auto error = SetChatPrompt(chat_, {}, &request);
    EXPECT_FALSE(error.has_value()) << error->message;
    return request;
  }
  std::string Template() {
    v1::ApplyTemplateResponse response;
    EXPECT_TRUE(AnswerTextCall(model_, {}, chat_, &response).ok());
    return response.text();
  }

  static constexpr const char* kTool = R"([{"type":"function","function":{"name":"g"}}])";
  std::shared_ptr<const ModelHandle> model_;
  v1::ChatRequest chat_;
};

TEST_F(SetChatPromptTest, ATemplateIsShownTheToolsUnlessTheChoiceIsNone) {
  const std::string shown = R"(<tool_call>[{"type": "function", "function": {"name": "g"}}])";
  EXPECT_EQ(Set().prompts[0].text, shown);
  EXPECT_EQ(Set().syntax.tools.syntax, ToolSyntax::kNone);
  chat_.set_parse_answer(true);
  EXPECT_EQ(Set().prompts[0].text, shown);
  EXPECT_EQ(Set().syntax.tools.syntax, ToolSyntax::kHermes);
  chat_.set_tool_choice_json("\"none\"");
  EXPECT_EQ(Set().prompts[0].text, "<tool_call>-");
  EXPECT_EQ(Set().syntax.tools.syntax, ToolSyntax::kNone);
}

TEST_F(SetChatPromptTest, ApplyTemplateSaysWhatChatMakes) {
  for (const char* choice : {"", "\"auto\"", "\"none\"", "\"required\""}) {
    chat_.set_tool_choice_json(choice);
    EXPECT_EQ(Template(), Set().prompts[0].text) << choice;
  }
  v1::ApplyTemplateResponse response;
  chat_.set_tool_choice_json("7");
  EXPECT_THAT(AnswerTextCall(model_, {}, chat_, &response).error_message(),
              HasSubstr("'tool_choice_json'"));
}

TEST_F(SetChatPromptTest, ArgumentsInTextAreObjectsToTheTemplateOfWhoAsks) {
  v1::ChatMessage* message = chat_.add_messages();
  message->set_role("assistant");
  message->set_tool_calls_json(R"([{"function":{"name":"g","arguments":"{\"a\": 1}"}}])");
  chat_.clear_tools_json();
  EXPECT_EQ(Set().prompts[0].text, R"(<tool_call>-"{\"a\": 1}")");
  chat_.set_parse_answer(true);
  EXPECT_EQ(Set().prompts[0].text, R"(<tool_call>-{"a": 1})");
}

}  // namespace
}  // namespace flotilla
