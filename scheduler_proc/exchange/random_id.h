// Random numbers from the kernel: ids that can't be guessed, default seeds. Threads: any.
#pragma once

#include <sys/random.h>

#include <cstdint>

#include "common/base/check.h"

namespace flotilla {

inline uint64_t RandomU64() {
  uint64_t value = 0;
  CHECK(getrandom(&value, sizeof(value), 0) == static_cast<ssize_t>(sizeof(value)));
  return value;
}

}  // namespace flotilla
