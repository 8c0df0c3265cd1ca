// SIGKILL and SIGSTOP of the writer, and of a reader, at every point between two shared writes: the
// others keep their deadlines, see whole frames in order, and a successor continues.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "shm/ring.h"
#include "shm/ring_layout.h"
#include "tests/shm/peer_process.h"

namespace flotilla {
namespace {

using State = PeerProcess::State;

constexpr uint32_t kFrames = 14;
constexpr uint32_t kMaxPoints = 1000;  // far above what there is: the loops end before
constexpr int kHangSeconds = 20;

int64_t In(int64_t ms) { return RealClock::Now() + ms * kNsPerMs; }

// Sizes that wrap (skip markers) and fill a ring of 4 KiB several times.
std::string Frame(uint32_t number) {
  return std::string(1 + number * 397 % 1000, static_cast<char>('a' + number));
}

struct Fixture {
  Fixture(uint32_t readers)
      : segment(*Segment::Create("points-ring", RingSegmentBytes(4096))),
        shared(*Segment::Create("points-count", 4096)) {
    EXPECT_TRUE(InitRing(segment, readers).ok());
    count = new (shared.data()) std::atomic<uint32_t>(0);
  }
  Segment segment, shared;
  std::atomic<uint32_t>* count;  // frames the peer has finished
};

int WriteFrames(Fixture* f, uint32_t begin) {
  auto writer = RingWriter::Attach(&f->segment);
  if (!writer.ok()) return 2;
  for (uint32_t i = begin; i < kFrames; ++i) {
    if (!writer->Write(Frame(i), In(kHangSeconds * 1000)).ok()) return 3;
    f->count->store(i + 1);
  }
  return 0;
}

// Reads until the frames end or `peer` is stopped or gone and nothing is left. Returns the number
// of the next frame.
uint32_t ReadFrames(RingReader* reader, uint32_t next, PeerProcess* peer) {
  const int64_t give_up_ns = In(kHangSeconds * 1000);
  while (next < kFrames) {
    const bool over = peer->Poll() != State::kRunning;
    auto frame = over ? reader->TryRead() : reader->Read(In(2));
    if (frame.ok() && !frame->empty()) {
      EXPECT_EQ(*frame, Frame(next)) << "frame " << next;
      ++next;
      reader->Release();
      continue;
    }
    EXPECT_TRUE(frame.ok() || absl::IsDeadlineExceeded(frame.status())) << frame.status();
    if (over) break;
    if (RealClock::Now() > give_up_ns) {
      ADD_FAILURE() << "the writer hangs";
      break;
    }
  }
  return next;
}

// True when the writer reached the end without meeting the point. `full`: the reader begins only
// once the writer waits for room.
bool WriterMeetsIt(uint32_t point, int signal, bool full) {
  Fixture f(1);
  auto reader = *RingReader::Attach(&f.segment, 0, {});
  PeerProcess writer([&] {
    ArmPoint({point, signal});
    return WriteFrames(&f, 0);
  });
  const auto* header = static_cast<const RingHeader*>(f.segment.data());
  while (full && header->writer_waits.load() == 0 && writer.Poll() == State::kRunning)
    std::this_thread::yield();
  uint32_t next = ReadFrames(&reader, 0, &writer);
  if (next == kFrames) {
    // Everything was published; it may still meet the point after that.
    writer.WaitWhileRunning();
  }
  if (writer.Poll() == State::kExited) {
    EXPECT_EQ(writer.exit_code(), 0);
    EXPECT_EQ(next, kFrames);
    return true;
  }
  const uint32_t finished = f.count->load();
  EXPECT_TRUE(next == finished || next == finished + 1) << next << " " << finished;
  if (signal == SIGSTOP) {
    EXPECT_EQ(reader.Read(In(1)).status().code(), absl::StatusCode::kDeadlineExceeded);
    writer.Continue();
    while (writer.Poll() == State::kStopped) std::this_thread::yield();
    next = ReadFrames(&reader, next, &writer);
    EXPECT_TRUE(writer.WaitForEnd(kHangSeconds));
    EXPECT_EQ(writer.exit_code(), 0);
  } else {
    const uint32_t begin = next;
    PeerProcess successor([&] { return WriteFrames(&f, begin); });
    next = ReadFrames(&reader, next, &successor);
    EXPECT_TRUE(successor.WaitForEnd(kHangSeconds));
    EXPECT_EQ(successor.exit_code(), 0);
  }
  EXPECT_EQ(next, kFrames) << "nothing lost, nothing twice";
  return false;
}

bool WriterMeets(uint32_t point, int signal) { return WriterMeetsIt(point, signal, false); }
bool WaitingWriterMeets(uint32_t point, int signal) { return WriterMeetsIt(point, signal, true); }

int ReadAll(Fixture* f, uint32_t begin) {
  auto reader = RingReader::Attach(&f->segment, 0, {});
  if (!reader.ok()) return 2;
  for (uint32_t i = begin; i < kFrames; ++i) {
    auto frame = reader->Read(In(kHangSeconds * 1000));
    if (!frame.ok()) return 3;
    if (*frame != Frame(i)) return 4;
    reader->Release();
    f->count->store(i + 1);
  }
  return 0;
}

// The parent writes; reader 0 is the peer, reader 1 is in the parent and must miss nothing.
struct ReaderCase {
  explicit ReaderCase() : f(2) {}
  Fixture f;
  RingWriter writer = *RingWriter::Attach(&f.segment);
  RingReader witness = *RingReader::Attach(&f.segment, 1, {});

  // One frame out, and seen by the witness. A full ring must answer at its deadline.
  Status Write(uint32_t number, int64_t wait_ms) {
    const int64_t begin_ns = RealClock::Now();
    Status status = writer.Write(Frame(number), begin_ns + wait_ms * kNsPerMs);
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_LT(RealClock::Now() - begin_ns, kHangSeconds * kNsPerSecond);
      return status;
    }
    auto frame = witness.TryRead();
    EXPECT_TRUE(frame.ok() && *frame == Frame(number)) << number;
    witness.Release();
    return status;
  }
};

bool ReaderMeets(uint32_t point, int signal) {
  ReaderCase c;
  PeerProcess reader([&] {
    ArmPoint({point, signal});
    return ReadAll(&c.f, 0);
  });
  uint32_t number = 0;
  while (number < kFrames) {
    if (c.Write(number, 2).ok()) {
      ++number;
    } else if (reader.Poll() != State::kRunning) {
      break;  // full for good
    }
  }
  if (number == kFrames) reader.WaitWhileRunning();
  if (reader.Poll() == State::kExited) {
    EXPECT_EQ(reader.exit_code(), 0);
    return true;
  }
  if (signal == SIGSTOP) {
    reader.Continue();
    for (; number < kFrames; ++number)
      EXPECT_TRUE(c.Write(number, kHangSeconds * 1000).ok()) << number;
    EXPECT_TRUE(reader.WaitForEnd(kHangSeconds));
    EXPECT_EQ(reader.exit_code(), 0) << "it continued where it was";
    return false;
  }
  // Dead: it no longer counts, the others go on, and its successor begins at the next frame.
  c.writer.DeactivateReader(0);
  const uint32_t before = number / 2;
  for (uint32_t i = 0; i < before; ++i) EXPECT_TRUE(c.Write(i, 0).ok());
  c.writer.ActivateReader(0);
  PeerProcess successor([&] { return ReadAll(&c.f, before); });
  for (uint32_t i = before; i < kFrames; ++i)
    EXPECT_TRUE(c.Write(i, kHangSeconds * 1000).ok()) << i;
  EXPECT_TRUE(successor.WaitForEnd(kHangSeconds));
  EXPECT_EQ(successor.exit_code(), 0);
  return false;
}

void Enumerate(bool (*meets)(uint32_t, int), int signal, uint32_t least) {
  uint32_t point = 1;
  for (; point < kMaxPoints; ++point) {
    SCOPED_TRACE(testing::Message() << "point " << point);
    if (meets(point, signal)) break;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_LT(point, kMaxPoints);
  EXPECT_GT(point, least) << "the library's points were not compiled in";
  std::printf("%u points\n", point - 1);
}

TEST(RingPointsTest, WriterKilled) { Enumerate(WriterMeets, SIGKILL, kFrames * 5); }
TEST(RingPointsTest, WriterStopped) { Enumerate(WriterMeets, SIGSTOP, kFrames * 5); }
TEST(RingPointsTest, WaitingWriterKilled) { Enumerate(WaitingWriterMeets, SIGKILL, kFrames * 5); }
TEST(RingPointsTest, WaitingWriterStopped) { Enumerate(WaitingWriterMeets, SIGSTOP, kFrames * 5); }
TEST(RingPointsTest, ReaderKilled) { Enumerate(ReaderMeets, SIGKILL, kFrames * 2); }
TEST(RingPointsTest, ReaderStopped) { Enumerate(ReaderMeets, SIGSTOP, kFrames * 2); }

}  // namespace
}  // namespace flotilla
