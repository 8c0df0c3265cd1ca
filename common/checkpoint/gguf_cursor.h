// Bounded cursor over the bytes of a GGUF, and the reader of its typed values. Private to
// common/checkpoint.
//
// Threads: one at a time. Ownership: strings are views of the bytes. Errors: InvalidArgument naming
// the field and the byte it starts at; the cursor is then of no further use.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "common/checkpoint/gguf.h"

namespace flotilla::internal {

// Of a tensor in a file, whatever its format.
inline constexpr size_t kMaxNameBytes = 1024;
inline constexpr size_t kMaxDims = 4;

inline std::string CHexEscape(std::string_view text) {
  return absl::CHexEscape({text.data(), text.size()});
}

// Bytes from the file for a message: escaped, cut.
inline std::string Quote(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  if (text.size() <= kMaxShown) return StrCat("'", CHexEscape(text), "'");
  return StrCat("'", CHexEscape(text.substr(0, kMaxShown)), "…'");
}

// A cursor that never leaves its bytes. Every error names the field and the byte it starts at.
class Cursor {
 public:
  explicit Cursor(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

  Status Error(std::string_view field, std::string_view problem) const {
    return absl::InvalidArgumentError(StrCat(field, " at byte ", offset_, ": ", problem));
  }
  Status Truncated(std::string_view field, uint64_t needed) const {
    return Error(field, StrCat("the file ends here: ", needed, " bytes needed, ", remaining(),
                               " left; it is truncated or damaged, download it again"));
  }

  template <typename T>
  Status Read(std::string_view field, T* value) {
    static_assert(std::is_arithmetic_v<T>);
    if (remaining() < sizeof(T)) return Truncated(field, sizeof(T));
    std::memcpy(value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return OkStatus();
  }

  Status ReadString(std::string_view field, uint64_t max_bytes, std::string_view* value) {
    const Cursor start = *this;
    uint64_t size = 0;
    RETURN_IF_ERROR(Read(field, &size));
    if (size > remaining()) return start.Truncated(field, size);
    if (size > max_bytes) {
      return start.Error(field, StrCat("is ", size, " bytes long; the limit is ", max_bytes));
    }
    *value = {reinterpret_cast<const char*>(bytes_.data()) + offset_, static_cast<size_t>(size)};
    offset_ += size;
    return OkStatus();
  }

 private:
  std::span<const uint8_t> bytes_;
  uint64_t offset_ = 0;
};

// Over all arrays of a file. Numbers are widened to 8 bytes and strings to 16, so a file of
// one-byte values could else cost many times its size. The largest vocabularies have under 2^19
// entries.
inline constexpr uint64_t kMaxArrayValues = uint64_t{1} << 24;

// Reads a value's type and the value. `values_left` is what remains of kMaxArrayValues.
Status ReadGgufValue(Cursor* cursor, std::string_view field, uint64_t* values_left,
                     GgufFile::Value* value);

}  // namespace flotilla::internal
