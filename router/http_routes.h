// The router's HTTP API: which path is answered how.
//
// GET /v1/models, /v1/models/{id}, /health/live, /health/ready, /version; POST /v1/completions.
// Known paths of later parts answer 501 and say so. Threads: the io thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "router/completion_handler.h"
#include "router/http_types.h"

namespace flotilla {

class HttpRoutes final : public HttpService {
 public:
  explicit HttpRoutes(const HandlerContext& context) : context_(context) {}

  // From now on /health/ready and new completions answer 503.
  void BeginDrain() { draining_ = true; }

  std::optional<ApiError> CheckHead(const HttpHead& head) override;
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  void OnAnswered(const std::string& path, int status, double seconds) override;
  void OnRefused(const char* reason) override;
  void OnBodyBytes(int64_t delta) override;
  void OnUnsent(int64_t delta_bytes) override;

 private:
  void ReplyHealth(bool serving, HttpExchange* exchange) const;
  void ReplyModels(HttpExchange* exchange) const;
  void ReplyModel(std::string_view id, HttpExchange* exchange) const;

  const HandlerContext context_;
  bool draining_ = false;
};

}  // namespace flotilla
