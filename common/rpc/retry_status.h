// A gRPC status that says after how long the call may be tried again: google.rpc.RetryInfo in its
// details, which clients' libraries read.
//
// Threads: any.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>

namespace flotilla {

// retry_after_ms 0: nothing is said.
grpc::Status RetryStatus(grpc::StatusCode code, const std::string& message, int64_t retry_after_ms);

}  // namespace flotilla
