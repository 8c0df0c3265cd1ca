// Bounded little-endian reader and writer for the flat frames that our processes exchange.
//
// WireReader never reads past its end: the first failed read makes ok() false and every later read
// returns zero / empty, so a parser may read a whole record and check once. Lengths are checked
// against what is left before anything is allocated. WireWriter only appends.
// Threads: one at a time. Ownership: WireReader does not own the bytes; views point into them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace flotilla {

class WireWriter {
 public:
  explicit WireWriter(std::string* out) : out_(out) {}

  template <typename T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_->append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  // u32 length, then the bytes.
  void PutBytes(std::string_view bytes) {
    Put<uint32_t>(static_cast<uint32_t>(bytes.size()));
    out_->append(bytes);
  }
  // u32 count, then the elements.
  template <typename T>
  void PutSpan(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Put<uint32_t>(static_cast<uint32_t>(values.size()));
    if (!values.empty())
      out_->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }

 private:
  std::string* out_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  // True when everything was read and nothing failed.
  bool AtEnd() const { return ok_ && rest_.empty(); }
  size_t remaining() const { return rest_.size(); }

  template <typename T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (!Need(sizeof(T))) return value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  std::string_view GetBytes() {
    const uint32_t size = Get<uint32_t>();
    if (!Need(size)) return {};
    std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  template <typename T>
  std::vector<T> GetSpan() {
    static_assert(std::is_trivially_copyable_v<T>);
    const uint64_t count = Get<uint32_t>();
    if (!Need(count * sizeof(T))) return {};
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), rest_.data(), count * sizeof(T));
    rest_.remove_prefix(count * sizeof(T));
    return values;
  }
  // As GetSpan, into *values, whose memory is reused; fails if there are more than max_count.
  template <typename T>
  bool GetSpanInto(uint64_t max_count, std::vector<T>* values) {
    static_assert(std::is_trivially_copyable_v<T>);
    values->clear();
    const uint64_t count = Get<uint32_t>();
    if (count > max_count) ok_ = false;
    if (!Need(count * sizeof(T))) return false;
    values->resize(count);
    if (count > 0) std::memcpy(values->data(), rest_.data(), count * sizeof(T));
    rest_.remove_prefix(count * sizeof(T));
    return true;
  }

 private:
  bool Need(uint64_t bytes) {
    if (ok_ && bytes <= rest_.size()) return true;
    ok_ = false;
    return false;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace flotilla
