// A ring that always takes the next record and keeps the newest: what a process did lately, to be
// read after its death.
//
// It lies in a segment whose memory another process (the launcher) holds too, so SIGKILL loses
// nothing but a record half written. `written` and `oldest` count bytes ever; a record is a length,
// a checksum and its bytes, padded to 8. The writer first gives up what it is about to overwrite,
// then writes, then tells. A snapshot of a living writer drops what was given up while it copied.
//
// Units: bytes. Threads: one writer; any reader, also while it writes. Ownership: the segment
// outlives both. Errors: ReadFlightRing: DataLoss for a segment that holds no ring.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "shm/segment.h"

namespace flotilla {

inline constexpr size_t kMinFlightRingBytes = 64 << 10;

class FlightRingWriter {
 public:
  // Empties the ring. InvalidArgument: the segment is smaller than kMinFlightRingBytes.
  static StatusOr<FlightRingWriter> Attach(const Segment* segment);

  // A record longer than a quarter of the ring is not taken: false.
  bool Append(std::string_view record);
  uint64_t capacity() const { return capacity_; }
  // Records ever appended are at [0, written); this many are gone.
  uint64_t overwritten_bytes() const;
  uint64_t written_bytes() const;

 private:
  explicit FlightRingWriter(const Segment* segment);
  void Copy(uint64_t position, std::string_view bytes);

  struct Header;
  friend StatusOr<std::vector<std::string>> ReadFlightRing(const Segment& segment);
  Header* header_;
  char* data_;
  uint64_t capacity_;
};

// The records that are whole, oldest first.
StatusOr<std::vector<std::string>> ReadFlightRing(const Segment& segment);

// The same to a descriptor, such as a pipe. Unavailable: it can't be written to.
Status WriteFlight(int fd, const std::vector<std::string>& records);

// The same in a file that only its owner may read (prompts are in it), which appears when it is
// whole; until then its name has this behind it. Errors name the file; ResourceExhausted: no room
// for it.
inline constexpr char kFlightPartSuffix[] = ".part";
Status WriteFlightFile(const std::string& path, const std::vector<std::string>& records);
StatusOr<std::vector<std::string>> ReadFlightFile(const std::string& path);

}  // namespace flotilla
