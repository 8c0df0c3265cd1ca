// Broadcast ring: one writer process, up to kMaxReaders reader processes, variable-length frames,
// each reader sees every frame in order. The step ring (scheduler → workers) and the result ring
// (rank 0 → scheduler) are both this.
//
// Layout: RingHeader (magic, version, sizes) | one cursor a reader, each on its own cache line |
// data. A frame is published by one release store of the write position, so a writer killed
// anywhere leaves either the whole frame or nothing. A frame never wraps: a skip marker fills the
// end of the buffer. A reader copies or uses the bytes in place, then releases them by advancing
// its cursor; positions and lengths read from shared memory are checked before use (a corrupt
// header is a Status, not a crash).
//
// Threads: one writer thread, one thread a reader. Deadlines are CLOCK_MONOTONIC ns.
// Errors: DeadlineExceeded (ring full / nothing came), FailedPrecondition (bad segment),
// InvalidArgument (frame empty or over max_frame_bytes()). After an error the ring is as before the
// call. Should a peer die between publishing and waking, the sleeper finds the frame (the room) at
// its deadline, or at the next frame.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "shm/futex.h"
#include "shm/segment.h"

namespace flotilla {

struct RingHeader;  // shm/ring_layout.h

inline constexpr uint32_t kMaxReaders = 16;

// Bytes of a segment for a ring with `data_bytes` of frames (rounded up to a power of two).
size_t RingSegmentBytes(size_t data_bytes);
// Formats a fresh segment. Called once, by its creator. All readers begin active, at position 0.
Status InitRing(const Segment& segment, uint32_t num_readers);

// How far a ring's ends are, for a dump of something that hangs: from any process, at any time.
struct RingPositions {
  uint64_t written = 0, bytes = 0;  // ever written; the ring's size
  struct Reader {
    bool active = false;
    uint64_t read = 0;
  };
  std::vector<Reader> readers;
};
StatusOr<RingPositions> LookAtRing(const Segment& segment);

class RingWriter {
 public:
  // Continues at the published position: a respawned writer loses nothing that was committed.
  static StatusOr<RingWriter> Attach(const Segment* segment);

  size_t max_frame_bytes() const;  // a quarter of the data, less 8
  Status Write(std::string_view frame, int64_t deadline_ns);

  // A reader that died no longer holds the writer back…
  void DeactivateReader(uint32_t reader);
  // …until it is back: its cursor moves to the write position, older frames are not for it.
  void ActivateReader(uint32_t reader);
  // Fullness for the metric: 0 … 1 (the slowest active reader).
  double FillRatio() const;

 private:
  RingWriter(RingHeader* header, size_t data_bytes, uint32_t num_readers);
  // The position up to which the slowest active reader lets us write.
  StatusOr<uint64_t> ComputeLimit() const;
  Status WaitForSpace(uint64_t end, int64_t deadline_ns);
  void WakeReaders();

  RingHeader* header_;
  char* data_;
  size_t data_bytes_;  // checked at Attach; the header's is not read again
  uint32_t num_readers_;
  uint64_t write_;      // = header's write_pos, whose only writer we are
  uint64_t limit_ = 0;  // a former ComputeLimit(): readers only move it up
};

class RingReader {
 public:
  static StatusOr<RingReader> Attach(const Segment* segment, uint32_t reader, WaitPolicy wait);

  // The next frame, in place: valid until Release(). Sleeps (after the policy's spin) until the
  // deadline. FailedPrecondition: the ring is corrupt, or the writer deactivated this reader.
  StatusOr<std::string_view> Read(int64_t deadline_ns);
  // The next frame if there is one now, else an empty view.
  StatusOr<std::string_view> TryRead();
  void Release();

  // A word that changes (and is woken) with each frame written: for callers that wait on several
  // things. From the first call on, every frame costs the writer a wake-up call.
  const std::atomic<uint32_t>* futex() const;

 private:
  RingReader(RingHeader* header, size_t data_bytes, uint32_t reader, WaitPolicy wait);

  RingHeader* header_;
  const char* data_;
  size_t data_bytes_;
  uint32_t reader_;
  WaitPolicy wait_;
  uint64_t known_write_ = 0;  // a former write_pos
  uint64_t pos_ = 0;          // where the frame handed out begins …
  uint64_t pending_ = 0;      // … and the bytes Release() gives back; 0: nothing handed out
};

}  // namespace flotilla
