// The router's HTTP API: which path is answered how.
//
// The table is in http_routes.cc and, field by field, in docs/openapi.yaml. Threads: the io thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/api/api_forms.h"
#include "router/handlers/handler_context.h"
#include "router/http/http_types.h"

namespace flotilla {

class HttpRoutes final : public HttpService {
 public:
  struct Route {
    const char* path;
    const char* method;
  };
  // Every route there is; {…} stands for a part of a path.
  static std::vector<Route> All();

  // `ui`: the operator's page is there.
  HttpRoutes(const HandlerContext& context, bool ui);

  // From now on /health/ready and new completions answer 503.
  // Not ready any more; then no new request is taken.
  void BeginLeave() { leaving_ = true; }
  void BeginDrain() { leaving_ = draining_ = true; }

  std::optional<ApiError> CheckHead(const HttpHead& head) override;
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  ErrorForm error_form(const std::string& path) const override;
  void OnAnswered(const std::string& path, int status, double seconds) override;
  void OnRefused(const char* reason) override;
  void OnBodyBytes(int64_t delta) override;
  void OnUnsent(int64_t delta_bytes) override;

 private:
  // What a handler of this request gets. `text`: it generates nothing.
  std::variant<HandlerContext, ApiError> Admit(const HttpHead& head, bool text) const;
  // Null: there is nothing at the path.
  const Route* Find(std::string_view path) const;
  void CountRefusal(const ApiError& error) const;
  void ReplyFleet(const HttpHead& head, HttpExchange* exchange) const;
  void ReplyText(const TextForm& form, HttpRequest request,
                 std::shared_ptr<HttpExchange> exchange) const;
  void ReplyHealth(bool serving, HttpExchange* exchange) const;
  void ReplyModels(HttpExchange* exchange) const;
  void ReplyModel(std::string_view id, HttpExchange* exchange) const;

  const HandlerContext context_;
  const bool ui_;
  bool leaving_ = false, draining_ = false;
};

}  // namespace flotilla
