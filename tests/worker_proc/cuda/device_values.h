// Values as the CUDA kernels hold them, for their tests: random floats rounded to a type, and back.
// Vectors are as long as their values, so that AddressSanitizer sees what lies past them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/checkpoint/half.h"
#include "tests/worker_proc/kernel_cases.h"
#include "worker_proc/cuda/emulation/block.h"
#include "worker_proc/cuda/kernels/kernel_table.h"

namespace flotilla::cuda::testing {

using cpu::testing::RandomFloats;
using cpu::testing::RelativeError;

inline constexpr Element kElements[] = {Element::kFloat32, Element::kBFloat16, Element::kFloat16};

inline const KernelTable& Table() { return emulated::Kernels(); }

// A kernel's result must not depend on the order of the threads: each case runs with some.
inline constexpr uint64_t kSeeds[] = {1, 2, 3};

class Values {
 public:
  explicit Values(Element type, size_t n = 0)
      : type_(type), bytes_(n * ElementBytes(type), std::byte{0xff}) {}
  Values(Element type, const std::vector<float>& values) : Values(type, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) Set(i, values[i]);
  }

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size() / ElementBytes(type_); }
  float At(size_t i) const {
    if (type_ == Element::kFloat32) return Read<float>(i);
    const auto bits = Read<uint16_t>(i);
    return type_ == Element::kFloat16 ? HalfToFloat(bits) : cpu::FromBFloat16(bits);
  }
  void Set(size_t i, float value) {
    if (type_ == Element::kFloat32) return Write(i, value);
    Write(i, type_ == Element::kFloat16 ? FloatToHalf(value) : cpu::ToBFloat16(value));
  }
  std::vector<float> floats() const {
    std::vector<float> values(size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = At(i);
    return values;
  }
  bool operator==(const Values& other) const { return bytes_ == other.bytes_; }

 private:
  template <typename T>
  T Read(size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  void Write(size_t i, T value) {
    std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
  }

  Element type_;
  std::vector<std::byte> bytes_;
};

// What rounding an exact result to the type costs, relative, with room for the sums before it.
inline double Tolerance(Element type) {
  return type == Element::kFloat32 ? 2e-6 : type == Element::kFloat16 ? 5e-4 : 4e-3;
}

}  // namespace flotilla::cuda::testing
