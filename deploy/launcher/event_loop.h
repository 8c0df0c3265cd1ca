// The launcher's one thread of control: epoll over descriptors, each with a handler.
//
// Threads: the main thread only (it forks, and the parent-death signal follows the thread).
// Ownership: descriptors are the caller's, who removes them before closing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "common/base/unique_fd.h"

namespace flotilla {

class EventLoop {
 public:
  EventLoop();

  // Calls `handler` whenever `fd` is readable or hung up.
  void Add(int fd, std::function<void()> handler);
  void Remove(int fd);
  // Handles what is ready; waits for it at most timeout_ms.
  void WaitOnce(int timeout_ms);

 private:
  UniqueFd epoll_;
  std::map<int, std::function<void()>> handlers_;
};

}  // namespace flotilla
