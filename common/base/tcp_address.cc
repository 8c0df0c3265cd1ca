#include "common/base/tcp_address.h"

#include <charconv>

#include "common/base/listen.h"

namespace flotilla {

StatusOr<TcpAddress> ParseTcpAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  TcpAddress address;
  if (colon != std::string_view::npos) {
    std::string_view host = text.substr(0, colon);
    const std::string_view port = text.substr(colon + 1);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string_view::npos) {
      host = {};
    }
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (error == std::errc() && end == port.data() + port.size() && !host.empty()) {
      address.host = host;
      return address;
    }
  }
  return absl::InvalidArgumentError(
      StrCat("'", text, "' is not HOST:PORT (an IPv6 address in brackets)"));
}

std::string FormatTcpAddress(const TcpAddress& address) {
  return HostPort(address.host, address.port);
}

}  // namespace flotilla
