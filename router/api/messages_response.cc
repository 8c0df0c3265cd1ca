#include "router/api/messages_response.h"

#include <utility>

#include "common/base/strict_json.h"
#include "router/base/json_writer.h"

namespace flotilla {
namespace {

std::string Event(std::string_view type, std::string_view fields) {
  return StrCat("event: ", type, "\ndata: {\"type\":\"", type, "\"", fields, "}\n\n");
}

enum class Block { kNone, kThinking, kText, kToolUse };

// As a block begins in a stream: empty.
std::string BeginJson(Block block, const ToolCallPiece& call) {
  if (block == Block::kThinking)
    return "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}";
  if (block == Block::kText) return "{\"type\":\"text\",\"text\":\"\"}";
  return StrCat("{\"type\":\"tool_use\",\"id\":\"", call.id, "\",\"name\":", JsonString(call.name),
                ",\"input\":{}}");
}

// Arguments that max_tokens cut are no JSON; an input is an object.
std::string InputJson(const std::string& arguments) {
  boost::json::value value;
  StrictJsonError error;
  return ParseStrictJson(arguments, &value, &error) && value.is_object() ? arguments : "{}";
}

class MessagesWriter final : public AnswerWriter {
 public:
  MessagesWriter(const CompletionEnvelope& envelope, const CompletionRequest& request)
      : envelope_(envelope), request_(request) {}

  std::string Begin() override {
    v1::Usage usage;
    usage.set_prompt_tokens(static_cast<int>(request_.prompts[0].ids.size()));
    return Event("message_start", StrCat(",\"message\":", MessageJson("", {}, usage)));
  }

  std::string Piece(size_t, const ChoicePiece& piece) override {
    std::string out;
    if (!piece.reasoning.empty()) {
      out += Enter(Block::kThinking, {});
      out +=
          Delta(StrCat("\"type\":\"thinking_delta\",\"thinking\":", JsonString(piece.reasoning)));
    }
    const auto on_text = [&](std::string_view text) {
      out += Enter(Block::kText, {});
      out += Delta(StrCat("\"type\":\"text_delta\",\"text\":", JsonString(text)));
    };
    const auto on_call = [&](const ToolCallPiece& call) {
      if (!call.name.empty()) out += Leave();
      out += Enter(Block::kToolUse, call);
      if (!call.arguments.empty())
        out += Delta(
            StrCat("\"type\":\"input_json_delta\",\"partial_json\":", JsonString(call.arguments)));
    };
    ForEachPart(piece.text, piece.calls, on_text, on_call);
    if (!piece.finish_reason.empty()) {
      end_.finish_reason = piece.finish_reason;
      end_.stop_reason = piece.stop_reason;
    }
    return out;
  }

  std::string End(const AnswerEnd& end) override {
    std::string out = Leave();
    out += Event("message_delta",
                 StrCat(",\"delta\":{", StopJson(end_), "},\"usage\":", UsageJson(end.usage)));
    return out + Event("message_stop", "");
  }

  std::string Failure(const ApiError& error) override {
    return StrCat("event: error\ndata: ", ErrorJson(error, ErrorForm::kAnthropic), "\n\n");
  }

  std::string Whole(const std::vector<ChoicePiece>& choices, const AnswerEnd& end) override {
    const ChoicePiece& choice = choices[0];
    std::string content;
    const auto add = [&](const std::string& block) {
      AppendComma(&content);
      content += block;
    };
    if (!choice.reasoning.empty())
      add(StrCat("{\"type\":\"thinking\",\"thinking\":", JsonString(choice.reasoning),
                 ",\"signature\":\"\"}"));
    const auto on_text = [&](std::string_view text) {
      add(StrCat("{\"type\":\"text\",\"text\":", JsonString(text), "}"));
    };
    const auto on_call = [&](const ToolCallPiece& call) {
      add(StrCat("{\"type\":\"tool_use\",\"id\":\"", call.id, "\",\"name\":", JsonString(call.name),
                 ",\"input\":", InputJson(call.arguments), "}"));
    };
    ForEachPart(choice.text, choice.calls, on_text, on_call);
    return MessageJson(content, choice, end.usage);
  }

 private:
  // The block that is open becomes one of this kind.
  std::string Enter(Block block, const ToolCallPiece& call) {
    if (open_ == block) return "";
    std::string out = Leave();
    open_ = block;
    return out +
           Event("content_block_start",
                 StrCat(",\"index\":", index_, ",\"content_block\":", BeginJson(block, call)));
  }
  std::string Leave() {
    if (std::exchange(open_, Block::kNone) == Block::kNone) return "";
    return Event("content_block_stop", StrCat(",\"index\":", index_++));
  }
  std::string Delta(const std::string& fields) const {
    return Event("content_block_delta", StrCat(",\"index\":", index_, ",\"delta\":{", fields, "}"));
  }

  // "stop_reason":…,"stop_sequence":…
  static std::string StopJson(const ChoicePiece& end) {
    const std::string& finish = end.finish_reason;
    const bool sequence = finish == "stop" && end.stop_reason.starts_with('"');
    const char* reason = finish.empty()           ? "null"
                         : finish == "tool_calls" ? "\"tool_use\""
                         : sequence               ? "\"stop_sequence\""
                         : finish == "stop"       ? "\"end_turn\""
                         : finish == "length"     ? "\"max_tokens\""
                                                  : "\"refusal\"";
    return StrCat("\"stop_reason\":", reason,
                  ",\"stop_sequence\":", sequence ? end.stop_reason : "null");
  }

  // What was read from the prefix cache is no input, as there.
  static std::string UsageJson(const v1::Usage& usage) {
    return StrCat("{\"input_tokens\":", usage.prompt_tokens() - usage.cached_tokens(),
                  ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":",
                  usage.cached_tokens(), ",\"output_tokens\":", usage.completion_tokens(), "}");
  }

  std::string MessageJson(const std::string& content, const ChoicePiece& end,
                          const v1::Usage& usage) const {
    return StrCat(
        "{\"id\":\"", envelope_.id,
        "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", JsonString(envelope_.model),
        ",\"content\":[", content, "],", StopJson(end), ",\"usage\":", UsageJson(usage), "}");
  }

  const CompletionEnvelope& envelope_;
  const CompletionRequest& request_;
  Block open_ = Block::kNone;
  size_t index_ = 0;  // of the open block, or the next one
  ChoicePiece end_;   // why it ended
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeMessagesWriter(const CompletionEnvelope& envelope,
                                                 const CompletionRequest& request) {
  return std::make_unique<MessagesWriter>(envelope, request);
}

}  // namespace flotilla
