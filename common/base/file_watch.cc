#include "common/base/file_watch.h"

#include <utility>

#include "common/base/log.h"

namespace flotilla {

FileWatch::FileWatch(std::vector<WatchedFile> files, std::chrono::milliseconds period)
    : files_(std::move(files)), period_(period), thread_([this] { Run(); }) {}

FileWatch::~FileWatch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void FileWatch::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, period_, [this] { return stop_; })) {
    lock.unlock();
    for (const WatchedFile& file : files_) {
      const StatusOr<bool> read = file.reload();
      if (!read.ok())
        Log().error("{} is wrong, what was read before stays {}", file.flag,
                    Kv("error", std::string(read.status().message())));
      else if (*read)
        Log().info("{} was read again", file.flag);
    }
    lock.lock();
  }
}

}  // namespace flotilla
