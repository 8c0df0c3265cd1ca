#include "worker_proc/cuda/plan/exchange_table.h"

#include <algorithm>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

// Times differ by a few percent from run to run; and where the library never wins it is let go.
constexpr int64_t kWinsByPercent = 10;

bool LibraryWins(const ExchangeTime& time) {
  return time.library_ns * 100 < time.memory_ns * (100 - kWinsByPercent);
}

}  // namespace

std::vector<uint64_t> ExchangeTable::Sizes(uint64_t least, uint64_t most) {
  CHECK(least > 0);
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = least; bytes <= most; bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

ExchangeTable::ExchangeTable(std::span<const ExchangeTime> times) {
  for (const ExchangeTime& time : times) entries_.push_back({time.bytes, LibraryWins(time)});
}

bool ExchangeTable::ByLibrary(uint64_t bytes) const {
  const auto above =
      std::upper_bound(entries_.begin(), entries_.end(), bytes,
                       [](uint64_t value, const Entry& entry) { return value < entry.bytes; });
  return above != entries_.begin() && std::prev(above)->by_library;
}

bool ExchangeTable::library_wins() const { return least_by_library() > 0; }

uint64_t ExchangeTable::least_by_library() const {
  const auto first = std::find_if(entries_.begin(), entries_.end(),
                                  [](const Entry& entry) { return entry.by_library; });
  return first == entries_.end() ? 0 : first->bytes;
}

}  // namespace flotilla::cuda
