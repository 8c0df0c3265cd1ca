// Random numbers for ids and seeds (not for secrets).
//
// Threads: any; each thread has its own generator, seeded by the system.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "common/base/request_id.h"

namespace flotilla {

inline uint64_t RandomU64() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

// 32 hex digits.
inline std::string RandomHex128() {
  std::string text;
  AppendHex(RandomU64(), &text);
  AppendHex(RandomU64(), &text);
  return text;
}

}  // namespace flotilla
