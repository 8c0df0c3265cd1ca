// Random numbers for ids and seeds (not for secrets).
//
// Threads: any; each thread has its own generator, seeded by the system.
#pragma once

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

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
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(RandomU64()),
                static_cast<unsigned long long>(RandomU64()));
  return text;
}

}  // namespace flotilla
