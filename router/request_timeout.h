// The header X-Request-Timeout-Ms: a deadline for a request over HTTP, as gRPC's field deadline_ms.
//
// What proxies and client libraries say of their own patience (x-envoy-expected-rq-timeout-ms,
// x-stainless-read-timeout in seconds) is none: they repeat what fails by it.
// Units: ms, from the request's arrival. Threads: any; pure. Errors: as an ApiError that names it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "flotilla/v1/inference.pb.h"
#include "router/api_error.h"

namespace flotilla {

inline constexpr const char* kRequestTimeoutHeader = "X-Request-Timeout-Ms";

// Decimal digits, 1 to `most_ms`.
std::optional<ApiError> CheckRequestTimeout(const std::optional<std::string>& header,
                                            int64_t most_ms);
// The header passed CheckRequestTimeout; without one the request has no deadline of its own.
void SetRequestTimeout(const std::optional<std::string>& header, v1::GenerateRequest* request);

}  // namespace flotilla
