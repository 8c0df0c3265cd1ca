#include "shm/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/clock.h"
#include "shm/memory_order.h"
#include "shm/points.h"
#include "shm/ring_layout.h"
#include "shm/spin.h"

namespace flotilla {
namespace {

// The longest the writer sleeps on a full ring before it looks again by itself: covers a reader
// killed between moving its cursor and waking us.
constexpr int64_t kFullRecheckNs = 100 * kNsPerMs;

uint64_t Align8(uint64_t bytes) { return (bytes + 7) & ~uint64_t{7}; }

Status Corrupt(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("ring: corrupt ", what));
}

// The header of a mapped segment, if it is a ring whose sizes fit. Sizes are returned, so that a
// later change of the shared header cannot move anyone out of bounds.
struct RingView {
  RingHeader* header;
  size_t data_bytes;
  uint32_t num_readers;
};
StatusOr<RingView> CheckRing(const Segment& segment) {
  if (segment.size() < kRingDataOffset + kMinRingDataBytes) return Corrupt("segment: too small");
  auto* header = static_cast<RingHeader*>(segment.data());
  if (header->magic != kRingMagic || header->version != kRingVersion)
    return absl::FailedPreconditionError("ring: wrong magic or version (not a ring segment?)");
  const RingView view{header, header->data_bytes, header->num_readers};
  if (!std::has_single_bit(view.data_bytes) || view.data_bytes < kMinRingDataBytes ||
      view.data_bytes > segment.size() - kRingDataOffset)
    return Corrupt("data size");
  if (view.num_readers == 0 || view.num_readers > kMaxReaders) return Corrupt("reader count");
  return view;
}

}  // namespace

size_t RingSegmentBytes(size_t data_bytes) {
  return kRingDataOffset + std::bit_ceil(std::max(data_bytes, kMinRingDataBytes));
}

Status InitRing(const Segment& segment, uint32_t num_readers) {
  if (num_readers == 0 || num_readers > kMaxReaders)
    return absl::InvalidArgumentError(
        absl::StrCat("ring: readers must be 1 to ", kMaxReaders, ", not ", num_readers));
  if (segment.size() < RingSegmentBytes(kMinRingDataBytes))
    return absl::InvalidArgumentError("ring: segment too small");
  auto* header = new (segment.data()) RingHeader{};
  header->version = kRingVersion;
  header->num_readers = num_readers;
  header->data_bytes = std::bit_floor(segment.size() - kRingDataOffset);
  for (uint32_t r = 0; r < num_readers; ++r) header->cursors[r].active.store(1);
  header->magic = kRingMagic;
  return OkStatus();
}

StatusOr<RingPositions> LookAtRing(const Segment& segment) {
  ASSIGN_OR_RETURN(const RingView view, CheckRing(segment));
  RingPositions out;
  out.written = view.header->write_pos.load(std::memory_order_acquire);
  out.bytes = view.data_bytes;
  for (uint32_t r = 0; r < view.num_readers; ++r) {
    const auto& cursor = view.header->cursors[r];
    out.readers.push_back({cursor.active.load() != 0, cursor.read_pos.load()});
  }
  return out;
}

RingWriter::RingWriter(RingHeader* header, size_t data_bytes, uint32_t num_readers)
    : header_(header),
      data_(reinterpret_cast<char*>(header) + kRingDataOffset),
      data_bytes_(data_bytes),
      num_readers_(num_readers),
      write_(header->write_pos.load(std::memory_order_acquire)) {}

StatusOr<RingWriter> RingWriter::Attach(const Segment* segment) {
  ASSIGN_OR_RETURN(const RingView view, CheckRing(*segment));
  RingWriter writer(view.header, view.data_bytes, view.num_readers);
  if (writer.write_ % 8 != 0) return Corrupt("write position");
  ASSIGN_OR_RETURN(writer.limit_, writer.ComputeLimit());
  // A predecessor killed while it waited, or between publishing a frame and waking its readers.
  view.header->writer_waits.store(0);
  writer.WakeReaders();
  return writer;
}

size_t RingWriter::max_frame_bytes() const { return data_bytes_ / 4 - sizeof(RingMarker); }

StatusOr<uint64_t> RingWriter::ComputeLimit() const {
  uint64_t slowest = write_;
  for (uint32_t r = 0; r < num_readers_; ++r) {
    const RingCursor& cursor = header_->cursors[r];
    if (cursor.active.load(std::memory_order_relaxed) == 0) continue;
    // seq_cst: ordered after our store to writer_waits; also acquires the reader's last look at
    // the bytes that we are about to overwrite.
    const uint64_t pos = cursor.read_pos.load(std::memory_order_seq_cst);
    if (pos % 8 != 0 || pos > write_ || write_ - pos > data_bytes_)
      return Corrupt(absl::StrCat("cursor of reader ", r));
    slowest = std::min(slowest, pos);
  }
  return slowest + data_bytes_;
}

Status RingWriter::WaitForSpace(uint64_t end, int64_t deadline_ns) {
  ASSIGN_OR_RETURN(limit_, ComputeLimit());
  if (end <= limit_) return OkStatus();
  // Either a reader sees this flag after it moved its cursor and wakes us, or we see its cursor.
  header_->writer_waits.store(1, std::memory_order_seq_cst);
  FLOTILLA_SHM_POINT();
  Status status;
  for (;;) {
    const uint32_t seen = header_->released.load(std::memory_order_seq_cst);
    StatusOr<uint64_t> limit = ComputeLimit();
    if (!limit.ok()) {
      status = limit.status();
      break;
    }
    limit_ = *limit;
    if (end <= limit_) break;
    const int64_t now_ns = RealClock::Now();
    if (now_ns >= deadline_ns) {
      status = absl::DeadlineExceededError("ring is full");
      break;
    }
    FutexWait(&header_->released, seen, std::min(deadline_ns, now_ns + kFullRecheckNs));
  }
  FLOTILLA_SHM_POINT();
  header_->writer_waits.store(0, std::memory_order_relaxed);
  return status;
}

Status RingWriter::Write(std::string_view frame, int64_t deadline_ns) {
  if (frame.empty() || frame.size() > max_frame_bytes())
    return absl::InvalidArgumentError(
        absl::StrCat("ring: a frame has 1 to ", max_frame_bytes(), " bytes, not ", frame.size()));
  const uint64_t need = Align8(sizeof(RingMarker) + frame.size());
  const uint64_t offset = write_ & (data_bytes_ - 1);
  const uint64_t to_end = data_bytes_ - offset;
  const uint64_t skip = need > to_end ? to_end : 0;
  const uint64_t end = write_ + skip + need;
  if (end > limit_) RETURN_IF_ERROR(WaitForSpace(end, deadline_ns));

  char* at = data_ + offset;
  if (skip != 0) {
    const RingMarker marker{static_cast<uint32_t>(skip - sizeof(RingMarker)), kSkipMarker};
    FLOTILLA_SHM_POINT();
    std::memcpy(at, &marker, sizeof(marker));
    at = data_;
  }
  const RingMarker marker{static_cast<uint32_t>(frame.size()), kFrameMarker};
  FLOTILLA_SHM_POINT();
  std::memcpy(at, &marker, sizeof(marker));
  FLOTILLA_SHM_POINT();
  std::memcpy(at + sizeof(marker), frame.data(), frame.size());
  FLOTILLA_SHM_POINT();
  header_->write_pos.store(end, kRingPublish);
  FLOTILLA_SHM_POINT();
  write_ = end;
  WakeReaders();
  return OkStatus();
}

void RingWriter::WakeReaders() {
  // A sleeper sets its bit, then reads `written`; we add to `written`, then read the bits. All
  // seq_cst: either we see its bit, or it sees our frame. Only the sleeper clears its bit: were it
  // taken here, a reader between setting it and sleeping would miss the frame after this one.
  header_->written.fetch_add(1, std::memory_order_seq_cst);
  FLOTILLA_SHM_POINT();
  const bool wake = (header_->sleepers.load(std::memory_order_seq_cst) |
                     header_->watchers.load(std::memory_order_seq_cst)) != 0;
  if (wake) FutexWakeAll(&header_->written);
}

void RingWriter::DeactivateReader(uint32_t reader) {
  if (reader >= num_readers_) return;
  header_->cursors[reader].active.store(0, std::memory_order_release);
  header_->watchers.fetch_and(~(1u << reader), std::memory_order_relaxed);
  header_->sleepers.fetch_and(~(1u << reader), std::memory_order_relaxed);
}

void RingWriter::ActivateReader(uint32_t reader) {
  if (reader >= num_readers_) return;
  // Inactive while it moves: a reader that looks now must not take the old cursor for valid.
  header_->cursors[reader].active.store(0, std::memory_order_relaxed);
  FLOTILLA_SHM_POINT();
  header_->cursors[reader].read_pos.store(write_, std::memory_order_release);
  FLOTILLA_SHM_POINT();
  header_->cursors[reader].active.store(1, std::memory_order_release);
}

double RingWriter::FillRatio() const {
  StatusOr<uint64_t> limit = ComputeLimit();
  if (!limit.ok()) return 1.0;
  return 1.0 - static_cast<double>(*limit - write_) / static_cast<double>(data_bytes_);
}

RingReader::RingReader(RingHeader* header, size_t data_bytes, uint32_t reader, WaitPolicy wait)
    : header_(header),
      data_(reinterpret_cast<const char*>(header) + kRingDataOffset),
      data_bytes_(data_bytes),
      reader_(reader),
      wait_(wait) {}

StatusOr<RingReader> RingReader::Attach(const Segment* segment, uint32_t reader, WaitPolicy wait) {
  ASSIGN_OR_RETURN(const RingView view, CheckRing(*segment));
  if (reader >= view.num_readers)
    return absl::InvalidArgumentError(
        absl::StrCat("ring: reader ", reader, " of ", view.num_readers));
  return RingReader(view.header, view.data_bytes, reader, wait);
}

StatusOr<std::string_view> RingReader::TryRead() {
  const RingCursor& cursor = header_->cursors[reader_];
  if (cursor.active.load(std::memory_order_acquire) == 0)
    return absl::FailedPreconditionError("ring: this reader is not active");
  const uint64_t pos = cursor.read_pos.load(std::memory_order_relaxed);
  if (known_write_ <= pos) known_write_ = header_->write_pos.load(std::memory_order_acquire);
  if (known_write_ == pos) return std::string_view();
  if (known_write_ < pos || known_write_ - pos > data_bytes_ || (pos | known_write_) % 8 != 0)
    return Corrupt("position");

  uint64_t at = pos;
  for (int skips = 0;; ++skips) {
    const uint64_t offset = at & (data_bytes_ - 1);
    const uint64_t room = std::min(known_write_ - at, data_bytes_ - offset);
    RingMarker marker;
    if (room < sizeof(marker)) return Corrupt("position");
    std::memcpy(&marker, data_ + offset, sizeof(marker));
    const uint64_t bytes = sizeof(marker) + uint64_t{marker.bytes};
    if (marker.kind == kSkipMarker) {
      if (skips > 0 || offset + bytes != data_bytes_) return Corrupt("skip marker");
      at += bytes;
      continue;
    }
    if (marker.kind != kFrameMarker || marker.bytes == 0 || Align8(bytes) > room)
      return Corrupt("frame");
    pos_ = pos;
    pending_ = at - pos + Align8(bytes);
    return std::string_view(data_ + offset + sizeof(marker), marker.bytes);
  }
}

StatusOr<std::string_view> RingReader::Read(int64_t deadline_ns) {
  StatusOr<std::string_view> frame = TryRead();
  if (!frame.ok() || !frame->empty()) return frame;
  const uint64_t seen_write = known_write_;
  if (SpinUntil(wait_.spin_ns, deadline_ns,
                [&] { return header_->write_pos.load(std::memory_order_relaxed) != seen_write; })) {
    frame = TryRead();
    if (!frame.ok() || !frame->empty()) return frame;
  }
  const uint32_t bit = 1u << reader_;
  for (;;) {
    header_->sleepers.fetch_or(bit, std::memory_order_seq_cst);
    FLOTILLA_SHM_POINT();
    const uint32_t seen = header_->written.load(std::memory_order_seq_cst);
    frame = TryRead();
    if (!frame.ok() || !frame->empty()) break;
    if (RealClock::Now() >= deadline_ns) {
      frame = absl::DeadlineExceededError("ring: nothing came");
      break;
    }
    FutexWait(&header_->written, seen, deadline_ns);
  }
  header_->sleepers.fetch_and(~bit, std::memory_order_relaxed);
  FLOTILLA_SHM_POINT();
  return frame;
}

void RingReader::Release() {
  if (pending_ == 0) return;
  RingCursor& cursor = header_->cursors[reader_];
  const uint64_t end = pos_ + std::exchange(pending_, 0);
  // Moved by the writer meanwhile: the frame is no longer ours to give back.
  if (cursor.read_pos.load(std::memory_order_relaxed) != pos_) return;
  FLOTILLA_SHM_POINT();
  cursor.read_pos.store(end, std::memory_order_seq_cst);
  FLOTILLA_SHM_POINT();
  if (header_->writer_waits.load(std::memory_order_seq_cst) == 0) return;
  header_->released.fetch_add(1, std::memory_order_seq_cst);
  FLOTILLA_SHM_POINT();
  FutexWakeAll(&header_->released);
}

const std::atomic<uint32_t>* RingReader::futex() const {
  header_->watchers.fetch_or(1u << reader_, std::memory_order_seq_cst);
  return &header_->written;
}

}  // namespace flotilla
