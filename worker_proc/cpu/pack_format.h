// The header of a pack file (pack_file.h): from and to bytes, checked.
//
// Threads: any (pure). Errors: DataLoss for what is damaged or inconsistent, FailedPrecondition for
// another version or key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/cpu/pack_file.h"

namespace flotilla::cpu {

inline constexpr size_t kPackPreambleBytes = 24;  // magic, header's size, header's checksum
inline constexpr uint64_t kPackBlock = uint64_t{1} << 20;      // bytes a checksum is of
inline constexpr uint64_t kPackAlignment = uint64_t{2} << 20;  // of the data in the file
inline constexpr uint64_t kPartAlignment = 64;                 // of a part in the data

struct PackHeader {
  std::string key;
  std::vector<PackPart> parts;
  std::vector<uint64_t> checksums;  // of each kPackBlock of the data

  // Where parts begin in the data; one more: its end.
  std::vector<uint64_t> Offsets() const;
  uint64_t data_bytes() const { return Offsets().back(); }
};

// Preamble and header.
std::string BuildPackHeader(const PackHeader& header);
// Of the header, from a preamble.
StatusOr<uint64_t> PackHeaderBytes(std::string_view preamble);
// bytes: preamble and header.
StatusOr<PackHeader> ParsePackHeader(std::string_view bytes, std::string_view key);
// Where the data begins in a file whose preamble and header take `bytes`.
constexpr uint64_t PackDataOffset(uint64_t bytes) {
  return (bytes + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
}

}  // namespace flotilla::cpu
