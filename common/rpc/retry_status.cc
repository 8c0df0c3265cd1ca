#include "common/rpc/retry_status.h"

#include "common/base/clock.h"
#include "google/rpc/status.pb.h"

namespace flotilla {

grpc::Status RetryStatus(grpc::StatusCode code, const std::string& message,
                         int64_t retry_after_ms) {
  if (retry_after_ms <= 0) return {code, message};
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(retry_after_ms / 1000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(retry_after_ms % 1000 * kNsPerMs));
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  details.add_details()->PackFrom(retry);
  return {code, message, details.SerializeAsString()};
}

}  // namespace flotilla
