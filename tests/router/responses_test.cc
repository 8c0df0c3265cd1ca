// /v1/responses end to end over HTTP.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

namespace json = boost::json;

constexpr const char* kTool =
    R"("tools":[{"type":"function","name":"f","parameters":{"type":"object"}}])";
constexpr const char* kCall =
    "<think>Hm</think>I look. <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}";

class ResponsesTest : public testing::Test {
 protected:
  HttpAnswer Ask(std::string_view fields) {
    return Post(harness_.port(), "/v1/responses",
                StrCat(R"({"model":"smol",)", std::string(fields), "}"));
  }
  // The model writes `text`.
  HttpAnswer Write(std::string_view text, std::string_view fields) {
    const std::vector<int32_t> ids = *GetTestModel().tokenizer->Encode(std::string(text));
    harness_.engine().SetScript(ids);
    return Ask(
        StrCat(R"("input":"Hi","max_output_tokens":)", ids.size(), ",", std::string(fields)));
  }
  std::string Prompt() {
    const v1::Submit sent = harness_.engine().submits().back();
    const auto& ids = sent.request().token_ids().ids();
    return GetTestModel().tokenizer->Decode({ids.data(), static_cast<size_t>(ids.size())}, false);
  }
  std::string Refused(std::string_view fields, int status = 400) {
    const HttpAnswer answer = Ask(fields);
    EXPECT_EQ(answer.status, status) << answer.body;
    return ErrorField(answer, "param");
  }

  RouterHarness harness_{WithParsers()};
};

TEST_F(ResponsesTest, AnswersWhole) {
  const json::value root =
      ParseOrFail(Write("Four.", R"("instructions":"Be brief.","metadata":{"k":"v"})").body);
  EXPECT_TRUE(root.at("id").as_string().starts_with("resp_"));
  EXPECT_EQ(root.at("object"), "response");
  EXPECT_EQ(root.at("status"), "incomplete") << "the fake model ends for want of tokens";
  EXPECT_EQ(root.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(root.at("instructions"), "Be brief.");
  EXPECT_EQ(root.at("metadata").at("k"), "v");
  EXPECT_EQ(root.at("tool_choice"), "auto");
  ASSERT_EQ(root.at("output").as_array().size(), 1u);
  const json::value& message = root.at("output").at(0);
  EXPECT_EQ(message.at("type"), "message");
  EXPECT_EQ(message.at("status"), "incomplete");
  EXPECT_EQ(message.at("content").at(0).at("text"), "Four.");
  EXPECT_EQ(root.at("usage").at("output_tokens").as_int64(),
            root.at("max_output_tokens").as_int64());
  EXPECT_NE(
      Prompt().find("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"),
      std::string::npos);
}

TEST_F(ResponsesTest, ThoughtsTextAndCallsAreItems) {
  const json::value root = ParseOrFail(Write(kCall, kTool).body);
  const json::array& output = root.at("output").as_array();
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0].at("type"), "reasoning");
  EXPECT_EQ(output[0].at("content").at(0).at("text"), "Hm");
  EXPECT_GT(root.at("usage").at("output_tokens_details").at("reasoning_tokens").as_int64(), 0);
  EXPECT_EQ(output[1].at("content").at(0).at("text"), "I look.");
  EXPECT_EQ(output[2].at("type"), "function_call");
  EXPECT_EQ(output[2].at("name"), "f");
  EXPECT_EQ(output[2].at("arguments"), "{\"a\":1}");
  for (const json::value& item : output) EXPECT_EQ(item.at("status"), "completed");
  EXPECT_TRUE(output[2].at("call_id").as_string().starts_with("call_"));
}

// Or a client would run it.
TEST_F(ResponsesTest, ACallThatIsCutIsIncomplete) {
  const std::string cut(std::string_view(kCall).substr(0, std::string_view(kCall).find("1}")));
  const json::value root = ParseOrFail(Write(cut, kTool).body);
  const json::array& output = root.at("output").as_array();
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[1].at("status"), "completed");
  EXPECT_EQ(output[2].at("type"), "function_call");
  EXPECT_EQ(output[2].at("status"), "incomplete");
}

TEST_F(ResponsesTest, AStreamTellsEachItemFromItsBeginningToItsEnd) {
  const HttpAnswer answer = Write(kCall, StrCat(kTool, R"(,"stream":true)"));
  std::string shape, text, thoughts, arguments, last;
  int64_t sequence = 0;
  for (const std::string& event : Events(answer.body)) {
    const json::value root = ParseOrFail(event);
    EXPECT_EQ(root.at("sequence_number").as_int64(), sequence++);
    const std::string type(root.at("type").as_string());
    if (type == "response.output_text.delta") text += std::string(root.at("delta").as_string());
    if (type == "response.reasoning_text.delta")
      thoughts += std::string(root.at("delta").as_string());
    if (type == "response.function_call_arguments.delta")
      arguments += std::string(root.at("delta").as_string());
    if (type != last) shape += type.substr(9) + " ";
    last = type;
  }
  EXPECT_EQ(shape,
            "created in_progress "
            "output_item.added reasoning_text.delta reasoning_text.done output_item.done "
            "output_item.added content_part.added output_text.delta output_text.done "
            "content_part.done output_item.done "
            "output_item.added function_call_arguments.delta function_call_arguments.done "
            "output_item.done incomplete ");
  EXPECT_EQ(thoughts, "Hm");
  EXPECT_EQ(text, "I look.");
  EXPECT_EQ(arguments, "{\"a\":1}");
  EXPECT_EQ(answer.body.find("[DONE]"), std::string::npos);
  EXPECT_NE(answer.body.find("event: response.created\ndata: "), std::string::npos);
}

TEST_F(ResponsesTest, ItemsBecomeTheConversation) {
  Ask(R"("max_output_tokens":1,"input":[{"role":"developer","content":"Brief."},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
      {"type":"function_call_output","call_id":"1","output":"42"},
      {"role":"assistant","content":[{"type":"output_text","text":"It is 42."}]},
      {"role":"user","content":"Sure?"}])");
  EXPECT_EQ(Prompt(),
            "<|im_start|>system\nBrief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
            "<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n"
            "<|im_start|>assistant\nIt is 42.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n"
            "<|im_start|>assistant\n");
}

// What agents send, whatever the server can do.
TEST_F(ResponsesTest, AgentsWishesThatChangeNothingPass) {
  const HttpAnswer answer = Ask(R"("max_output_tokens":1,"store":true,"prompt_cache_key":"k",
      "include":["reasoning.encrypted_content"],"reasoning":{"effort":"low","summary":"auto"},
      "client_metadata":{"a":"b"},"tool_choice":"auto","parallel_tool_calls":false,
      "tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":{"type":"object"}},
               {"type":"custom","name":"apply_patch","format":{"type":"grammar"}}],"input":"x")");
  EXPECT_EQ(answer.status, 200) << answer.body;
  const json::value root = ParseOrFail(answer.body);
  EXPECT_EQ(root.at("store"), false);
  EXPECT_EQ(root.at("reasoning").at("effort"), "low");
  EXPECT_EQ(root.at("tools").as_array().size(), 3u);
}

TEST_F(ResponsesTest, DevelopersAndTurnsOfOneRoleFitAnyTemplate) {
  Ask(R"("max_output_tokens":1,"instructions":"i","input":[{"role":"developer","content":"d"},
      {"role":"user","content":"a"},{"role":"user","content":"b"},
      {"role":"assistant","content":"c"},{"role":"developer","content":"now"},
      {"role":"user","content":"e"}])");
  EXPECT_EQ(Prompt(),
            "<|im_start|>system\ni\n\nd<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
            "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\nnow\n\ne<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST_F(ResponsesTest, ATextFormatIsAGrammar) {
  Write("{}", R"("text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}})");
  EXPECT_EQ(SchemaBehindThought(harness_.engine().submits().back().request()),
            R"({"type":"object"})");
  Write("{}", R"("text":{"format":{"type":"json_object"}})");
  EXPECT_EQ(SchemaBehindThought(harness_.engine().submits().back().request()),
            R"({"type":"object","additionalProperties":true})");
}

TEST_F(ResponsesTest, AThoughtHasABudget) {
  Write("<think>Hm</think>x", R"("thinking_token_budget":3)");
  const json::value tag =
      ParseOrFail(harness_.engine().submits().back().request().structured().structural_tag());
  EXPECT_EQ(
      tag.at("format").at("elements").at(0).at("content").at("elements").at(1).at("max_tokens"), 3);
}

TEST_F(ResponsesTest, ErrorsNameTheField) {
  EXPECT_EQ(Refused(R"("input":"x","thinking_token_budget":"x")"), "thinking_token_budget");
  EXPECT_EQ(Refused(R"("x":1)"), "input");
  EXPECT_EQ(Refused(R"("input":7)"), "input");
  EXPECT_EQ(Refused(R"("input":[])"), "input");
  EXPECT_EQ(Refused(R"("input":[7])"), "input[0]");
  EXPECT_EQ(Refused(R"("input":[{"role":"robot","content":"x"}])"), "input[0].role");
  EXPECT_EQ(Refused(R"("input":[{"role":"user"}])"), "input[0].content");
  EXPECT_EQ(Refused(R"("input":[{"role":"user","content":[{"type":"input_image"}]}])"),
            "input[0].content[0].type");
  EXPECT_EQ(Refused(R"("input":[{"type":"function_call","name":"f","arguments":"{}"}])"),
            "input[0].call_id");
  EXPECT_EQ(
      Refused(R"("input":[{"type":"function_call","call_id":"1","name":"f","arguments":{}}])"),
      "input[0].arguments");
  EXPECT_EQ(Refused(R"("input":[{"type":"function_call_output","call_id":"1"}])"),
            "input[0].output");
  EXPECT_EQ(Refused(R"("input":[{"type":"item_reference","id":"x"}])", 400), "input[0].type");
  EXPECT_EQ(Refused(R"("input":"x","max_output_tokens":0)"), "max_output_tokens");
  EXPECT_EQ(Refused(R"("input":"x","max_output_tokens":9999)"), "max_output_tokens");
  const HttpAnswer too_long = Post(harness_.port(), "/v1/responses",
                                   R"({"model":"smol","input":"x","max_output_tokens":9999})");
  EXPECT_NE(too_long.body.find("'max_output_tokens' 9999"), std::string::npos) << too_long.body;
  EXPECT_EQ(Refused(R"("input":"x","n":2)"), "n");
  EXPECT_EQ(Refused(R"("input":"x","metadata":{"a":1})"), "metadata");
  EXPECT_EQ(Refused(StrCat(R"("input":"x","metadata":{"a":")", std::string(513, 'v'), "\"}")),
            "metadata");
  EXPECT_EQ(Refused(R"("input":"x","previous_response_id":"resp_1")", 400), "previous_response_id");
  EXPECT_EQ(Refused(R"("input":"x","background":true)", 400), "background");
  EXPECT_EQ(Refused(R"("input":"x","truncation":"auto")", 400), "truncation");
  EXPECT_EQ(Refused(R"("input":"x","reasoning":{"effort":1})"), "reasoning.effort");
  EXPECT_EQ(Refused(R"("input":"x","include":["message.output_text.logprobs"])", 400), "include");
  EXPECT_EQ(Refused(R"("input":"x","store":1)"), "store");
  EXPECT_EQ(Refused(R"("input":"x","tools":[{"name":"f"}])"), "tools[0].type");
  EXPECT_EQ(Refused(R"("input":"x","tools":[{"type":"functon","name":"f"}])"), "tools[0].type");
  EXPECT_EQ(Refused(R"("input":"x","tools":[{"type":"web_search"}],"tool_choice":"required")"),
            "tool_choice");
  EXPECT_EQ(Refused(R"("input":"x","tools":[{"type":"function"}])"), "tools[0].name");
  EXPECT_EQ(
      Refused(StrCat(R"("input":"x",)", kTool, R"(,"tool_choice":{"type":"function","name":"g"})")),
      "tool_choice.name");
  EXPECT_EQ(Refused(R"("input":"x","text":{"format":{"type":"xml"}})"), "text.format.type");
  EXPECT_EQ(Refused(R"("input":"x","text":{"format":{"type":"json_schema"}})"),
            "text.format.schema");
  EXPECT_TRUE(harness_.engine().submits().empty());
}

}  // namespace
}  // namespace flotilla
