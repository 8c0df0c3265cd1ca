// Reads files again when they change: asks each of them, about once a second, on a thread of its
// own.
//
// A file that is wrong is logged once, and what was read before stays. Contents are compared, not
// times, so links that lead elsewhere (as in Kubernetes' volumes) are seen too.
// Threads: `reload` is called by the watch's thread, never after the destructor.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

struct WatchedFile {
  std::string flag;  // that names it
  // True: it was read again; false: nothing to say. An error is logged each time.
  std::function<StatusOr<bool>()> reload;
};

class FileWatch {
 public:
  explicit FileWatch(std::vector<WatchedFile> files,
                     std::chrono::milliseconds period = std::chrono::seconds(1));
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

 private:
  void Run();

  const std::vector<WatchedFile> files_;
  const std::chrono::milliseconds period_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace flotilla
