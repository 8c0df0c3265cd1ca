// Text and calls that take turns: however the model's text is cut into deltas, the events of each
// API join to the same, and to its whole answer.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "router/api/chat_response.h"
#include "router/api/messages_response.h"
#include "router/api/responses_response.h"
#include "tests/fakes/byte_vocabulary.h"
#include "tests/router/http_client.h"

namespace flotilla {
namespace {

namespace json = boost::json;

std::string Text(const json::value& value) { return std::string(value.as_string()); }

// {"type": …, "name": …} begins a part, and `text` goes on with it.
void Open(const json::value& item, std::string* out) {
  StrAppend(out, "|", Text(item.at("type")));
  if (item.as_object().contains("name")) StrAppend(out, " ", Text(item.at("name")));
  out->append(": ");
}

std::string JoinMessages(const std::string& stream) {
  std::string out;
  int64_t index = -1;
  for (const std::string& event : Events(stream)) {
    const json::value root = json::parse(event);
    const std::string type = Text(root.at("type"));
    if (type == "content_block_start") {
      EXPECT_EQ(root.at("index").as_int64(), ++index);
      EXPECT_EQ(root.at("content_block").as_object().contains("name"),
                root.at("content_block").at("type") == "tool_use");
      Open(root.at("content_block"), &out);
    }
    if (type != "content_block_delta") continue;
    EXPECT_EQ(root.at("index").as_int64(), index);
    for (const auto& [key, value] : root.at("delta").as_object()) {
      if (key != "type") out += Text(value);
    }
  }
  return out;
}
std::string ShowMessage(const json::value& message) {
  std::string out;
  for (const json::value& block : message.at("content").as_array()) {
    Open(block, &out);
    const std::string type = Text(block.at("type"));
    out += type == "tool_use" ? json::serialize(block.at("input")) : Text(block.at(type));
  }
  return out;
}

std::string ShowOutput(const json::value& response) {
  std::string out;
  for (const json::value& item : response.at("output").as_array()) {
    Open(item, &out);
    out += item.at("type") == "function_call" ? Text(item.at("arguments"))
                                              : Text(item.at("content").at(0).at("text"));
  }
  return out;
}
std::string JoinResponses(const std::string& stream) {
  std::string out, last;
  for (const std::string& event : Events(stream)) {
    const json::value root = json::parse(event);
    const std::string type = Text(root.at("type"));
    if (type == "response.output_item.added") Open(root.at("item"), &out);
    if (type.ends_with(".delta")) out += Text(root.at("delta"));
    if (type == "response.completed") last = ShowOutput(root.at("response"));
  }
  EXPECT_EQ(out, last);
  return out;
}

// Of chat, texts and calls each on their own.
std::string JoinChat(const std::string& stream) {
  std::string text, calls;
  for (const std::string& event : Events(stream)) {
    if (event == "[DONE]") continue;
    const json::value root = json::parse(event);
    const json::object& delta = root.at("choices").at(0).at("delta").as_object();
    if (delta.contains("content")) text += Text(delta.at("content"));
    if (!delta.contains("tool_calls")) continue;
    for (const json::value& call : delta.at("tool_calls").as_array()) {
      const json::object& function = call.at("function").as_object();
      if (function.contains("name"))
        StrAppend(&calls, "|", call.at("index").as_int64(), " ", Text(function.at("name")), ": ");
      calls += Text(function.at("arguments"));
    }
  }
  return text + calls;
}
std::string ShowChat(const json::value& answer) {
  const json::object& message = answer.at("choices").at(0).at("message").as_object();
  std::string out = message.at("content").is_null() ? "" : Text(message.at("content"));
  int index = 0;
  for (const json::value& call : message.at("tool_calls").as_array())
    StrAppend(&out, "|", index++, " ", Text(call.at("function").at("name")), ": ",
              Text(call.at("function").at("arguments")));
  return out;
}

struct Form {
  std::unique_ptr<AnswerWriter> (*make_writer)(const CompletionEnvelope& envelope,
                                               const CompletionRequest& request);
  std::string (*join)(const std::string& stream);
  std::string (*show)(const json::value& whole);
};
constexpr Form kMessages = {MakeMessagesWriter, JoinMessages, ShowMessage};
constexpr Form kResponses = {MakeResponsesWriter, JoinResponses, ShowOutput};
constexpr Form kChat = {MakeChatWriter, JoinChat, ShowChat};

class AnswerOrderTest : public ::testing::Test {
 protected:
  AnswerOrderTest() {
    auto model = std::make_shared<ModelHandle>();
    model->tokenizer = std::make_shared<testing::ByteVocabulary>();
    request_.model = std::move(model);
    request_.chat = true;
    request_.prompts.resize(1);
    request_.repeated = R"({"a":1})";
    request_.syntax = {ReasoningStart::kTagged, {ToolSyntax::kHermes, {"f", "g"}}};
  }

  // Of the text, cut before each of `cuts`.
  std::vector<ChoicePiece> Pieces(std::string_view text, std::vector<size_t> cuts) const {
    ChoiceFormatter formatter(request_, 0);
    std::vector<ChoicePiece> pieces;
    cuts.push_back(text.size());
    size_t begin = 0;
    for (const size_t end : cuts) {
      v1::Delta delta;
      v1::ChoiceDelta* choice = delta.add_choices();
      choice->set_text(std::string(text.substr(begin, end - begin)));
      if (end == text.size() && pieces.size() + 1 == cuts.size())
        choice->set_finish_reason(v1::FINISH_REASON_STOP);
      pieces.push_back(formatter.OnDelta(delta));
      begin = end;
    }
    return pieces;
  }
  std::string Stream(const Form& form, const std::vector<ChoicePiece>& pieces) const {
    const auto writer = form.make_writer(envelope_, request_);
    std::string out = writer->Begin();
    for (const ChoicePiece& piece : pieces) {
      if (!piece.empty()) out += writer->Piece(0, piece);
    }
    return form.join(out + writer->End({}));
  }
  std::string Whole(const Form& form, const std::vector<ChoicePiece>& pieces) const {
    std::vector<ChoicePiece> joined(1);
    for (const ChoicePiece& piece : pieces) joined[0].Append(piece);
    return form.show(json::parse(form.make_writer(envelope_, request_)->Whole(joined, {})));
  }
  void Check(const Form& form, std::string_view text, const std::string& expected) const {
    EXPECT_EQ(Stream(form, Pieces(text, {})), expected) << text;
    for (size_t i = 0; i <= text.size(); ++i) {
      EXPECT_EQ(Whole(form, Pieces(text, {i})), expected) << text << " cut at " << i;
      for (size_t j = i; j <= text.size(); ++j)
        ASSERT_EQ(Stream(form, Pieces(text, {i, j})), expected)
            << text << " cut at " << i << ", " << j;
    }
  }

  CompletionRequest request_;
  const CompletionEnvelope envelope_{"id", 1, "m", ""};
};

constexpr const char* kTurns =
    "<think>T</think>a <tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call> b "
    "<tool_call>{\"name\":\"g\"}</tool_call>c";
constexpr const char* kTextFirst = "a <tool_call>{\"name\":\"f\",\"arguments\":{\"x\":[2]}}";
constexpr const char* kTextLast =
    "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":3}}</tool_call><tool_call>{\"name\":\"g\","
    "\"arguments\":{}}</tool_call> b";

TEST_F(AnswerOrderTest, Messages) {
  Check(kMessages, kTurns,
        "|thinking: T|text: a|tool_use f: {\"x\":1}|text: b|tool_use g: {}|text: c");
  Check(kMessages, kTextFirst, "|text: a|tool_use f: {\"x\":[2]}");
  Check(kMessages, kTextLast, "|tool_use f: {\"x\":3}|tool_use g: {}|text: b");
}

TEST_F(AnswerOrderTest, Responses) {
  Check(kResponses, kTurns,
        "|reasoning: T|message: a|function_call f: {\"x\":1}|message: b|function_call g: {}"
        "|message: c");
  Check(kResponses, kTextFirst, "|message: a|function_call f: {\"x\":[2]}");
  Check(kResponses, kTextLast, "|function_call f: {\"x\":3}|function_call g: {}|message: b");
}

TEST_F(AnswerOrderTest, Chat) {
  Check(kChat, kTurns, "abc|0 f: {\"x\":1}|1 g: {}");
  Check(kChat, kTextFirst, "a|0 f: {\"x\":[2]}");
  Check(kChat, kTextLast, "b|0 f: {\"x\":3}|1 g: {}");
}

}  // namespace
}  // namespace flotilla
