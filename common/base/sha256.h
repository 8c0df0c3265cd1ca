// SHA-256 (OpenSSL) as 64 lower-case hex digits.
#pragma once

#include <string>
#include <string_view>

namespace flotilla {

std::string Sha256Hex(std::string_view bytes);

}  // namespace flotilla
