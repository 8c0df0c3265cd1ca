#include "shm/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "shm/ring_layout.h"

namespace flotilla {
namespace {

constexpr int64_t kNow = 0;  // a deadline long past: do not wait

Segment MakeRing(size_t data_bytes, uint32_t readers) {
  auto segment = Segment::Create("test-ring", RingSegmentBytes(data_bytes));
  EXPECT_TRUE(segment.ok()) << segment.status();
  EXPECT_TRUE(InitRing(*segment, readers).ok());
  return std::move(*segment);
}

// A frame whose bytes follow from its number, so that a torn one is seen.
std::string Frame(uint64_t number, size_t bytes) {
  std::string frame(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) frame[i] = static_cast<char>(number * 131 + i * 7 + i / 251);
  return frame;
}

TEST(RingTest, CarriesFramesInOrderToEachReader) {
  const Segment segment = MakeRing(4096, 2);
  auto writer = RingWriter::Attach(&segment);
  ASSERT_TRUE(writer.ok());
  auto a = RingReader::Attach(&segment, 0, {}), b = RingReader::Attach(&segment, 1, {});
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_TRUE(writer->Write("first", kNow).ok());
  ASSERT_TRUE(writer->Write("second", kNow).ok());
  EXPECT_EQ(*a->Read(kNow), "first");
  EXPECT_EQ(*a->Read(kNow), "first") << "not released yet";
  a->Release();
  EXPECT_EQ(*a->TryRead(), "second");
  a->Release();
  EXPECT_EQ(*a->TryRead(), "");
  EXPECT_EQ(a->Read(kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(*b->Read(kNow), "first");
  b->Release();
  EXPECT_EQ(*b->Read(kNow), "second");
}

TEST(RingTest, RefusesFramesThatDoNotFit) {
  const Segment segment = MakeRing(4096, 1);
  auto writer = RingWriter::Attach(&segment);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer->max_frame_bytes(), 1016u);
  EXPECT_EQ(writer->Write("", kNow).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->Write(std::string(1017, 'x'), kNow).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(writer->Write(std::string(1016, 'x'), kNow).ok());
}

TEST(RingTest, FullRingWaitsForTheSlowestActiveReader) {
  const Segment segment = MakeRing(4096, 2);
  auto writer = RingWriter::Attach(&segment);
  auto fast = RingReader::Attach(&segment, 0, {});
  ASSERT_TRUE(writer.ok() && fast.ok());
  const std::string frame(1016, 'x');
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(writer->Write(frame, kNow).ok()) << i;
  EXPECT_DOUBLE_EQ(writer->FillRatio(), 1.0);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(*fast->TryRead(), frame);
    fast->Release();
  }
  const int64_t begin_ns = RealClock::Now();
  EXPECT_EQ(writer->Write("y", begin_ns + 20 * kNsPerMs).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(RealClock::Now() - begin_ns, 20 * kNsPerMs);
  EXPECT_EQ(*fast->TryRead(), "") << "a write that failed left nothing";
  writer->DeactivateReader(1);
  EXPECT_DOUBLE_EQ(writer->FillRatio(), 0.0);
  EXPECT_TRUE(writer->Write("y", kNow).ok());
  EXPECT_EQ(*fast->TryRead(), "y");

  auto slow = RingReader::Attach(&segment, 1, {});
  EXPECT_EQ(slow->TryRead().status().code(), absl::StatusCode::kFailedPrecondition);
  writer->ActivateReader(1);
  EXPECT_EQ(*slow->TryRead(), "") << "older frames are not for it";
  ASSERT_TRUE(writer->Write("z", kNow).ok());
  EXPECT_EQ(*slow->TryRead(), "z");
}

TEST(RingTest, ARespawnedWriterContinues) {
  const Segment segment = MakeRing(4096, 1);
  auto reader = RingReader::Attach(&segment, 0, {});
  ASSERT_TRUE(reader.ok());
  for (int i = 0; i < 50; ++i) {
    auto writer = RingWriter::Attach(&segment);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->Write(Frame(i, 300), kNow).ok());
    ASSERT_EQ(*reader->TryRead(), Frame(i, 300));
    reader->Release();
  }
}

TEST(RingTest, ReaderMovedWhileHoldingAFrameKeepsTheNewCursor) {
  const Segment segment = MakeRing(4096, 1);
  auto writer = RingWriter::Attach(&segment);
  auto reader = RingReader::Attach(&segment, 0, {});
  ASSERT_TRUE(writer->Write("old", kNow).ok());
  ASSERT_TRUE(writer->Write("older than the move", kNow).ok());
  ASSERT_EQ(*reader->TryRead(), "old");
  writer->ActivateReader(0);
  reader->Release();
  EXPECT_EQ(*reader->TryRead(), "");
  ASSERT_TRUE(writer->Write("new", kNow).ok());
  EXPECT_EQ(*reader->TryRead(), "new");
}

// Random sizes, readers that come and go, against a deque a reader.
TEST(RingTest, EqualsItsModel) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const uint32_t readers = 1 + random() % 4;
    const size_t data_bytes = size_t{4096} << (random() % 3);
    const Segment segment = MakeRing(data_bytes, readers);
    auto writer = RingWriter::Attach(&segment);
    ASSERT_TRUE(writer.ok());
    std::vector<RingReader> reader;
    std::vector<std::deque<std::string>> model(readers);
    std::vector<bool> active(readers, true);
    for (uint32_t r = 0; r < readers; ++r) reader.push_back(*RingReader::Attach(&segment, r, {}));
    uint64_t number = 0, full = 0, written = 0;
    for (int step = 0; step < 3000; ++step) {
      const uint32_t r = random() % readers;
      const uint32_t action = random() % 100;
      if (action < 45) {
        const size_t limit = random() % 4 == 0 ? writer->max_frame_bytes() : 64;
        const std::string frame = Frame(++number, 1 + random() % limit);
        const Status status = writer->Write(frame, kNow);
        if (status.ok()) {
          ++written;
          for (uint32_t i = 0; i < readers; ++i)
            if (active[i]) model[i].push_back(frame);
        } else {
          ASSERT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
          ++full;
          // Full only if some reader really holds bytes back: skips waste less than a quarter.
          size_t most = 0;
          for (uint32_t i = 0; i < readers; ++i) {
            size_t held = 0;
            for (const std::string& f : model[i]) held += 16 + f.size();
            if (active[i]) most = std::max(most, held);
          }
          ASSERT_GT(most + data_bytes / 2 + frame.size(), data_bytes);
        }
      } else if (action < 95) {
        auto frame = random() % 2 ? reader[r].TryRead() : reader[r].Read(kNow);
        if (!active[r]) {
          ASSERT_EQ(frame.status().code(), absl::StatusCode::kFailedPrecondition);
        } else if (model[r].empty()) {
          ASSERT_TRUE(frame.ok() ? frame->empty() : absl::IsDeadlineExceeded(frame.status()));
        } else {
          ASSERT_TRUE(frame.ok()) << frame.status();
          ASSERT_EQ(*frame, model[r].front());
          if (random() % 8 != 0) {
            reader[r].Release();
            model[r].pop_front();
          }
        }
      } else if (action < 97) {
        writer->DeactivateReader(r);
        active[r] = false;
        model[r].clear();
      } else if (action < 99) {
        writer->ActivateReader(r);
        reader[r] = *RingReader::Attach(&segment, r, {});
        active[r] = true;
        model[r].clear();
      } else {
        *writer = *RingWriter::Attach(&segment);
      }
    }
    EXPECT_GT(written, 300u);
  }
}

struct CorruptCase {
  const char* name;
  void (*corrupt)(RingHeader*);
};

TEST(RingTest, CorruptHeaderIsAnErrorAtAttach) {
  const CorruptCase cases[] = {
      {"magic", [](RingHeader* h) { h->magic ^= 1; }},
      {"version", [](RingHeader* h) { h->version++; }},
      {"no readers", [](RingHeader* h) { h->num_readers = 0; }},
      {"too many readers", [](RingHeader* h) { h->num_readers = kMaxReaders + 1; }},
      {"data not a power of two", [](RingHeader* h) { h->data_bytes -= 8; }},
      {"data beyond the segment", [](RingHeader* h) { h->data_bytes *= 2; }},
      {"no data", [](RingHeader* h) { h->data_bytes = 0; }},
      {"crooked write position", [](RingHeader* h) { h->write_pos.store(3); }},
      {"cursor ahead", [](RingHeader* h) { h->cursors[0].read_pos.store(64); }},
      {"cursor too far behind", [](RingHeader* h) { h->write_pos.store(1 << 20); }},
  };
  for (const CorruptCase& c : cases) {
    SCOPED_TRACE(c.name);
    const Segment segment = MakeRing(8192, 1);
    c.corrupt(static_cast<RingHeader*>(segment.data()));
    EXPECT_EQ(RingWriter::Attach(&segment).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(RingTest, CorruptPositionsAndMarkersAreErrors) {
  const Segment segment = MakeRing(8192, 1);
  auto* header = static_cast<RingHeader*>(segment.data());
  char* data = static_cast<char*>(segment.data()) + kRingDataOffset;
  auto writer = RingWriter::Attach(&segment);
  ASSERT_TRUE(writer->Write(std::string(100, 'x'), kNow).ok());
  const uint64_t end = header->write_pos.load();
  const auto code = [&] { return RingReader::Attach(&segment, 0, {})->TryRead().status().code(); };
  ASSERT_EQ(code(), absl::StatusCode::kOk);

  for (uint64_t write : {end - 8, end + 1, uint64_t{8200}, UINT64_MAX - 7, uint64_t{8}}) {
    header->write_pos.store(write);
    EXPECT_EQ(code(), absl::StatusCode::kFailedPrecondition) << write;
  }
  header->write_pos.store(end);
  for (uint64_t read : {uint64_t{4}, end + 8, UINT64_MAX - 7}) {
    header->cursors[0].read_pos.store(read);
    EXPECT_EQ(code(), absl::StatusCode::kFailedPrecondition) << read;
  }
  header->cursors[0].read_pos.store(0);
  const RingMarker bad[] = {{0, kFrameMarker},  {105, kFrameMarker}, {UINT32_MAX, kFrameMarker},
                            {100, kSkipMarker}, {8184, kSkipMarker}, {UINT32_MAX, kSkipMarker},
                            {100, 0},           {100, UINT32_MAX}};
  for (const RingMarker& marker : bad) {
    std::memcpy(data, &marker, sizeof(marker));
    EXPECT_EQ(code(), absl::StatusCode::kFailedPrecondition) << marker.bytes << " " << marker.kind;
  }
}

TEST(RingTest, AttachRefusesWrongSegmentsAndReaders) {
  auto small = Segment::Create("small", 4096);
  EXPECT_EQ(InitRing(*small, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(RingWriter::Attach(&*small).ok());
  auto blank = Segment::Create("blank", 65536);
  EXPECT_FALSE(RingWriter::Attach(&*blank).ok());
  EXPECT_FALSE(RingReader::Attach(&*blank, 0, {}).ok());
  EXPECT_FALSE(InitRing(*blank, 0).ok());
  EXPECT_FALSE(InitRing(*blank, kMaxReaders + 1).ok());
  const Segment segment = MakeRing(4096, 2);
  EXPECT_TRUE(RingReader::Attach(&segment, 1, {}).ok());
  EXPECT_FALSE(RingReader::Attach(&segment, 2, {}).ok());
}

}  // namespace
}  // namespace flotilla
