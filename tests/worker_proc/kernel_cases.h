// Random inputs for the kernels' tests, and the tables of every instruction set this machine runs.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "worker_proc/cpu/isa.h"
#include "worker_proc/cpu/kernels.h"

namespace flotilla::cpu::testing {

inline std::vector<float> RandomFloats(size_t n, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(rng);
  return values;
}

// Row-major [out, in] → panels.
template <typename Element>
std::vector<Element> Pack(const std::vector<Element>& weight, uint32_t out, uint32_t in) {
  const uint32_t panels = (out + kPanelRows - 1) / kPanelRows;
  std::vector<Element> packed(static_cast<size_t>(panels) * kPanelRows * in, Element{0});
  for (uint32_t r = 0; r < out; ++r) {
    for (uint32_t k = 0; k < in; ++k) {
      packed[(static_cast<size_t>(r / kPanelRows) * in + k) * kPanelRows + r % kPanelRows] =
          weight[static_cast<size_t>(r) * in + k];
    }
  }
  return packed;
}

inline std::vector<const KernelTable*> AllTables() {
  std::vector<const KernelTable*> tables;
  for (const std::string& name : SupportedIsas()) {
    const KernelTable* const table = *SelectKernels(name);
    if (tables.empty() || tables.back() != table) tables.push_back(table);  // AMX has AVX-512's
  }
  return tables;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// |a - b| / |b| in the L2 norm.
inline double RelativeError(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace flotilla::cpu::testing
