// A fuzzer's input as numbers and byte strings.
//
// An input that is too short reads as zeros and empty pieces. Threads: one. Ownership: a piece is a
// copy on the heap of exactly its size, so that AddressSanitizer sees a read past its end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

namespace flotilla::fuzz {

class Piece {
 public:
  Piece(const uint8_t* data, size_t size) : bytes_(data, data + size) {}
  std::string_view view() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::vector<uint8_t> bytes_;
};

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }

  template <typename T>
  T Get() {
    static_assert(std::is_integral_v<T>);
    T value = 0;
    const size_t size = std::min(left_, sizeof(T));
    if (size > 0) std::memcpy(&value, data_, size);
    Skip(size);
    return value;
  }
  // A u16, then so many bytes.
  Piece GetPiece() {
    const size_t size = std::min<size_t>(Get<uint16_t>(), left_);
    Piece piece(data_, size);
    Skip(size);
    return piece;
  }
  Piece Rest() {
    Piece piece(data_, left_);
    Skip(left_);
    return piece;
  }

 private:
  void Skip(size_t bytes) {
    data_ += bytes;
    left_ -= bytes;
  }

  const uint8_t* data_;
  size_t left_;
};

// Reads every byte, by a copy that AddressSanitizer checks as a whole.
inline char touched[1 << 16];
inline void Touch(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), sizeof(touched));
    std::memcpy(touched, bytes.data(), size);
    bytes.remove_prefix(size);
  }
}

}  // namespace flotilla::fuzz
