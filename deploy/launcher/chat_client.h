// A client of /v1/chat/completions for people's commands (`ask`, `chat`, `bench serve`): a server
// that runs or, if none does at the default address, a quiet cluster of our own; answers as they
// come.
//
// Threads: the main thread. Errors: Unavailable (nobody there), Internal with the server's words,
// InvalidArgument (URL).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/flags.h"
#include "common/base/status.h"
#include "common/http/http_client.h"
#include "deploy/launcher/private_cluster.h"
#include "deploy/launcher/server_flags.h"

namespace flotilla {

struct ChatOptions {
  // SmolLM2 answers more sensibly to this than to its template's own.
  std::string system = "You are a helpful assistant.";
  ServerFlags server;
  bool url_given = false;  // then no cluster is started
  std::string model = "default";
  uint32_t max_tokens = 256;
  double temperature = 0;
  uint64_t seed = 0;
};
void AddChatFlags(CLI::App* app, ChatOptions* options);

// Splits a stream of server-sent events into the payloads of their `data:` lines.
class SseParser {
 public:
  void Append(std::string_view bytes, const std::function<void(std::string_view data)>& event);

 private:
  std::string pending_;
};

// The text that a chunk of /v1/chat/completions carries; an error if the chunk is one.
StatusOr<std::string> TextOfChunk(std::string_view json);

// What the server says went wrong: the message of {"error":{"message":…}}; nullopt: it says
// nothing.
std::optional<std::string> ErrorMessageOf(std::string_view json);

// The names in /v1/models, at least one. api_key: empty if it wants none.
StatusOr<std::vector<std::string>> ServedModels(const HttpUrl& url, const std::string& api_key,
                                                const std::atomic<bool>* stop = nullptr);
// The first of them.
StatusOr<std::string> FirstModel(const HttpUrl& url, const std::string& api_key,
                                 const std::atomic<bool>* stop = nullptr);

struct ChatMessage {
  std::string role, content;
};
// The body of a request, JSON. options.system comes before the messages, if it is not empty.
std::string ChatBody(const ChatOptions& options, const std::string& model,
                     const std::vector<ChatMessage>& messages);

class ChatServer {
 public:
  // Asks who is there; starts a cluster, which ends with this object, if nobody is and no URL was
  // given.
  static StatusOr<ChatServer> Find(const ChatOptions& options);

  const std::string& model() const { return model_; }
  // Hands out each piece of the answer. Cancelled: `stop` was set, which may be null.
  Status Answer(const ChatOptions& options, const std::vector<ChatMessage>& messages,
                const std::function<void(const std::string&)>& on_text,
                const std::atomic<bool>* stop) const;

 private:
  ChatServer() = default;
  HttpUrl url_;
  std::string api_key_;
  std::string model_;
  std::optional<PrivateCluster> own_;
};

}  // namespace flotilla
