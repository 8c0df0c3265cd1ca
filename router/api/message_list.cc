#include "router/api/message_list.h"

#include <boost/json/serialize.hpp>
#include <utility>

namespace flotilla {

namespace json = boost::json;

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

}  // namespace flotilla
