// Which of two ways exchanges columns faster, for how many bytes: kernels that reach into the other
// ranks' memory, or the vendor's library. Measured at the start of an epoch, on all ranks at once;
// what decides is the slowest rank's time, so all have the same table.
//
// The library is for what is large: below kLeastBytes nothing is measured, and memory it is. Both
// give the same bits.
//
// Units: bytes of all ranks' columns together, ns. Threads: none of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flotilla::cuda {

struct ExchangeTime {
  uint64_t bytes = 0;
  int64_t memory_ns = 0;
  int64_t library_ns = 0;
};

class ExchangeTable {
 public:
  static constexpr uint64_t kLeastBytes = 1 << 20;

  // What is worth measuring: least, twice that, ... as far as `most`.
  static std::vector<uint64_t> Sizes(uint64_t least, uint64_t most);

  ExchangeTable() = default;  // memory for all
  // Rising in bytes.
  explicit ExchangeTable(std::span<const ExchangeTime> times);

  // As for the largest measured size that is not above it.
  bool ByLibrary(uint64_t bytes) const;
  bool library_wins() const;          // for some size
  uint64_t least_by_library() const;  // the first of these

 private:
  struct Entry {
    uint64_t bytes = 0;
    bool by_library = false;
  };
  std::vector<Entry> entries_;
};

}  // namespace flotilla::cuda
