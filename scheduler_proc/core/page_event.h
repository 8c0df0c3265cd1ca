// What the prefix cache gained or lost, by page hash (common/base/page_hash.h).
#pragma once

#include <cstdint>
#include <vector>

namespace flotilla {

struct PageEvent {
  enum class Kind : uint32_t { kStored, kRemoved, kCleared };
  Kind kind = Kind::kCleared;
  uint64_t hash = 0;  // of kStored and kRemoved
};
using PageLog = std::vector<PageEvent>;

}  // namespace flotilla
