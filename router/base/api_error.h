// What a client is told when a request fails: one struct, written as OpenAI's or Anthropic's error
// object over HTTP and as a grpc::Status over gRPC.
//
// Messages are for clients: they name the field or the way out and nothing internal.
// Threads: plain data. Source: OpenAI's and Anthropic's error objects; google.rpc.Code for the
// numbers.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "flotilla/v1/engine.pb.h"

namespace flotilla {

// Whose error object clients expect.
enum class ErrorForm { kOpenAi, kAnthropic };

struct ApiError {
  absl::StatusCode code = absl::StatusCode::kInternal;
  std::string message;
  std::string param;           // the request's field, empty if none
  std::string type_code;       // OpenAI's "code", e.g. "model_not_found"; empty: null
  int64_t retry_after_ms = 0;  // with kResourceExhausted and kUnavailable; 0: not said
  int http_status = 0;         // 0: follows from `code`
  std::string allow;           // with 405: the methods there are
};

ApiError InvalidField(std::string param, std::string message);
ApiError NotBuiltYet(std::string param, std::string message);
ApiError Unavailable(std::string message, int64_t retry_after_ms);
// For HTTP's own conditions (405, 408, 411, 413, 415, 431).
ApiError HttpError(int status, std::string message);

// For the log: a warning if the fault is ours, else for debugging only.
void LogFailure(const std::string& request_id, const ApiError& error);

// What a replica said about a request.
ApiError FromEngineError(const v1::Error& error);

int HttpStatus(const ApiError& error);
// {"error":{"message":…,"type":…,"param":…,"code":…}}, or
// {"type":"error","error":{"type":…,"message":…}}
std::string ErrorJson(const ApiError& error, ErrorForm form = ErrorForm::kOpenAi);
grpc::Status ToGrpcStatus(const ApiError& error);

}  // namespace flotilla
