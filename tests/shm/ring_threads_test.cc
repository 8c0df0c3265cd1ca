// Writer and readers as threads over one mapping: what ThreadSanitizer can see, and the place where
// a lost wake-up would show as a read that ends at its (long) deadline.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "shm/ring.h"

namespace flotilla {
namespace {

int64_t Soon() { return RealClock::Now() + 30 * kNsPerSecond; }

Segment MakeRing(size_t data_bytes, uint32_t readers) {
  auto segment = Segment::Create("test-ring", RingSegmentBytes(data_bytes));
  EXPECT_TRUE(segment.ok()) << segment.status();
  EXPECT_TRUE(InitRing(*segment, readers).ok());
  return std::move(*segment);
}

std::string Frame(uint32_t number) {
  return std::string(1 + number * 37 % 900, static_cast<char>(number));
}

void RunBroadcast(uint32_t readers, int64_t spin_ns, uint32_t frames) {
  const Segment segment = MakeRing(4096, readers);
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < readers; ++r) {
    threads.emplace_back([&, r] {
      auto reader = RingReader::Attach(&segment, r, {spin_ns});
      ASSERT_TRUE(reader.ok());
      for (uint32_t i = 0; i < frames; ++i) {
        auto frame = reader->Read(Soon());
        ASSERT_TRUE(frame.ok()) << frame.status();
        ASSERT_EQ(*frame, Frame(i));
        reader->Release();
      }
    });
  }
  auto writer = RingWriter::Attach(&segment);
  ASSERT_TRUE(writer.ok());
  for (uint32_t i = 0; i < frames; ++i) ASSERT_TRUE(writer->Write(Frame(i), Soon()).ok());
  for (std::thread& thread : threads) thread.join();
}

TEST(RingThreadsTest, ReadersAsleep) {
  RunBroadcast(1, 0, 5000);
  RunBroadcast(4, 0, 3000);
}

TEST(RingThreadsTest, ReadersSpinning) { RunBroadcast(2, 20 * kNsPerUs, 5000); }

// Strictly alternating: each side sleeps for each frame.
TEST(RingThreadsTest, PingPongLosesNoWakeUp) {
  for (int64_t spin_ns : {int64_t{0}, 5 * kNsPerUs}) {
    const Segment there = MakeRing(4096, 1), back = MakeRing(4096, 1);
    constexpr uint32_t kFrames = 5000;
    std::thread other([&] {
      auto reader = RingReader::Attach(&there, 0, {spin_ns});
      auto writer = RingWriter::Attach(&back);
      for (uint32_t i = 0; i < kFrames; ++i) {
        auto frame = reader->Read(Soon());
        ASSERT_TRUE(frame.ok()) << frame.status();
        ASSERT_TRUE(writer->Write(*frame, Soon()).ok());
        reader->Release();
      }
    });
    auto reader = RingReader::Attach(&back, 0, {spin_ns});
    auto writer = RingWriter::Attach(&there);
    for (uint32_t i = 0; i < kFrames; ++i) {
      ASSERT_TRUE(writer->Write(Frame(i), Soon()).ok());
      auto frame = reader->Read(Soon());
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(*frame, Frame(i));
      reader->Release();
    }
    other.join();
  }
}

// A caller that waits on the ring's word by itself.
TEST(RingThreadsTest, TheFutexWordWakesItsWatcher) {
  const Segment segment = MakeRing(4096, 1);
  constexpr uint32_t kFrames = 2000;
  std::atomic<uint32_t> taken = 0;
  std::thread watcher([&] {
    auto reader = RingReader::Attach(&segment, 0, {});
    const std::atomic<uint32_t>* word = reader->futex();
    for (uint32_t i = 0; i < kFrames;) {
      const uint32_t seen = word->load(std::memory_order_acquire);
      auto frame = reader->TryRead();
      ASSERT_TRUE(frame.ok());
      if (frame->empty()) {
        ASSERT_TRUE(FutexWait(word, seen, Soon())) << "a frame did not wake the watcher";
        continue;
      }
      ASSERT_EQ(*frame, Frame(i++));
      reader->Release();
      taken.store(i);
    }
  });
  auto writer = RingWriter::Attach(&segment);
  for (uint32_t i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(writer->Write(Frame(i), Soon()).ok());
    while (i % 3 == 0 && taken.load() <= i) std::this_thread::yield();
  }
  watcher.join();
}

// The scheduler moves a reader's cursor while that reader's thread looks on, as at a new epoch.
TEST(RingThreadsTest, ReadersComeAndGo) {
  const Segment segment = MakeRing(4096, 2);
  std::atomic<uint32_t> admitted = 0, ended = 0;
  constexpr uint32_t kLives = 200;
  std::thread mortal([&] {
    for (uint32_t life = 1; life <= kLives; ++life) {
      while (admitted.load(std::memory_order_acquire) < life) std::this_thread::yield();
      auto reader = RingReader::Attach(&segment, 1, {});
      for (int i = 0; i < 3; ++i) {
        auto frame = reader->Read(Soon());
        ASSERT_TRUE(frame.ok()) << frame.status();
        ASSERT_EQ(*frame, Frame(life * 8 + i));
        if (i < 2) reader->Release();  // dies with a frame in its hands
      }
      ended.store(life, std::memory_order_release);
    }
  });
  std::thread steady([&] {
    auto reader = RingReader::Attach(&segment, 0, {});
    for (uint32_t i = 8; i < (kLives + 1) * 8; ++i) {
      auto frame = reader->Read(Soon());
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(*frame, Frame(i));
      reader->Release();
    }
  });
  auto writer = RingWriter::Attach(&segment);
  for (uint32_t life = 1; life <= kLives; ++life) {
    writer->ActivateReader(1);
    admitted.store(life, std::memory_order_release);
    for (uint32_t i = 0; i < 8; ++i) {
      // From the fourth frame on, the reader dies at any time; then it holds nobody back.
      if (i == 5) {
        while (ended.load(std::memory_order_acquire) < life) std::this_thread::yield();
        writer->DeactivateReader(1);
      }
      ASSERT_TRUE(writer->Write(Frame(life * 8 + i), Soon()).ok());
    }
  }
  mortal.join();
  steady.join();
}

}  // namespace
}  // namespace flotilla
