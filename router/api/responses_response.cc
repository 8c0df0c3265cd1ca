#include "router/api/responses_response.h"

#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "router/base/json_writer.h"
#include "router/base/random.h"

namespace flotilla {
namespace {

// One entry of a response's output.
struct Item {
  enum class Kind { kReasoning, kMessage, kCall };
  Kind kind = Kind::kMessage;
  std::string id = {};
  std::string call_id = {}, name = {};  // of a call
  std::string text = {};                // or arguments
};

std::string PartJson(const Item& item) {
  if (item.kind == Item::Kind::kReasoning)
    return StrCat("{\"type\":\"reasoning_text\",\"text\":", JsonString(item.text), "}");
  return StrCat("{\"type\":\"output_text\",\"text\":", JsonString(item.text),
                ",\"annotations\":[],\"logprobs\":[]}");
}

// `done`: with its content, else as it begins.
std::string ItemJson(const Item& item, const char* status, bool done) {
  std::string out = StrCat("{\"id\":\"", item.id, "\",\"status\":\"", status, "\",\"type\":");
  if (item.kind == Item::Kind::kCall) {
    StrAppend(&out, "\"function_call\",\"call_id\":\"", item.call_id,
              "\",\"name\":", JsonString(item.name),
              ",\"arguments\":", JsonString(done ? item.text : ""), "}");
    return out;
  }
  out.append(item.kind == Item::Kind::kMessage ? "\"message\",\"role\":\"assistant\""
                                               : "\"reasoning\",\"summary\":[]");
  StrAppend(&out, ",\"content\":[", done ? PartJson(item) : "", "]}");
  return out;
}

class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(const CompletionEnvelope& envelope, const CompletionRequest& request)
      : envelope_(envelope), request_(request) {}

  std::string Begin() override {
    const std::string response = StrCat("\"response\":", Response("in_progress", "", nullptr));
    std::string out = Event("response.created", response);
    return out.append(Event("response.in_progress", response));
  }

  std::string Piece(size_t, const ChoicePiece& piece) override {
    std::string out = Take(piece);
    if (!piece.finish_reason.empty()) finish_ = piece.finish_reason;
    return out;
  }

  std::string End(const AnswerEnd& end) override {
    std::string out = CloseItem();
    const std::string type = StrCat("response.", Status());
    StrAppend(&out, Event(type, StrCat("\"response\":", Final(end))));
    return out;
  }

  std::string Failure(const ApiError& error) override {
    return Event("error",
                 StrCat("\"code\":\"", error.type_code.empty() ? "server_error" : error.type_code,
                        "\",\"message\":", JsonString(error.message), ",\"param\":null"));
  }

  std::string Whole(const std::vector<ChoicePiece>& choices, const AnswerEnd& end) override {
    Piece(0, choices[0]);
    CloseItem();
    return Final(end);
  }

 private:
  std::string Take(const ChoicePiece& piece) {
    std::string out;
    if (!piece.reasoning.empty())
      out += Grow({.kind = Item::Kind::kReasoning, .text = piece.reasoning});
    const auto on_text = [&](std::string_view text) {
      out += Grow({.kind = Item::Kind::kMessage, .text = std::string(text)});
    };
    const auto on_call = [&](const ToolCallPiece& call) {
      if (!call.name.empty()) out += CloseItem();
      out += Grow({.kind = Item::Kind::kCall,
                   .call_id = call.id,
                   .name = call.name,
                   .text = call.arguments});
    };
    ForEachPart(piece.text, piece.calls, on_text, on_call);
    return out;
  }

  // Adds the text to the item that is open, or to a new one of that kind.
  std::string Grow(const Item& piece) {
    std::string out;
    if (!open_ || items_.back().kind != piece.kind) {
      out = CloseItem();
      out += OpenItem(piece);
    }
    Item& item = items_.back();
    item.text += piece.text;
    if (piece.text.empty()) return out;
    std::string fields = Place(item);
    StrAppend(&fields, ",\"delta\":", JsonString(piece.text));
    switch (item.kind) {
      case Item::Kind::kReasoning:
        return out + Event("response.reasoning_text.delta", fields);
      case Item::Kind::kMessage:
        return out + Event("response.output_text.delta", fields + ",\"logprobs\":[]");
      case Item::Kind::kCall:
        return out + Event("response.function_call_arguments.delta", fields);
    }
    return out;
  }

  std::string OpenItem(const Item& piece) {
    static constexpr const char* kPrefix[] = {"rs_", "msg_", "fc_"};
    Item& item = items_.emplace_back(piece);
    item.text.clear();
    item.id = StrCat(kPrefix[static_cast<int>(item.kind)], RandomHex128());
    open_ = true;
    std::string out = Event("response.output_item.added",
                            StrCat(Index(), ",\"item\":", ItemJson(item, "in_progress", false)));
    if (item.kind == Item::Kind::kMessage)
      out +=
          Event("response.content_part.added", StrCat(Place(item), ",\"part\":", PartJson(item)));
    return out;
  }

  std::string CloseItem() {
    if (!std::exchange(open_, false)) return "";
    const Item& item = items_.back();
    const std::string place = Place(item), text = JsonString(item.text);
    std::string out;
    if (item.kind == Item::Kind::kReasoning)
      out = Event("response.reasoning_text.done", StrCat(place, ",\"text\":", text));
    if (item.kind == Item::Kind::kCall)
      out = Event("response.function_call_arguments.done",
                  StrCat(place, ",\"name\":", JsonString(item.name), ",\"arguments\":", text));
    if (item.kind == Item::Kind::kMessage) {
      out =
          Event("response.output_text.done", StrCat(place, ",\"text\":", text, ",\"logprobs\":[]"));
      out += Event("response.content_part.done", StrCat(place, ",\"part\":", PartJson(item)));
    }
    return out + Event("response.output_item.done",
                       StrCat(Index(), ",\"item\":", ItemJson(item, ItemStatus(item), true)));
  }
  // The last one may be cut anywhere. Whoever runs a call must not take half of its arguments for
  // all.
  const char* ItemStatus(const Item& item) const {
    if (finish_ != "length" || &item != &items_.back()) return "completed";
    boost::system::error_code error;
    if (item.kind == Item::Kind::kCall) boost::json::parse(item.text, error);
    return item.kind == Item::Kind::kCall && !error ? "completed" : "incomplete";
  }

  // Where the last item is.
  std::string Index() const { return StrCat("\"output_index\":", items_.size() - 1); }
  std::string Place(const Item& item) const {
    const bool has_parts = item.kind != Item::Kind::kCall;
    return StrCat(Index(), ",\"item_id\":\"", item.id, "\"",
                  has_parts ? ",\"content_index\":0" : "");
  }

  std::string Event(std::string_view type, std::string_view fields) {
    return StrCat("event: ", type, "\ndata: {\"type\":\"", type,
                  "\",\"sequence_number\":", sequence_++, ",", fields, "}\n\n");
  }

  const char* Status() const {
    if (finish_ == "stop" || finish_ == "tool_calls") return "completed";
    return finish_ == "length" ? "incomplete" : "failed";
  }

  std::string Final(const AnswerEnd& end) const {
    std::string output;
    for (const Item& item : items_) {
      AppendComma(&output);
      output += ItemJson(item, ItemStatus(item), true);
    }
    return Response(Status(), output, &end);
  }

  std::string Response(const char* status, const std::string& output, const AnswerEnd* end) const {
    std::string out = StrCat("{\"id\":\"", envelope_.id,
                             "\",\"object\":\"response\",\"created_at\":", envelope_.created,
                             ",\"status\":\"", status, "\",\"error\":");
    const bool failed = std::string_view(status) == "failed";
    StrAppend(&out, failed
                        ? StrCat("{\"code\":\"server_error\",\"message\":\"The request ended by ",
                                 finish_, ".\"}")
                        : "null");
    const bool cut = std::string_view(status) == "incomplete";
    StrAppend(&out, ",\"incomplete_details\":", cut ? "{\"reason\":\"max_output_tokens\"}" : "null",
              ",\"output\":[", output, "],");
    // The request's own fields, without their braces.
    out.append(request_.repeated, 1, request_.repeated.size() - 2);
    StrAppend(&out, ",\"usage\":", end == nullptr ? "null" : UsageJson(end->usage));
    if (end != nullptr && !end->timing.empty()) StrAppend(&out, ",\"timing\":", end->timing);
    out.push_back('}');
    return out;
  }

  std::string UsageJson(const v1::Usage& usage) const {
    return StrCat("{\"input_tokens\":", usage.prompt_tokens(),
                  ",\"input_tokens_details\":{\"cached_tokens\":", usage.cached_tokens(),
                  "},\"output_tokens\":", usage.completion_tokens(),
                  ",\"output_tokens_details\":{\"reasoning_tokens\":", ReasoningTokens(),
                  "},\"total_tokens\":",
                  static_cast<int64_t>(usage.prompt_tokens()) + usage.completion_tokens(), "}");
  }

  // As many as the text has when it is tokenised again, tags left out.
  size_t ReasoningTokens() const {
    size_t count = 0;
    for (const Item& item : items_) {
      if (item.kind != Item::Kind::kReasoning) continue;
      const auto ids = request_.model->tokenizer->Encode(item.text, {.add_special = false});
      if (ids.ok()) count += ids->size();
    }
    return count;
  }

  const CompletionEnvelope& envelope_;
  const CompletionRequest& request_;
  std::vector<Item> items_;
  bool open_ = false;  // the last of them
  std::string finish_;
  uint64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesWriter(const CompletionEnvelope& envelope,
                                                  const CompletionRequest& request) {
  return std::make_unique<ResponsesWriter>(envelope, request);
}

}  // namespace flotilla
