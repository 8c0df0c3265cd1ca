#include "deploy/launcher/ask.h"

#include <boost/json.hpp>
#include <boost/json/src.hpp>
#include <cstdio>
#include <optional>

#include "deploy/launcher/http_client.h"
#include "deploy/launcher/private_cluster.h"

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

StatusOr<std::string> FirstModel(const HttpUrl& url) {
  std::string body;
  ASSIGN_OR_RETURN(unsigned status,
                   SendHttp(url, {"GET", "/v1/models", ""}, [&](std::string_view b) {
                     body.append(b);
                     return true;
                   }));
  if (status != 200) return absl::InternalError(absl::StrCat("/v1/models answered ", status));
  ASSIGN_OR_RETURN(const json::object object, ParseObject(body));
  const json::value value(object);
  boost::system::error_code error;
  const json::value* id = value.find_pointer("/data/0/id", error);
  if (error || id == nullptr || !id->is_string())
    return absl::InternalError("/v1/models names no model");
  return std::string(id->as_string());
}

Status StreamAnswer(const HttpUrl& url, const AskOptions& options) {
  ASSIGN_OR_RETURN(const std::string model, FirstModel(url));
  SseParser events;
  std::string whole;  // an error comes as one JSON body, not as events
  Status failure;
  bool any = false;
  const auto on_data = [&](std::string_view data) {
    if (data == "[DONE]" || !failure.ok()) return;
    const StatusOr<std::string> text = TextOfChunk(data);
    failure.Update(text.status());
    if (!text.ok()) return;
    std::fputs(text->c_str(), stdout);
    std::fflush(stdout);
    any = any || !text->empty();
  };
  const StatusOr<unsigned> status = SendHttp(
      url, {"POST", "/v1/chat/completions", ChatBody(options, model)}, [&](std::string_view bytes) {
        if (whole.size() < 65536) whole.append(bytes);
        events.Append(bytes, on_data);
        return failure.ok();
      });
  if (any) std::fputc('\n', stdout);
  RETURN_IF_ERROR(status.status());
  RETURN_IF_ERROR(failure);
  if (*status == 200) return OkStatus();
  const StatusOr<json::object> object = ParseObject(whole);
  const std::optional<std::string> message =
      object.ok() ? ErrorMessage(*object) : std::optional<std::string>();
  return absl::InternalError(message ? *message : absl::StrCat("the server answered ", *status));
}

}  // namespace

void AddAskFlags(CLI::App* app, AskOptions* o) {
  app->add_option("question", o->question, "What to ask")->required();
  app->add_option("--url", o->url, "The server to ask; if none runs at the default, one is started")
      ->each([o](const std::string&) { o->url_given = true; })
      ->capture_default_str();
  app->add_option("--model", o->model, "For a server that is started: a path, or 'default'")
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

std::string ChatBody(const AskOptions& options, const std::string& model_name) {
  json::array messages;
  if (!options.system.empty())
    messages.push_back(json::object{{"role", "system"}, {"content", options.system}});
  messages.push_back(json::object{{"role", "user"}, {"content", options.question}});
  return json::serialize(json::object{{"model", model_name},
                                      {"messages", std::move(messages)},
                                      {"max_tokens", options.max_tokens},
                                      {"temperature", options.temperature},
                                      {"seed", options.seed},
                                      {"stream", true}});
}

int Ask(const AskOptions& options) {
  std::optional<PrivateCluster> own;
  StatusOr<HttpUrl> url = ParseHttpUrl(options.url);
  Status status = url.status();
  if (status.ok()) status = StreamAnswer(*url, options);
  if (absl::IsUnavailable(status) && !options.url_given) {
    std::fprintf(stderr, "flotilla: no server at %s; starting one for this question\n",
                 options.url.c_str());
    StatusOr<PrivateCluster> cluster =
        PrivateCluster::Start("/proc/self/exe", {"serve", "--port=0", "--log-level=warn",
                                                 "--shutdown-timeout=2", "--model", options.model});
    status = cluster.status();
    if (cluster.ok()) {
      own.emplace(*std::move(cluster));
      url = ParseHttpUrl(own->url());
      status = url.ok() ? StreamAnswer(*url, options) : url.status();
    }
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "flotilla: error: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace flotilla
