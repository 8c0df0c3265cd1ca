// SHA-256 (OpenSSL) as 64 lower-case hex digits.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace flotilla {

// on_piece: called about every 16 MiB.
std::string Sha256Hex(std::string_view bytes, const std::function<void()>& on_piece = {});

}  // namespace flotilla
