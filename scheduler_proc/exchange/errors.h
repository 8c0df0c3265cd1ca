// Status ↔ what clients see. A message that is about a field of a request begins with the field's
// name and a colon: "sampling.n: …". Threads: any.
#pragma once

#include <grpcpp/support/status.h>

#include "common/base/status.h"
#include "flotilla/v1/engine.pb.h"

namespace flotilla {

// google.rpc.Code equals absl's codes. RESOURCE_EXHAUSTED and UNAVAILABLE get a retry_after_ms.
v1::Error ToError(const Status& status);
// The only delta of a request that never ran.
v1::Delta RefusalDelta(const Status& status);
grpc::Status ToGrpc(const Status& status);
grpc::Status ToGrpc(const v1::Error& error);

}  // namespace flotilla
