// Whether an IpcHandle is of this process, whose pointers are as good as handles: a number drawn
// once a process, since pids repeat on other hosts and in other containers.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <random>

namespace flotilla::cuda {

inline uint64_t ThisProcess() {
  static const uint64_t number = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  return number;
}

struct ProcessPointer {
  uint64_t process = 0;
  std::byte* pointer = nullptr;
};

}  // namespace flotilla::cuda
