#include "router/http_routes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

#include "router/embeddings_handler.h"
#include "router/json_writer.h"

namespace flotilla {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr const char* kJson = "application/json";

struct Route {
  const char* path;
  const char* method;
};
constexpr const char* kChatPath = "/v1/chat/completions";
constexpr const char* kCompletionsPath = "/v1/completions";
constexpr const char* kEmbeddingsPath = "/v1/embeddings";
constexpr std::array<Route, 7> kRoutes = {{{kChatPath, "POST"},
                                           {kCompletionsPath, "POST"},
                                           {kEmbeddingsPath, "POST"},
                                           {"/v1/models", "GET"},
                                           {"/health/live", "GET"},
                                           {"/health/ready", "GET"},
                                           {"/version", "GET"}}};

// OpenAI's and vLLM's other paths: known, so that nobody hunts for a typing error.
constexpr std::array<const char*, 6> kLater = {"/v1/responses",   "/v1/messages",
                                               "/tokenize",       "/detokenize",
                                               "/apply-template", "/v1/completions/render"};

const Route* FindRoute(std::string_view path) {
  for (const Route& route : kRoutes) {
    if (path == route.path) return &route;
  }
  static constexpr Route kModel = {"/v1/models/{id}", "GET"};
  return path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size() ? &kModel : nullptr;
}

bool IsJson(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  return absl::EqualsIgnoreCase({type.data(), type.size()}, kJson);
}

// %41 → A; what is no escape stays.
std::string PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      out.push_back(static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16)));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

void AppendModel(const ModelHandle& model, std::string* out) {
  out->append("{\"id\":");
  AppendJsonString(model.name, out);
  StrAppend(out, ",\"object\":\"model\",\"created\":", model.created,
            ",\"owned_by\":\"flotilla\",\"max_model_len\":", model.max_model_len, "}");
}

}  // namespace

std::optional<ApiError> HttpRoutes::CheckHead(const HttpHead& head) {
  const Route* route = FindRoute(head.path);
  if (route == nullptr) {
    if (std::find(kLater.begin(), kLater.end(), head.path) != kLater.end())
      return NotBuiltYet("", StrCat(head.path, " is not built yet."));
    ApiError error = HttpError(404, "There is nothing at this path.");
    error.type_code = "unknown_url";
    return error;
  }
  const bool get = std::string_view(route->method) == "GET";
  if (head.method != route->method && !(get && head.method == "HEAD")) {
    ApiError error = HttpError(405, StrCat(route->path, " takes ", route->method, "."));
    error.allow = get ? "GET, HEAD" : route->method;
    return error;
  }
  if (get) return std::nullopt;
  if (!head.has_length) return HttpError(411, "The request needs a Content-Length.");
  if (!IsJson(head.content_type))
    return HttpError(415, "The body's Content-Type must be application/json.");
  return std::nullopt;
}

void HttpRoutes::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const std::string& path = request.head.path;
  if (path == kCompletionsPath || path == kChatPath || path == kEmbeddingsPath) {
    if (draining_) {
      context_.metrics->Rejection("draining");
      exchange->ReplyError(Unavailable("This router is shutting down; try again.", 1000));
      return;
    }
    if (path == kEmbeddingsPath) {
      std::make_shared<EmbeddingsHandler>(context_, std::move(exchange))
          ->Start(std::move(request.body));
      return;
    }
    const auto form =
        path == kChatPath ? CompletionHandler::Form::kChat : CompletionHandler::Form::kCompletion;
    auto handler = std::make_shared<CompletionHandler>(context_, form, std::move(exchange),
                                                       request.received_ns);
    handler->Start(std::move(request.body));
  } else if (path == "/v1/models") {
    ReplyModels(exchange.get());
  } else if (path == "/health/live") {
    ReplyHealth(true, exchange.get());
  } else if (path == "/health/ready") {
    ReplyHealth(!draining_ && context_.dispatcher->ready(), exchange.get());
  } else if (path == "/version") {
    exchange->Reply(200, kJson, "{\"version\":\"" FLOTILLA_VERSION "\"}");
  } else {
    ReplyModel(PercentDecode(path.substr(kModelPrefix.size())), exchange.get());
  }
}

// The words of grpc.health.v1, so that both APIs read alike.
void HttpRoutes::ReplyHealth(bool serving, HttpExchange* exchange) const {
  exchange->Reply(serving ? 200 : 503, kJson,
                  serving ? "{\"status\":\"SERVING\"}" : "{\"status\":\"NOT_SERVING\"}");
}

void HttpRoutes::ReplyModels(HttpExchange* exchange) const {
  const std::shared_ptr<const ModelTable> models = context_.dispatcher->models();
  std::string list;
  for (const auto& [name, model] : *models) {
    AppendComma(&list);
    AppendModel(*model, &list);
  }
  exchange->Reply(200, kJson, StrCat("{\"object\":\"list\",\"data\":[", list, "]}"));
}

void HttpRoutes::ReplyModel(std::string_view id, HttpExchange* exchange) const {
  const auto found = FindModel(*context_.dispatcher->models(), id);
  if (const auto* error = std::get_if<ApiError>(&found)) {
    exchange->ReplyError(*error);
    return;
  }
  std::string body;
  AppendModel(*std::get<std::shared_ptr<const ModelHandle>>(found), &body);
  exchange->Reply(200, kJson, std::move(body));
}

void HttpRoutes::OnAnswered(const std::string& path, int status, double seconds) {
  const Route* route = FindRoute(path);
  context_.metrics->Request(route == nullptr ? "other" : route->path, std::to_string(status),
                            seconds);
}

void HttpRoutes::OnRefused(const char* reason) { context_.metrics->Rejection(reason); }

void HttpRoutes::OnBodyBytes(int64_t delta) {
  context_.metrics->BodyBytes(static_cast<double>(delta));
}

void HttpRoutes::OnUnsent(int64_t delta_bytes) {
  context_.metrics->StreamBuffer(static_cast<double>(delta_bytes));
}

}  // namespace flotilla
