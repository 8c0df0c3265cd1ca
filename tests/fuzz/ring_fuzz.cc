// libFuzzer: a ring segment in which another process wrote anything. Readers and a writer that
// attach to it return errors or frames within the data, and come back at once.
//
// The input says which fields of a fresh ring's header to overwrite and with what, then the bytes
// that lie in the data from reader 0's position on.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "shm/ring.h"
#include "shm/ring_layout.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

constexpr size_t kDataBytes = 4096;
constexpr uint32_t kReaders = 2;
constexpr int64_t kPast = 0;  // a deadline: do not wait

enum Overwrite : uint8_t {
  kMagicField = 1,
  kVersionField = 2,
  kReadersField = 4,
  kSizeField = 8,
  kInactive = 16,   // reader 1
  kAnswering = 32,  // a writer sleeps, readers sleep
};

void Overlay(fuzz::FuzzInput* input, const Segment& segment) {
  std::memset(segment.data(), 0, segment.size());
  CHECK(InitRing(segment, kReaders).ok());
  auto* header = static_cast<RingHeader*>(segment.data());
  const uint8_t what = input->Get<uint8_t>();
  if (what & kMagicField) header->magic ^= input->Get<uint64_t>();
  if (what & kVersionField) header->version ^= input->Get<uint32_t>();
  if (what & kReadersField) header->num_readers = input->Get<uint32_t>();
  if (what & kSizeField) header->data_bytes = input->Get<uint64_t>();
  if (what & kInactive) header->cursors[1].active.store(0);
  if (what & kAnswering) {
    header->writer_waits.store(1);
    header->sleepers.store(3);
  }
  header->write_pos.store(input->Get<uint64_t>());
  for (uint32_t r = 0; r < kReaders; ++r) header->cursors[r].read_pos.store(input->Get<uint64_t>());
  char* const bytes = static_cast<char*>(segment.data()) + kRingDataOffset;
  const uint64_t begin = header->cursors[0].read_pos.load();
  const fuzz::Piece piece = input->Rest();
  const std::string_view view = piece.view().substr(0, kDataBytes);
  if (view.empty()) return;
  const size_t to_end = std::min<size_t>(view.size(), kDataBytes - begin % kDataBytes);
  std::memcpy(bytes + begin % kDataBytes, view.data(), to_end);
  std::memcpy(bytes, view.data() + to_end, view.size() - to_end);
}

// All frames a reader gets; each moves it on, so they end.
void ReadAll(const Segment& segment, uint32_t index) {
  StatusOr<RingReader> reader = RingReader::Attach(&segment, index, {});
  if (!reader.ok()) return;
  CHECK(reader->futex() != nullptr);
  const char* const begin = static_cast<const char*>(segment.data()) + kRingDataOffset;
  for (size_t frames = 0;; ++frames) {
    CHECK(frames <= kDataBytes / sizeof(RingMarker));
    const StatusOr<std::string_view> frame = frames % 2 ? reader->TryRead() : reader->Read(kPast);
    if (!frame.ok() || frame->empty()) break;
    CHECK(frame->data() >= begin && frame->data() + frame->size() <= begin + kDataBytes);
    fuzz::Touch(*frame);
    reader->Release();
  }
  reader->Release();
}

void WriteSome(const Segment& segment) {
  StatusOr<RingWriter> writer = RingWriter::Attach(&segment);
  if (!writer.ok()) return;
  CHECK(writer->max_frame_bytes() < kDataBytes / 4);
  for (size_t size : {size_t{0}, size_t{1}, size_t{40}, writer->max_frame_bytes(), kDataBytes})
    (void)writer->Write(std::string(size, 'x'), kPast);
  const double fill = writer->FillRatio();
  CHECK(fill >= 0 && fill <= 1);
  writer->DeactivateReader(0);
  (void)writer->Write(std::string(writer->max_frame_bytes(), 'y'), kPast);
  writer->ActivateReader(0);
  writer->ActivateReader(kMaxReaders);
  writer->DeactivateReader(kMaxReaders);
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  static const Segment* const segment = [] {
    StatusOr<Segment> made = Segment::Create("ring_fuzz", RingSegmentBytes(kDataBytes));
    CHECK(made.ok());
    return new Segment(*std::move(made));
  }();
  fuzz::FuzzInput input(data, size);
  Overlay(&input, *segment);
  for (uint32_t r = 0; r <= kReaders; ++r) ReadAll(*segment, r);
  WriteSome(*segment);
  const StatusOr<RingPositions> positions = LookAtRing(*segment);
  CHECK(!positions.ok() || positions->readers.size() <= kMaxReaders);
  for (uint32_t r = 0; r < kReaders; ++r) ReadAll(*segment, r);
  return 0;
}
