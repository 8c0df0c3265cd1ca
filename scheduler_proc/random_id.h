// Random numbers from the kernel: ids that can't be guessed, default seeds. Threads: any.
#pragma once

#include <sys/random.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "common/base/check.h"

namespace flotilla {

inline uint64_t RandomU64() {
  uint64_t value = 0;
  CHECK(getrandom(&value, sizeof(value), 0) == static_cast<ssize_t>(sizeof(value)));
  return value;
}

inline std::string RandomRequestId() {
  char text[48];
  std::snprintf(text, sizeof(text), "gen-%016llx%016llx",
                static_cast<unsigned long long>(RandomU64()),
                static_cast<unsigned long long>(RandomU64()));
  return text;
}

}  // namespace flotilla
