// The element types of a model's files.
//
// Units: values, bytes. Threads: any. Errors: as each function says. Source: the GGUF format.
#pragma once

#include <cstdint>

namespace flotilla {

// Element types as GGUF numbers them. Block types hold 32 values a block along the last dimension,
// K types a super-block of 256: blocks with small scales of their own.
enum class DType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
  kF8E4M3 = 1 << 16,  // not GGUF's: float8.h, with factors beside it
};

struct DTypeTraits {
  const char* name;       // "Q4_1"
  uint32_t block_values;  // values a block: 1, 32 or 256
  uint32_t block_bytes;   // bytes a block
};
// Null for a type that GGUF does not have, or that is unknown.
const DTypeTraits* FindDType(uint32_t dtype);
const DTypeTraits& Traits(DType dtype);
// Whether values lie in blocks that share scales.
inline constexpr bool IsQuantised(DType dtype) {
  return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16 &&
         dtype != DType::kF8E4M3;
}

}  // namespace flotilla
