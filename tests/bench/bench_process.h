// Processes of a benchmark: forked, pinned where there are cores enough, and gone when the
// benchmark is, however it ends. Also the memory that they share to answer each other.
//
// Threads: fork happens on the calling thread, which must be the process's only one and outlive the
// children (the parent-death signal follows the thread). Errors: a benchmark that cannot fork, map
// or join ends with a CHECK.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <new>
#include <vector>

namespace flotilla {

// The cores that this process may use.
std::vector<int> AllowedCores();
inline constexpr int kNotPinned = -1;

// Pins the calling thread to `core` (or kNotPinned: not at all) while it lives.
class ScopedPin {
 public:
  explicit ScopedPin(int core);
  ScopedPin(const ScopedPin&) = delete;
  ~ScopedPin();

 private:
  std::vector<int> before_;
};

class BenchProcess {
 public:
  // Runs body() in a child pinned to `core` (or kNotPinned: anywhere its parent may run).
  BenchProcess(int core, const std::function<void()>& body);
  BenchProcess(const BenchProcess&) = delete;
  ~BenchProcess();  // kills it if it still runs

  // Waits for its end, which must be a normal one.
  void Join();
  // It sleeps in the kernel (as /proc says).
  bool Asleep() const;

 private:
  pid_t pid_;
  int stat_fd_ = -1;
};

// Zeroed memory that children forked later share.
void* MapShared(size_t bytes);
void UnmapShared(void* memory, size_t bytes);

// A T in such memory.
template <typename T>
class SharedValue {
 public:
  SharedValue() : value_(new (MapShared(sizeof(T))) T{}) {}
  SharedValue(const SharedValue&) = delete;
  ~SharedValue() { UnmapShared(value_, sizeof(T)); }
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

}  // namespace flotilla
