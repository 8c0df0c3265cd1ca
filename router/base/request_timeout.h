// The header X-Request-Timeout-Ms: a deadline for a request over HTTP, as gRPC's field deadline_ms.
//
// What proxies and client libraries say of their own patience (x-envoy-expected-rq-timeout-ms,
// x-stainless-read-timeout in seconds) is none: they repeat what fails by it.
// Units: ms, from the request's arrival. Threads: any; pure. Errors: as an ApiError that names it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "router/base/api_error.h"

namespace flotilla {

inline constexpr const char* kRequestTimeoutHeader = "X-Request-Timeout-Ms";

// Decimal digits, 1 to `most_ms`, into *ms, which stays as it is without a header.
std::optional<ApiError> ReadRequestTimeout(const std::optional<std::string>& header,
                                           int64_t most_ms, int64_t* ms);

}  // namespace flotilla
