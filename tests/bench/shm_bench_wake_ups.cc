// From a write to the last of several sleeping readers' answers: the step ring beside the least
// that wakes as many processes, one FUTEX_WAKE on one shared word.
#include <sched.h>

#include <atomic>
#include <memory>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "shm/futex.h"
#include "shm/ring.h"
#include "tests/bench/shm_bench.h"

namespace flotilla {
namespace {

constexpr uint32_t kMostReaders = 4;
constexpr size_t kFrameBytes = 256;
constexpr int64_t kGiveUpNs = 20 * kNsPerSecond;

// How readers answer, in both cases: each stamps the time, the last one wakes the writer.
struct Answers {
  alignas(64) std::atomic<uint32_t> bell;  // the bare broadcast's word
  alignas(64) std::atomic<uint32_t> outstanding;
  alignas(64) std::atomic<int64_t> stamp_ns[kMostReaders];

  void Give(uint32_t reader) {
    stamp_ns[reader].store(RealClock::Now(), std::memory_order_relaxed);
    if (outstanding.fetch_sub(1) == 1) FutexWakeAll(&outstanding);
  }
};

// What is measured: how a reader waits for round `round` (from 1), and how the writer starts it.
class Broadcast {
 public:
  virtual ~Broadcast() = default;
  virtual void Write(uint32_t round) = 0;
  // In the reader's process, once.
  virtual void Attach(uint32_t reader) = 0;
  virtual void Wait(uint32_t round) = 0;
};

class BareFutex final : public Broadcast {
 public:
  explicit BareFutex(std::atomic<uint32_t>* bell) : bell_(bell) {}
  void Write(uint32_t round) override {
    bell_->store(round);
    FutexWakeAll(bell_);
  }
  void Attach(uint32_t) override {}
  void Wait(uint32_t round) override {
    while (bell_->load() != round) FutexWait(bell_, round - 1, RealClock::Now() + kGiveUpNs);
  }

 private:
  std::atomic<uint32_t>* bell_;
};

class StepRing final : public Broadcast {
 public:
  explicit StepRing(uint32_t readers)
      : segment_(*Segment::Create("bench-steps", RingSegmentBytes(4 << 20))) {
    CHECK_OK(InitRing(segment_, readers));
    writer_ = std::make_unique<RingWriter>(*RingWriter::Attach(&segment_));
  }
  void Write(uint32_t) override {
    CHECK_OK(writer_->Write({frame_, kFrameBytes}, RealClock::Now() + kGiveUpNs));
  }
  void Attach(uint32_t reader) override {
    reader_ = std::make_unique<RingReader>(*RingReader::Attach(&segment_, reader, WaitPolicy{}));
  }
  void Wait(uint32_t) override {
    const auto frame = reader_->Read(RealClock::Now() + kGiveUpNs);
    CHECK_OK(frame.status());
    CHECK(frame->size() == kFrameBytes);
    reader_->Release();
  }

 private:
  Segment segment_;
  std::unique_ptr<RingWriter> writer_;
  std::unique_ptr<RingReader> reader_;
  char frame_[kFrameBytes] = {};
};

std::vector<int64_t> Measure(Broadcast* broadcast, Answers* answers, uint32_t readers,
                             int iterations, const ShmBenchOptions& options) {
  std::vector<std::unique_ptr<BenchProcess>> processes;
  answers->bell.store(0);
  for (uint32_t r = 0; r < readers; ++r) {
    processes.push_back(std::make_unique<BenchProcess>(kNotPinned, [=] {
      broadcast->Attach(r);
      for (uint32_t i = 1;; ++i) {
        broadcast->Wait(i);
        answers->Give(r);
      }
    }));
  }
  std::vector<int64_t> samples;
  const int64_t over_ns = RealClock::Now() + options.round_ns;
  for (int i = 1; i <= iterations && RealClock::Now() < over_ns; ++i) {
    for (const auto& process : processes)
      while (!process->Asleep()) sched_yield();
    answers->outstanding.store(readers);
    const int64_t begin_ns = RealClock::Now();
    broadcast->Write(static_cast<uint32_t>(i));
    for (uint32_t left; (left = answers->outstanding.load()) != 0;)
      CHECK(FutexWait(&answers->outstanding, left, RealClock::Now() + kGiveUpNs));
    int64_t last_ns = 0;
    for (uint32_t r = 0; r < readers; ++r)
      last_ns = std::max(last_ns, answers->stamp_ns[r].load(std::memory_order_relaxed));
    samples.push_back(last_ns - begin_ns);
  }
  return samples;  // the readers end with their BenchProcess
}

}  // namespace

void RunWakeUps(const ShmBenchOptions& options, Report* report) {
  report->Section("sleeping readers: from the write until the last has woken and answered");
  if (!options.Fits(kMostReaders + 1))
    report->Note(StrCat("writer and readers share ", options.cores.size(), " cores"));
  const int iterations = std::max(options.iterations / 10, 100);
  SharedValue<Answers> answers;
  for (uint32_t readers = 2; readers <= kMostReaders; ++readers) {
    Rounds bare, ring;
    for (int round = 0; round < options.rounds; ++round) {
      BareFutex futex(&answers->bell);
      bare.Add(Measure(&futex, &*answers, readers, iterations, options));
      StepRing steps(readers);
      ring.Add(Measure(&steps, &*answers, readers, iterations, options));
    }
    report->Add({StrCat(readers, " readers, FUTEX_WAKE of one word: p50"),
                 bare.P50Us(),
                 "us",
                 {},
                 bare.Note()});
    report->Add({StrCat(readers, " readers, step ring: p50"), ring.P50Us(), "us", {}, ring.Note()});
    report->Add(
        {"  against the bare broadcast", ring.P50Us() / bare.P50Us(), "x", AtMost(1.5), ""});
  }
}

}  // namespace flotilla
