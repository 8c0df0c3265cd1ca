#include "common/base/exit_status.h"

namespace flotilla {

int ExitStatusOf(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
      return kExitBadConfiguration;
    default:
      return 1;
  }
}

}  // namespace flotilla
