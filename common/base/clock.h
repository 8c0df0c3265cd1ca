// Time is passed in. Clock is CLOCK_MONOTONIC in nanoseconds, shared by all processes of a host, so
// that stamps of different processes can be subtracted. FakeClock makes tests independent of time.
//
// Threads: RealClock and FakeClock may be used from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

namespace flotilla {

inline constexpr int64_t kNsPerUs = 1'000;
inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;
};

class RealClock final : public Clock {
 public:
  int64_t NowNs() const override { return Now(); }
  static int64_t Now() {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return static_cast<int64_t>(ts.tv_sec) * kNsPerSecond + ts.tv_nsec;
  }
};

class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t start_ns = 0) : now_ns_(start_ns) {}
  int64_t NowNs() const override { return now_ns_.load(std::memory_order_relaxed); }
  void AdvanceNs(int64_t ns) { now_ns_.fetch_add(ns, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace flotilla
