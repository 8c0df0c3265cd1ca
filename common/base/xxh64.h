// XXH64: a fast 64-bit checksum of bytes, about 20 GB/s a core. Finds damage, not forgery.
//
// Threads: any. Errors: none. Source: the xxHash specification, "XXH64 algorithm description".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flotilla {

uint64_t Xxh64(const void* data, size_t bytes, uint64_t seed = 0);
inline uint64_t Xxh64(std::string_view bytes, uint64_t seed = 0) {
  return Xxh64(bytes.data(), bytes.size(), seed);
}

}  // namespace flotilla
