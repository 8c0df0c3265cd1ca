// `flotilla ask`: streams one answer to the terminal, from a running server or, if none runs at the
// default address, from a quiet cluster of its own that ends with the answer.
//
// Threads: the main thread. Errors: a message on stderr and exit status 1.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/flags.h"
#include "common/base/status.h"

namespace flotilla {

struct AskOptions {
  std::string question;
  // SmolLM2 answers more sensibly to this than to its template's own.
  std::string system = "You are a helpful assistant.";
  std::string url = "http://127.0.0.1:8000";
  bool url_given = false;  // then no cluster is started
  std::string model = "default";
  uint32_t max_tokens = 256;
  double temperature = 0;
  uint64_t seed = 0;
};
void AddAskFlags(CLI::App* app, AskOptions* options);

// Splits a stream of server-sent events into the payloads of their `data:` lines.
class SseParser {
 public:
  void Append(std::string_view bytes, const std::function<void(std::string_view data)>& event);

 private:
  std::string pending_;
};

// The text that a chunk of /v1/chat/completions carries; an error if the chunk is one.
StatusOr<std::string> TextOfChunk(std::string_view json);
// The body of the request: the question as a conversation of one message.
std::string ChatBody(const AskOptions& options, const std::string& model_name);

int Ask(const AskOptions& options);

}  // namespace flotilla
