// Memory of vectors that belong to requests with a slot, reused: so that a token or a page more
// allocates nothing.
//
// A buffer holds a power of two of elements. Threads: one. Ownership: a vector owns its buffer
// until it is given back. Errors: none.
#pragma once

#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

namespace flotilla {

template <typename T>
class BufferPool {
 public:
  // Keeps at most so many spare buffers of a size.
  explicit BufferPool(size_t max_spares) : max_spares_(max_spares) {
    for (size_t i = 0; i < kReserved; ++i) spares_[i].reserve(max_spares);
  }

  // Room for `count` elements in *vector, which keeps what it holds.
  void Take(size_t count, std::vector<T>* vector) {
    if (vector->capacity() >= count) return;
    const size_t capacity = std::bit_ceil(count);
    std::vector<std::vector<T>>& spares = Spares(capacity);
    std::vector<T> buffer;
    if (!spares.empty()) {
      buffer = std::move(spares.back());
      spares.pop_back();
    }
    buffer.reserve(capacity);
    buffer.assign(vector->begin(), vector->end());
    *vector = std::move(buffer);
  }
  // Leaves the vector without memory.
  void GiveBack(std::vector<T>* vector) {
    std::vector<T> buffer = std::move(*vector);
    *vector = std::vector<T>();
    if (!std::has_single_bit(buffer.capacity())) return;
    std::vector<std::vector<T>>& spares = Spares(buffer.capacity());
    if (spares.size() == max_spares_) return;
    spares.reserve(max_spares_);
    buffer.clear();
    spares.push_back(std::move(buffer));
  }

 private:
  static constexpr size_t kReserved = 24;  // sizes for which giving back never allocates

  std::vector<std::vector<T>>& Spares(size_t capacity) {
    return spares_[static_cast<size_t>(std::countr_zero(capacity))];
  }

  const size_t max_spares_;
  std::vector<std::vector<T>> spares_[64];  // by the logarithm of their size
};

}  // namespace flotilla
