// The messages of a conversation that comes in smaller items (calls, results, thoughts) than
// templates take: builds them one by one.
//
// What one assistant's turn consists of, thoughts, text and calls one after the other, becomes one
// message. Threads: one at a time. Ownership: `out` outlives it.
#pragma once

#include <boost/json/array.hpp>
#include <string>
#include <string_view>

#include "flotilla/v1/inference.pb.h"

namespace flotilla {

class MessageList {
 public:
  explicit MessageList(v1::ChatRequest* out) : out_(*out) {}

  void AddText(std::string_view role, std::string_view text);
  void AddReasoning(std::string_view text);
  void AddCall(std::string_view id, std::string_view name, boost::json::value arguments);
  void AddToolResult(std::string_view call_id, std::string_view text);
  // One message with both text and others: results of tools come before what is said about them,
  // calls belong to the assistant's text.
  void AddTurn(std::string_view role, std::string_view text, v1::ChatRequest others);
  // After the last one.
  void Finish();

 private:
  v1::ChatMessage* Assistant();

  v1::ChatRequest& out_;
  boost::json::array calls_;  // of the last message
  bool open_ = false;         // the last message is an assistant's that may go on
};

// A client may speak as the system (or developer) between the turns. Many templates refuse that,
// and what is put in front of all turns changes what the prefix cache has of them. So it is added
// to the turn before, the user's or a tool's result, behind an assistant's to the next, and where
// there is none becomes a user's. Those at the beginning become one.
void FoldSystemTurns(v1::ChatRequest* request);

// Turns of one role behind each other, the user's or the assistant's, become one: many templates
// refuse two.
void CombineTurns(v1::ChatRequest* request);

}  // namespace flotilla
