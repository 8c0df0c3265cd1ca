// The id under which every process logs a request, and by which Abort finds it.
//
// A client may give its own (X-Request-Id; request_id over gRPC), else the first process that takes
// the request makes one. It is log text and is never a key that must be unique.
// Threads: any. Source: OpenAI's "req_…" ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flotilla {

inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr const char* kRequestIdHeader = "x-request-id";  // HTTP header and gRPC metadata

// 1 … 128 of A-Z a-z 0-9 - _ . : / + = @ ~: UUIDs, trace ids, base64. Safe in a header and in a
// log.
bool IsRequestId(std::string_view text);
inline constexpr const char* kRequestIdRule = "1 to 128 of A-Z a-z 0-9 - _ . : / + = @ ~";

// "req_" and 32 hex digits from the kernel's random numbers.
std::string NewRequestId();

// The word's 16 hex digits.
void AppendHex(uint64_t word, std::string* out);

}  // namespace flotilla
