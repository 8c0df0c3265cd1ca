// A Chat request's conversation → the prompt's text, the same in the router and in the engine.
//
// Each message becomes what templates expect: {"role", "content", …} with name, tool_call_id,
// tool_calls and reasoning_content (also as thinking) where given; the role "developer" becomes
// "system", which models know. Beside calls, no content is None for templates that ask for it.
// Tools are in the system's message, too, for a template that has them from there. With
// continue_final_message the text ends where the last message's does. Ranges are
// proto/flotilla/v1/inference.proto's. Threads: any. Errors: InvalidArgument that begins with the
// field's name and a colon
// ("messages[2].role: …"); what the template says about the conversation is about "messages".
#pragma once

#include <ctime>
#include <string>

#include "common/base/status.h"
#include "common/text/chat_format.h"
#include "flotilla/v1/inference.pb.h"

namespace flotilla {

inline constexpr int kMaxChatMessages = 1024;

// Arguments of calls. As objects: what JSON text says, an empty object for an empty one; if the
// template fails with these, text.
enum class CallArguments { kAsTheyAre, kObjects, kText };

// `now`: the local time that a template may write into its system message.
StatusOr<std::string> RenderChat(const v1::ChatRequest& request, const ChatFormat& format,
                                 const std::tm& now,
                                 CallArguments arguments = CallArguments::kAsTheyAre);
std::tm LocalTime();

// The field by which a request asks that tools and the answer be what they are over HTTP
// (inference.proto), which is the router's business; null: none does.
const char* AsksAsHttp(const v1::ChatRequest& request);

}  // namespace flotilla
