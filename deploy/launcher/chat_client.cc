#include "deploy/launcher/chat_client.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <utility>

#include "absl/strings/str_join.h"

namespace flotilla {
namespace {

namespace json = boost::json;

StatusOr<json::object> ParseObject(std::string_view text) {
  boost::system::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error || !value.is_object()) return absl::InternalError("the server's answer is not JSON");
  return std::move(value.as_object());
}

// {"error":{"message":…}} → the message.
std::optional<std::string> ErrorMessage(const json::object& object) {
  const json::value* error = object.if_contains("error");
  if (error == nullptr) return std::nullopt;
  const json::value* message =
      error->is_object() ? error->as_object().if_contains("message") : error;
  return message != nullptr && message->is_string() ? std::string(message->as_string())
                                                    : json::serialize(*error);
}

// The one that --model names.
StatusOr<std::string> FindModel(const std::vector<std::string>& served,
                                const ChatOptions& options) {
  if (std::find(served.begin(), served.end(), options.model) != served.end()) return options.model;
  if (options.model == ChatOptions().model) return served.front();
  return absl::NotFoundError(absl::StrCat("the server at ", options.server.url, " has no model '",
                                          options.model, "'; it has ",
                                          absl::StrJoin(served, ", ")));
}

}  // namespace

void AddChatFlags(CLI::App* app, ChatOptions* o) {
  AddServerFlags(app, "The server; if none runs at the default, one is started", &o->server);
  app->get_option("--url")->each([o](const std::string&) { o->url_given = true; });
  app->add_option("--model", o->model,
                  "Of those that the server has, its name; for a server that is started: a path. "
                  "default: the server's first, or the default model")
      ->capture_default_str();
  app->add_option("--system", o->system, "Who is asked; '': what the model's template says")
      ->capture_default_str();
  app->add_option("--max-tokens", o->max_tokens, "Longest answer, tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--temperature", o->temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  app->add_option("--seed", o->seed, "Of the sampling")->capture_default_str();
}

StatusOr<std::vector<std::string>> ServedModels(const HttpUrl& url, const std::string& api_key,
                                                const std::atomic<bool>* stop) {
  ASSIGN_OR_RETURN(const HttpPage answer, GetHttp(url, "/v1/models", api_key, stop));
  if (answer.status == 401) return absl::InternalError("this server wants a key: --api-key");
  if (answer.status != 200)
    return absl::InternalError(absl::StrCat("/v1/models answered ", answer.status));
  ASSIGN_OR_RETURN(const json::object object, ParseObject(answer.body));
  std::vector<std::string> names;
  const json::value* const data = object.if_contains("data");
  if (data != nullptr && data->is_array()) {
    for (const json::value& model : data->as_array()) {
      boost::system::error_code error;
      const json::value* const id = model.find_pointer("/id", error);
      if (!error && id != nullptr && id->is_string()) names.emplace_back(id->as_string());
    }
  }
  if (names.empty()) return absl::InternalError("/v1/models names no model");
  return names;
}

StatusOr<std::string> FirstModel(const HttpUrl& url, const std::string& api_key,
                                 const std::atomic<bool>* stop) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ServedModels(url, api_key, stop));
  return names.front();
}

std::optional<std::string> ErrorMessageOf(std::string_view text) {
  const StatusOr<json::object> object = ParseObject(text);
  return object.ok() ? ErrorMessage(*object) : std::nullopt;
}

void SseParser::Append(std::string_view bytes, const std::function<void(std::string_view)>& event) {
  pending_.append(bytes);
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string_view line(pending_.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("data:")) continue;
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    event(line);
  }
  pending_.erase(0, begin);
}

StatusOr<std::string> TextOfChunk(std::string_view text) {
  ASSIGN_OR_RETURN(const json::object object, ParseObject(text));
  if (const auto message = ErrorMessage(object)) return absl::InternalError(*message);
  const json::value value(object);
  boost::system::error_code error;
  const json::value* piece = value.find_pointer("/choices/0/delta/content", error);
  // The first chunk says who speaks, the last one only why it ended.
  return !error && piece != nullptr && piece->is_string() ? std::string(piece->as_string())
                                                          : std::string();
}

std::string ChatBody(const ChatOptions& options, const std::string& model,
                     const std::vector<ChatMessage>& messages) {
  json::array all;
  if (!options.system.empty())
    all.push_back(json::object{{"role", "system"}, {"content", options.system}});
  for (const ChatMessage& message : messages)
    all.push_back(json::object{{"role", message.role}, {"content", message.content}});
  return json::serialize(json::object{{"model", model},
                                      {"messages", std::move(all)},
                                      {"max_tokens", options.max_tokens},
                                      {"temperature", options.temperature},
                                      {"seed", options.seed},
                                      {"stream", true}});
}

StatusOr<ChatServer> ChatServer::Find(const ChatOptions& options) {
  ChatServer server;
  ASSIGN_OR_RETURN(server.url_, ParseHttpUrl(options.server.url, options.server.tls));
  server.api_key_ = options.server.api_key;
  const StatusOr<std::vector<std::string>> served = ServedModels(server.url_, server.api_key_);
  if (absl::IsUnavailable(served.status()) && !options.url_given) {
    std::fprintf(stderr, "flotilla: no server at %s; starting one\n", options.server.url.c_str());
    ASSIGN_OR_RETURN(PrivateCluster own,
                     PrivateCluster::Start("/proc/self/exe",
                                           {"serve", "--port=0", "--log-level=warn",
                                            "--shutdown-timeout=2", "--model", options.model}));
    server.own_.emplace(std::move(own));
    ASSIGN_OR_RETURN(server.url_, ParseHttpUrl(server.own_->url()));
    ASSIGN_OR_RETURN(server.model_, FirstModel(server.url_, ""));
    return server;
  }
  RETURN_IF_ERROR(served.status());
  ASSIGN_OR_RETURN(server.model_, FindModel(*served, options));
  return server;
}

Status ChatServer::Answer(const ChatOptions& options, const std::vector<ChatMessage>& messages,
                          const std::function<void(const std::string&)>& on_text,
                          const std::atomic<bool>* stop) const {
  SseParser events;
  std::string whole;  // an error comes as one JSON body, not as events
  Status failure;
  const auto on_data = [&](std::string_view data) {
    if (data == "[DONE]" || !failure.ok()) return;
    const StatusOr<std::string> text = TextOfChunk(data);
    failure.Update(text.status());
    if (text.ok()) on_text(*text);
  };
  const HttpCall request = {.method = "POST",
                            .target = "/v1/chat/completions",
                            .body = ChatBody(options, model_, messages),
                            .authorization = BearerToken(api_key_)};
  const auto on_body = [&](unsigned, std::string_view bytes) {
    if (whole.size() < 65536) whole.append(bytes);
    events.Append(bytes, on_data);
    return failure.ok();
  };
  ASSIGN_OR_RETURN(const unsigned status, SendHttp(url_, request, on_body, {.stop = stop}));
  RETURN_IF_ERROR(failure);
  if (status == 200) return OkStatus();
  const std::optional<std::string> message = ErrorMessageOf(whole);
  return absl::InternalError(message ? *message : absl::StrCat("the server answered ", status));
}

}  // namespace flotilla
