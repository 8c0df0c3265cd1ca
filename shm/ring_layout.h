// The bytes of a ring segment. For ring.cc and its tests only.
//
// Positions are byte counters that only grow; a position's place in the data is its remainder by
// data_bytes. Everything a frame needs is a multiple of 8, so a marker always fits before the end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/ring.h"

namespace flotilla {

inline constexpr uint64_t kRingMagic = 0x31474e5254544c46;  // "FLTTRNG1"
inline constexpr uint32_t kRingVersion = 1;
inline constexpr size_t kMinRingDataBytes = 4096;

struct alignas(64) RingCursor {
  std::atomic<uint64_t> read_pos;  // reader; writer while it (re)activates it
  std::atomic<uint32_t> active;    // writer
};

struct RingHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t num_readers;
  uint64_t data_bytes;
  // Writer. Alone on its line: spinning readers look at nothing else.
  alignas(64) std::atomic<uint64_t> write_pos;
  // Writer: +1 a frame. Readers sleep on it.
  alignas(64) std::atomic<uint32_t> written;
  // A bit a reader that sleeps or is about to. The reader clears it; the writer does for one that
  // died asleep (DeactivateReader), until when each frame costs a needless wake-up call.
  std::atomic<uint32_t> sleepers;
  // Readers that asked for futex(): woken at every frame.
  std::atomic<uint32_t> watchers;
  // Reader: +1 after it gave bytes back while writer_waits is set. The writer sleeps on it.
  alignas(64) std::atomic<uint32_t> released;
  std::atomic<uint32_t> writer_waits;
  RingCursor cursors[kMaxReaders];
};

inline constexpr size_t kRingDataOffset = 4096;
static_assert(sizeof(RingHeader) <= kRingDataOffset);

// Before each frame.
struct RingMarker {
  uint32_t bytes;  // of the frame, or from the end of this marker to the end of the data
  uint32_t kind;
};
inline constexpr uint32_t kFrameMarker = 0x4d415246;  // "FRAM"
inline constexpr uint32_t kSkipMarker = 0x50494b53;   // "SKIP"

}  // namespace flotilla
