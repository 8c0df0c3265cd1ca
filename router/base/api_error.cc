#include "router/base/api_error.h"

#include <boost/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/retry_status.h"
#include "common/text/incremental_detokenizer.h"

namespace flotilla {
namespace {

const char* TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* AnthropicTypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

// Messages quote what clients sent, which need not be UTF-8 or was cut inside a character.
std::string Utf8(std::string_view text) {
  std::string out;
  if (DecodeUtf8Replacing(text, &out) < text.size()) out.append("\xEF\xBF\xBD");
  return out;
}

}  // namespace

ApiError InvalidField(std::string param, std::string message) {
  ApiError error;
  error.code = absl::StatusCode::kInvalidArgument;
  error.message = std::move(message);
  error.param = std::move(param);
  return error;
}

ApiError NotBuiltYet(std::string param, std::string message) {
  ApiError error;
  error.code = absl::StatusCode::kUnimplemented;
  error.type_code = "unsupported_parameter";
  error.message = std::move(message);
  error.param = std::move(param);
  return error;
}

ApiError Unavailable(std::string message, int64_t retry_after_ms) {
  ApiError error;
  error.code = absl::StatusCode::kUnavailable;
  error.message = std::move(message);
  error.retry_after_ms = retry_after_ms;
  return error;
}

ApiError HttpError(int status, std::string message) {
  ApiError error;
  error.code = status >= 500 ? absl::StatusCode::kInternal : absl::StatusCode::kInvalidArgument;
  error.message = std::move(message);
  error.http_status = status;
  return error;
}

ApiError FromEngineError(const v1::Error& engine_error) {
  ApiError error;
  const int code = engine_error.code();
  // Only codes that exist, and never OK: an error that says OK is the replica's bug.
  error.code =
      code >= 1 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInternal;
  error.message = engine_error.message();
  error.param = engine_error.field();
  error.retry_after_ms = engine_error.retry_after_ms();
  if (error.code == absl::StatusCode::kAlreadyExists) error.http_status = 422;  // another body
  return error;
}

void LogFailure(const std::string& request_id, const ApiError& error) {
  Log().log(HttpStatus(error) == 500 ? spdlog::level::warn : spdlog::level::debug,
            "failed {} {} {}", Kv("request_id", request_id), Kv("status", HttpStatus(error)),
            Kv("error", error.message));
}

int HttpStatus(const ApiError& error) {
  if (error.http_status != 0) return error.http_status;
  switch (error.code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:  // not 501: clients would try again
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string ErrorJson(const ApiError& error, ErrorForm form) {
  boost::json::object body;
  if (form == ErrorForm::kAnthropic) {
    body["type"] = AnthropicTypeOf(HttpStatus(error));
    body["message"] = Utf8(error.message);
    return boost::json::serialize(boost::json::object{{"type", "error"}, {"error", body}});
  }
  body["message"] = Utf8(error.message);
  body["type"] = TypeOf(HttpStatus(error));
  if (error.param.empty())
    body["param"] = nullptr;
  else
    body["param"] = Utf8(error.param);
  if (error.type_code.empty())
    body["code"] = nullptr;
  else
    body["code"] = error.type_code;
  boost::json::object root;
  root["error"] = std::move(body);
  return boost::json::serialize(root);
}

grpc::Status ToGrpcStatus(const ApiError& error) {
  return RetryStatus(static_cast<grpc::StatusCode>(error.code), Utf8(error.message),
                     error.retry_after_ms);
}

}  // namespace flotilla
