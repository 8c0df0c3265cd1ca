#include "router/handlers/http_routes.h"

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

#include "router/base/json_writer.h"
#include "router/handlers/completion_handler.h"
#include "router/handlers/embeddings_handler.h"
#include "router/handlers/operator_page.h"

namespace flotilla {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr const char* kHealthPath = "/health";  // where vLLM and SGLang have it
constexpr const char* kPingPath = "/ping";      // the same, where SageMaker asks
constexpr std::string_view kHealthPrefix = "/health/";
constexpr const char* kJson = "application/json";

constexpr const char* kEmbeddingsPath = "/v1/embeddings";
constexpr const char* kModelPath = "/v1/models/{id}";
constexpr std::array<HttpRoutes::Route, 15> kRoutes = {{{"/v1/chat/completions", "POST"},
                                                        {"/v1/completions", "POST"},
                                                        {"/v1/responses", "POST"},
                                                        {"/v1/messages", "POST"},
                                                        {"/v1/messages/count_tokens", "POST"},
                                                        {kEmbeddingsPath, "POST"},
                                                        {"/tokenize", "POST"},
                                                        {"/detokenize", "POST"},
                                                        {"/apply-template", "POST"},
                                                        {"/v1/models", "GET"},
                                                        {kHealthPath, "GET"},
                                                        {kPingPath, "GET"},
                                                        {"/health/live", "GET"},
                                                        {"/health/ready", "GET"},
                                                        {"/version", "GET"}}};
constexpr HttpRoutes::Route kModelRoute = {kModelPath, "GET"};
constexpr HttpRoutes::Route kUiFleetRoute = {kUiFleetPath, "GET"};
constexpr HttpRoutes::Route kUiFileRoute = {"/ui/{file}", "GET"};

const HttpRoutes::Route* FindRoute(std::string_view path) {
  for (const HttpRoutes::Route& route : kRoutes) {
    if (path == route.path) return &route;
  }
  if (path == kUiFleetPath) return &kUiFleetRoute;
  if (IsUiFile(path)) return &kUiFileRoute;
  return path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size() ? &kModelRoute
                                                                             : nullptr;
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

const HttpRoutes::Route* HttpRoutes::Find(std::string_view path) const {
  const Route* route = FindRoute(path);
  const bool of_ui = route == &kUiFleetRoute || route == &kUiFileRoute;
  return of_ui && !ui_ ? nullptr : route;
}

std::optional<ApiError> HttpRoutes::CheckHead(const HttpHead& head) {
  const Route* route = Find(head.path);
  // A browser has no key before it has the page that asks for it.
  const bool open = context_.access == nullptr || head.path == kHealthPath ||
                    head.path == kPingPath || head.path.starts_with(kHealthPrefix) ||
                    route == &kUiFileRoute;
  if (!open) {
    const auto caller = context_.access->Identify(head.authorization, head.x_api_key);
    if (const auto* refusal = std::get_if<ApiError>(&caller)) {
      CountRefusal(*refusal);
      return *refusal;
    }
  }
  if (route == nullptr) {
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
  if (!head.content_encoding.empty())
    return HttpError(415, StrCat("The Content-Encoding '", head.content_encoding.substr(0, 64),
                                 "' is not taken: send the body as it is."));
  return std::nullopt;
}

HttpRoutes::HttpRoutes(const HandlerContext& context, bool ui) : context_(context), ui_(ui) {
  for (const Route& route : kRoutes) {
    if (route.method != std::string_view("POST")) continue;
    context_.metrics->Expect(route.path, {"500", "502", "503", "504"});
  }
}

void HttpRoutes::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const std::string& path = request.head.path;
  const ApiForm* form = FindApiForm(path);
  if (form != nullptr || path == kEmbeddingsPath) {
    if (draining_) {
      context_.metrics->Rejection("draining");
      exchange->ReplyError(Unavailable("This router is shutting down; try again.", 1000));
      return;
    }
    auto admitted = Admit(request.head, /*text=*/false);
    if (const auto* error = std::get_if<ApiError>(&admitted)) {
      exchange->ReplyError(*error);
      return;
    }
    const HandlerContext& context = std::get<HandlerContext>(admitted);
    if (form == nullptr) {
      std::make_shared<EmbeddingsHandler>(context, std::move(exchange))->Start(std::move(request));
      return;
    }
    auto handler = std::make_shared<CompletionHandler>(context, *form, std::move(exchange));
    handler->Start(std::move(request));
  } else if (const TextForm* text = FindTextForm(path)) {
    ReplyText(*text, std::move(request), std::move(exchange));
  } else if (path == "/v1/models") {
    ReplyModels(exchange.get());
  } else if (path == "/health/live") {
    ReplyHealth(true, exchange.get());
  } else if (path == "/health/ready" || path == kHealthPath || path == kPingPath) {
    ReplyHealth(!leaving_ && context_.dispatcher->ready(), exchange.get());
  } else if (path == kUiFleetPath) {
    ReplyFleet(request.head, exchange.get());
  } else if (IsUiFile(path)) {
    ReplyUiFile(request.head, exchange.get());
  } else if (path == "/version") {
    exchange->Reply(200, kJson, "{\"version\":\"" FLOTILLA_VERSION "\"}");
  } else {
    ReplyModel(PercentDecode(path.substr(kModelPrefix.size())), exchange.get());
  }
}

std::variant<HandlerContext, ApiError> HttpRoutes::Admit(const HttpHead& head, bool text) const {
  HandlerContext context = context_;
  if (context.access == nullptr) return context;
  Access& access = *context.access;
  auto caller = text ? access.AdmitText(head.authorization, head.x_api_key)
                     : access.Admit(head.authorization, head.x_api_key);
  if (const auto* error = std::get_if<ApiError>(&caller)) {
    CountRefusal(*error);
    return *error;
  }
  context.caller = std::move(std::get<Caller>(caller));
  return context;
}

void HttpRoutes::CountRefusal(const ApiError& error) const {
  context_.metrics->Rejection(error.code == absl::StatusCode::kResourceExhausted ? "tenant_limit"
                                                                                 : "api_key");
}

// Off the io thread: a template or a long text takes its time, behind all that generates.
void HttpRoutes::ReplyText(const TextForm& form, HttpRequest request,
                           std::shared_ptr<HttpExchange> exchange) const {
  auto admitted = Admit(request.head, /*text=*/true);
  if (const auto* error = std::get_if<ApiError>(&admitted)) return exchange->ReplyError(*error);
  HandlerContext& context = std::get<HandlerContext>(admitted);
  context.pool = context.large_pool;
  WorkOffThread(
      context, std::move(request),
      [this, &form, models = context_.dispatcher->models()](const std::string& body) {
        return form.answer(body, *models, context_.parsers);
      },
      [exchange = std::move(exchange),
       answers = context_.answers](const std::variant<std::string, ApiError>& answer) {
        if (const auto* error = std::get_if<ApiError>(&answer)) return exchange->ReplyError(*error);
        const std::string& body = std::get<std::string>(answer);
        auto room = std::make_shared<AnswerRoom>(answers);
        if (const auto error = room->Resize(body.size())) return exchange->ReplyError(*error);
        exchange->Keep(std::move(room));
        exchange->Reply(200, kJson, body);
      });
}

ErrorForm HttpRoutes::error_form(const std::string& path) const {
  return path.starts_with("/v1/messages") ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
}

std::vector<HttpRoutes::Route> HttpRoutes::All() {
  std::vector<Route> all(kRoutes.begin(), kRoutes.end());
  all.insert(all.end(), {kModelRoute, kUiFleetRoute, kUiFileRoute});
  return all;
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
  exchange->Reply(200, kJson, body);
}

// A tenant sees its own requests alone.
void HttpRoutes::ReplyFleet(const HttpHead& head, HttpExchange* exchange) const {
  std::optional<std::string> tenant;
  if (context_.access != nullptr) {
    const auto caller = context_.access->Identify(head.authorization, head.x_api_key);
    if (const auto* error = std::get_if<ApiError>(&caller)) {
      exchange->ReplyError(*error);  // the file of keys has changed just now
      return;
    }
    tenant = std::get<Caller>(caller).tenant();
  }
  exchange->ReplyWith("Cache-Control: no-store\r\n", 200, kJson,
                      FleetJson(*context_.dispatcher, leaving_, tenant));
}

void HttpRoutes::OnAnswered(const std::string& path, int status, double seconds) {
  const Route* route = FindRoute(path);
  const bool is_post = route != nullptr && route->method == std::string_view("POST");
  context_.metrics->Request(route == nullptr ? "other" : route->path, std::to_string(status),
                            is_post ? std::optional(seconds) : std::nullopt);
}

void HttpRoutes::OnRefused(const char* reason) { context_.metrics->Rejection(reason); }

void HttpRoutes::OnBodyBytes(int64_t delta) {
  context_.metrics->BodyBytes(static_cast<double>(delta));
}

void HttpRoutes::OnUnsent(int64_t delta_bytes) {
  context_.metrics->StreamBuffer(static_cast<double>(delta_bytes));
}

}  // namespace flotilla
