// How large a message between router and replica may be, either way.
#pragma once

#include <cstddef>

namespace flotilla {

// gRPC's limit for those who receive. One that is larger ends its stream, with everything on it.
inline constexpr int kMaxMessageBytes = 64 << 20;
// Of a request; beside it a message has what the request has produced so far.
inline constexpr size_t kMaxRequestBytes = kMaxMessageBytes / 2;

}  // namespace flotilla
