// `flotilla ask`: streams one answer to the terminal. `flotilla chat`: a conversation.
//
// Threads: the main thread. Errors: a message on stderr and exit status 1.
#pragma once

#include <istream>
#include <string>

#include "deploy/launcher/chat_client.h"

namespace flotilla {

struct AskOptions {
  std::string question;  // empty or "-": from stdin
  ChatOptions chat;
};
void AddAskFlags(CLI::App* app, AskOptions* options);

// What is asked, if `given` was on the command line. `terminal`: a person is at `in`, and is not
// kept waiting unless "-" says so.
StatusOr<std::string> QuestionOf(const std::string& given, std::istream& in, bool terminal);

int Ask(const AskOptions& options);

// Reads a line, answers, reads the next, until the input ends. A line that begins with / is a
// command
// (/help). Ctrl-C ends an answer; where none comes, the conversation.
int Chat(const ChatOptions& options);

}  // namespace flotilla
