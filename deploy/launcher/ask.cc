#include "deploy/launcher/ask.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <utility>
#include <vector>

#include "deploy/launcher/log_mux.h"

namespace flotilla {
namespace {

constexpr char kChatHelp[] =
    "  /system TEXT   who is asked, from now on\n"
    "  /reset         forgets what was said\n"
    "  /exit          ends, as Ctrl-D does; Ctrl-C ends an answer\n";

std::atomic<bool> g_interrupted{false};
void OnInterrupt(int) { g_interrupted.store(true); }

// While it lives Ctrl-C is noted (a second one kills), else it ends the program.
class InterruptNoted {
 public:
  InterruptNoted() {
    g_interrupted.store(false);
    struct sigaction action = {};
    action.sa_handler = OnInterrupt;
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptNoted() { sigaction(SIGINT, &before_, nullptr); }
  InterruptNoted(InterruptNoted&&) = delete;

 private:
  struct sigaction before_ = {};
};

void Say(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// A conversation, without the system's part.
class Conversation {
 public:
  Conversation(const ChatServer& server, const ChatOptions& options)
      : server_(server), options_(options) {}

  // False: it is over.
  bool OnLine(const std::string& line) {
    if (line.empty()) return true;
    if (!line.starts_with('/')) {
      Turn(line);
      return true;
    }
    if (line == "/exit") return false;
    if (line == "/reset") {
      messages_.clear();
    } else if (line.starts_with("/system ")) {
      options_.system = line.substr(line.find(' ') + 1);
    } else {
      std::fputs(kChatHelp, stderr);
    }
    return true;
  }
  bool failed() const { return failed_; }

 private:
  void Turn(const std::string& line) {
    messages_.push_back({"user", line});
    std::string answer;
    Status status;
    {
      const InterruptNoted noted;
      const auto on_text = [&](const std::string& text) {
        Say(text);
        answer += text;
      };
      status = server_.Answer(options_, messages_, on_text, &g_interrupted);
    }
    const bool ended = absl::IsCancelled(status);  // by Ctrl-C
    if (ended || !answer.empty()) Say("\n");
    failed_ = !status.ok() && !ended;
    if (failed_) FailCommand(status);
    if (failed_ || answer.empty()) {
      messages_.pop_back();  // as if it had not been said
      return;
    }
    messages_.push_back({"assistant", std::move(answer)});
  }

  const ChatServer& server_;
  ChatOptions options_;
  std::vector<ChatMessage> messages_;
  bool failed_ = false;
};

}  // namespace

void AddAskFlags(CLI::App* app, AskOptions* o) {
  app->add_option("question", o->question,
                  "What to ask; -, or none where stdin is no terminal: what stdin says");
  AddChatFlags(app, &o->chat);
}

StatusOr<std::string> QuestionOf(const std::string& given, std::istream& in, bool terminal) {
  if (!given.empty() && given != "-") return given;
  if (given.empty() && terminal)
    return absl::InvalidArgumentError(
        "what is the question? flotilla ask \"Why is the sky blue?\"");
  std::string question(std::istreambuf_iterator<char>(in), {});
  while (question.ends_with('\n')) question.pop_back();
  if (question.empty()) return absl::InvalidArgumentError("stdin has no question");
  return question;
}

int Ask(const AskOptions& options) {
  const StatusOr<std::string> question =
      QuestionOf(options.question, std::cin, isatty(STDIN_FILENO) != 0);
  if (!question.ok()) return FailCommand(question.status());
  const StatusOr<ChatServer> server = ChatServer::Find(options.chat);
  if (!server.ok()) return FailCommand(server.status());
  bool any = false;
  const auto on_text = [&](const std::string& text) {
    Say(text);
    any = any || !text.empty();
  };
  const Status status = server->Answer(options.chat, {{"user", *question}}, on_text, nullptr);
  if (any) Say("\n");
  return status.ok() ? 0 : FailCommand(status);
}

int Chat(const ChatOptions& options) {
  const StatusOr<ChatServer> server = ChatServer::Find(options);
  if (!server.ok()) return FailCommand(server.status());
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) Say(StrCat(server->model(), "; /help says what else can be written\n"));
  Conversation conversation(*server, options);
  for (;;) {
    if (terminal) Say("> ");
    std::string line;
    if (!std::getline(std::cin, line)) break;
    if (!conversation.OnLine(line)) break;
  }
  if (terminal) Say("\n");
  return conversation.failed() ? 1 : 0;
}

}  // namespace flotilla
