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
// InvalidArgument (frame over max_frame_bytes()). After an error the ring is as before the call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/status.h"
#include "shm/futex.h"
#include "shm/segment.h"

namespace flotilla {

inline constexpr uint32_t kMaxReaders = 16;

// Bytes of a segment for a ring with `data_bytes` of frames (rounded up to a power of two).
size_t RingSegmentBytes(size_t data_bytes);
// Formats a fresh segment. Called once, by its creator.
Status InitRing(const Segment& segment, uint32_t num_readers);

class RingWriter {
 public:
  // Continues at the published position: a respawned writer loses nothing that was committed.
  static StatusOr<RingWriter> Attach(const Segment* segment);

  size_t max_frame_bytes() const;  // a quarter of the data
  Status Write(std::string_view frame, int64_t deadline_ns);

  // A reader that died no longer holds the writer back…
  void DeactivateReader(uint32_t reader);
  // …until it is back: its cursor moves to the write position, older frames are not for it.
  void ActivateReader(uint32_t reader);
  // Fullness for the metric: 0 … 1 (the slowest active reader).
  double FillRatio() const;

 private:
  explicit RingWriter(const Segment* segment) : segment_(segment) {}
  const Segment* segment_;
};

class RingReader {
 public:
  static StatusOr<RingReader> Attach(const Segment* segment, uint32_t reader, WaitPolicy wait);

  // The next frame, in place: valid until Release(). Sleeps (after the policy's spin) until the
  // deadline.
  StatusOr<std::string_view> Read(int64_t deadline_ns);
  // The next frame if there is one now, else an empty view.
  StatusOr<std::string_view> TryRead();
  void Release();

  // A word that changes (and is woken) with each frame written: for callers that wait on several
  // things.
  const std::atomic<uint32_t>* futex() const;

 private:
  RingReader(const Segment* segment, uint32_t reader, WaitPolicy wait)
      : segment_(segment), reader_(reader), wait_(wait) {}
  const Segment* segment_;
  uint32_t reader_;
  WaitPolicy wait_;
  uint64_t pending_ = 0;  // bytes Release() gives back; 0: nothing read
};

}  // namespace flotilla
