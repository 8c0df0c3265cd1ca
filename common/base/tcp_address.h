// A TCP address as flags have it: HOST:PORT, or [V6]:PORT.
//
// Threads: any (pure). Errors: InvalidArgument with the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace flotilla {

struct TcpAddress {
  std::string host;  // an address or a name
  uint16_t port = 0;
};
StatusOr<TcpAddress> ParseTcpAddress(std::string_view text);
std::string FormatTcpAddress(const TcpAddress& address);

}  // namespace flotilla
