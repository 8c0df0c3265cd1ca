// Which of a library's algorithms multiplies a matrix fastest: timed once, kept in a file.
//
// An algorithm is 64 bytes that only the library understands (cuBLASLt's cublasLtMatmulAlgo_t);
// they mean the same on the same device with the same version of the library, which are the file's
// key. Ranks may have different ones: all that are chosen have the same bits (gpu/gemm.h).
//
// File: magic, version, size and XXH64 of the rest; key; entries. Everything is checked before one
// entry is believed. Writing: to a temporary name, then renamed.
//
// Units: rows, columns, bytes. Threads: one. Errors: Load: NotFound: there is none; DataLoss:
// damaged; FailedPrecondition: of another device or version; PermissionDenied: others may write it.
// A file that can't be used costs only the time to measure again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace flotilla::cuda {

// out[m, n] = x[m, k] * weight[n, k]^T.
struct GemmKey {
  uint32_t m = 0, n = 0, k = 0;
  uint32_t type = 0;  // of elements and epilogue, as the backend numbers them
  auto operator<=>(const GemmKey&) const = default;  // NOLINT(modernize-use-nullptr): not ours
};
using GemmAlgo = std::array<uint64_t, 8>;

class AlgoCache {
 public:
  // device: its name; version: of the library, and of the kernels it competes with.
  AlgoCache(std::string device, std::string version)
      : device_(std::move(device)), version_(std::move(version)) {}

  Status Load(const std::string& path);
  Status Save(const std::string& path);

  const GemmAlgo* Find(const GemmKey& key) const;  // null: it is not known
  void Remember(const GemmKey& key, const GemmAlgo& algo);

  size_t size() const { return choices_.size(); }
  bool changed() const { return changed_; }  // since Load or Save

 private:
  std::string Build() const;
  Status Parse(std::string_view bytes);

  const std::string device_, version_;
  std::map<GemmKey, GemmAlgo> choices_;
  bool changed_ = false;
};

// How many copies of a weight a timer must walk through, so that none is left in the second-level
// cache when it comes again.
uint32_t WeightCopies(uint64_t weight_bytes, uint64_t l2_bytes);

}  // namespace flotilla::cuda
