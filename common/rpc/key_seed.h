// The seed of a request that has an idempotency key and none of its own: asked again, of a router
// or of an engine itself, it draws the same. Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/sha256.h"

namespace flotilla {

inline uint64_t SeedOfKey(const std::string& idempotency_key) {
  return std::stoull(Sha256Hex(idempotency_key).substr(0, 16), nullptr, 16);
}

}  // namespace flotilla
