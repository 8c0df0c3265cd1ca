#include "scheduler_proc/exchange/errors.h"

#include <string>
#include <string_view>

#include "common/base/utf8.h"
#include "common/rpc/retry_status.h"

namespace flotilla {
namespace {

constexpr int64_t kRetryAfterMs = 1000;

// The leading "name.of_field:" of a message; empty if it has none.
std::string_view FieldOf(std::string_view message) {
  const size_t colon = message.find(':');
  if (colon == std::string_view::npos || colon == 0) return {};
  for (char c : message.substr(0, colon)) {
    const bool name = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
                      c == '[' || c == ']';
    if (!name) return {};
  }
  return message.substr(0, colon);
}

}  // namespace

v1::Error ToError(const Status& status) {
  v1::Error error;
  // Messages cut what clients wrote; a frame that is no UTF-8 would end the router's connection.
  const std::string message = ToValidUtf8({status.message().data(), status.message().size()});
  error.set_code(static_cast<int32_t>(status.code()));
  error.set_message(message);
  if (absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
      absl::IsNotFound(status) || absl::IsAlreadyExists(status))
    error.set_field(std::string(FieldOf(message)));
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status))
    error.set_retry_after_ms(kRetryAfterMs);
  return error;
}

v1::Delta RefusalDelta(const Status& status) {
  v1::Delta delta;
  delta.add_choices()->set_finish_reason(v1::FINISH_REASON_ERROR);
  *delta.mutable_error() = ToError(status);
  delta.set_last(true);
  return delta;
}

grpc::Status ToGrpc(const Status& status) { return ToGrpc(ToError(status)); }

grpc::Status ToGrpc(const v1::Error& error) {
  return RetryStatus(static_cast<grpc::StatusCode>(error.code()), error.message(),
                     error.retry_after_ms());
}

}  // namespace flotilla
