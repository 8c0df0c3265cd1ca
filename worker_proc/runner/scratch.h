// Room in a vector before it is needed, so that a step neither allocates nor meets a page that was
// never touched. Threads: as the vector's. Errors: none.
#pragma once

#include <cstddef>
#include <vector>

namespace flotilla {

// *scratch keeps its size and, up to `size`, never allocates.
template <typename T>
void MakeRoom(size_t size, std::vector<T>* scratch) {
  if (scratch->capacity() >= size) return;
  const size_t before = scratch->size();
  scratch->resize(size);
  scratch->resize(before);
}

}  // namespace flotilla
