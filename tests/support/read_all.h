// What a descriptor holds: to its end, or, if it does not block, what is there now.
//
// Threads: any.
#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace flotilla {

inline std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  ssize_t n = 0;
  while ((n = read(fd, buffer.data(), buffer.size())) > 0)
    text.append(buffer.data(), static_cast<size_t>(n));
  return text;
}

}  // namespace flotilla
