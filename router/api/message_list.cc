#include "router/api/message_list.h"

#include <boost/json/serialize.hpp>
#include <utility>

namespace flotilla {

namespace json = boost::json;
namespace {

void AppendLine(const std::string& line, std::string* text) {
  if (!text->empty() && !line.empty()) text->push_back('\n');
  text->append(line);
}

void AppendParagraph(const std::string& text, std::string* to) {
  if (!to->empty() && !text.empty()) to->append("\n\n");
  to->append(text);
}

bool IsSystem(const v1::ChatMessage& message) {
  return message.role() == "system" || message.role() == "developer";
}

std::string JoinArrays(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return a + b;
  return a.substr(0, a.size() - 1) + "," + b.substr(1);
}

}  // namespace

// A turn goes on with text only if it has none yet.
void MessageList::AddText(std::string_view role, std::string_view text) {
  if (role == "assistant") {
    v1::ChatMessage* message = Assistant();
    if (!message->content().empty() || !calls_.empty()) {
      Finish();
      message = Assistant();
    }
    message->set_content(std::string(text));
    return;
  }
  Finish();
  v1::ChatMessage* message = out_.add_messages();
  message->set_role(std::string(role));
  message->set_content(std::string(text));
}

void MessageList::AddReasoning(std::string_view text) {
  Finish();
  Assistant()->set_reasoning_content(std::string(text));
}

void MessageList::AddCall(std::string_view id, std::string_view name, json::value arguments) {
  Assistant();
  json::object function;
  function["name"] = json::string(name.data(), name.size());
  function["arguments"] = std::move(arguments);
  json::object call;
  call["id"] = json::string(id.data(), id.size());
  call["type"] = "function";
  call["function"] = std::move(function);
  calls_.push_back(std::move(call));
}

void MessageList::AddToolResult(std::string_view call_id, std::string_view text) {
  Finish();
  v1::ChatMessage* message = out_.add_messages();
  message->set_role("tool");
  message->set_tool_call_id(std::string(call_id));
  message->set_content(std::string(text));
}

void MessageList::AddTurn(std::string_view role, std::string_view text, v1::ChatRequest others) {
  Finish();
  const bool one = role == "assistant" && others.messages_size() > 0;
  if (one) others.mutable_messages(0)->set_content(std::string(text));
  for (v1::ChatMessage& message : *others.mutable_messages())
    *out_.add_messages() = std::move(message);
  if (!one && (!text.empty() || others.messages_size() == 0)) AddText(role, text);
}

void MessageList::Finish() {
  if (!calls_.empty())
    out_.mutable_messages()->rbegin()->set_tool_calls_json(json::serialize(calls_));
  calls_.clear();
  open_ = false;
}

v1::ChatMessage* MessageList::Assistant() {
  if (open_) return &*out_.mutable_messages()->rbegin();
  open_ = true;
  v1::ChatMessage* message = out_.add_messages();
  message->set_role("assistant");
  return message;
}

void FoldSystemTurns(v1::ChatRequest* request) {
  google::protobuf::RepeatedPtrField<v1::ChatMessage> turns;
  std::string held;  // what was said behind an assistant's turn
  const auto add_held = [&] {
    v1::ChatMessage* message = turns.Add();
    message->set_role("user");
    message->set_content(std::exchange(held, {}));
  };
  for (v1::ChatMessage& message : *request->mutable_messages()) {
    if (IsSystem(message) && !turns.empty()) {
      v1::ChatMessage& last = *turns.rbegin();
      AppendParagraph(message.content(),
                      last.role() == "assistant" ? &held : last.mutable_content());
      continue;
    }
    if (!held.empty() && message.role() == "assistant") add_held();
    std::string* content = message.mutable_content();
    if (message.role() == "user") content->swap(held);
    AppendParagraph(std::exchange(held, {}), content);
    *turns.Add() = std::move(message);
  }
  if (!held.empty()) add_held();
  request->mutable_messages()->Swap(&turns);
}

void CombineTurns(v1::ChatRequest* request) {
  auto* messages = request->mutable_messages();
  int kept = 0;
  for (int i = 0; i < messages->size(); ++i) {
    v1::ChatMessage& message = *messages->Mutable(i);
    v1::ChatMessage* last = kept > 0 ? messages->Mutable(kept - 1) : nullptr;
    if (last == nullptr || last->role() != message.role() ||
        (message.role() != "user" && message.role() != "assistant")) {
      if (kept != i) messages->SwapElements(kept, i);
      ++kept;
      continue;
    }
    AppendLine(message.content(), last->mutable_content());
    AppendLine(message.reasoning_content(), last->mutable_reasoning_content());
    last->set_tool_calls_json(JoinArrays(last->tool_calls_json(), message.tool_calls_json()));
  }
  messages->DeleteSubrange(kept, messages->size() - kept);
}

}  // namespace flotilla
