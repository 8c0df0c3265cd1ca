#include "common/base/line_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <utility>

namespace flotilla {
namespace {

std::atomic<uint64_t> g_lines_lost = 0;

// Where poll sees room a pipe has it for PIPE_BUF, but a terminal perhaps for less than a write: so
// ours does not wait, while others who have this terminal still may. Invalid if it is none.
int OpenTerminal(int fd) {
  if (isatty(fd) == 0) return -1;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

}  // namespace

LineWriter::LineWriter(int fd, Note note, int max_wait_ms)
    : terminal_(OpenTerminal(fd)),
      fd_(terminal_.valid() ? terminal_.get() : fd),
      note_(std::move(note)),
      max_wait_ms_(max_wait_ms) {}

void LineWriter::Write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  rest_.erase(0, Send(rest_));
  if (rest_.empty() && dropped_ > 0 && Put(note_(dropped_))) dropped_ = 0;
  if (rest_.empty() && dropped_ == 0 && Put(line)) return;
  ++dropped_;
  g_lines_lost.fetch_add(1, std::memory_order_relaxed);
}

uint64_t LineWriter::lines_lost() { return g_lines_lost.load(std::memory_order_relaxed); }

// False: there was no room for any of it.
bool LineWriter::Put(std::string_view line) {
  const size_t sent = Send(line);
  if (sent > 0) rest_ = line.substr(sent);
  return sent > 0;
}

// Returns how much of it is done with.
size_t LineWriter::Send(std::string_view bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    if (!HasRoom()) return sent;
    const ssize_t n =
        write(fd_, bytes.data() + sent, std::min<size_t>(PIPE_BUF, bytes.size() - sent));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      stalled_ = true;
      return sent;
    }
    if (n <= 0) {  // nobody reads it any more, or there is no space
      g_lines_lost.fetch_add(1, std::memory_order_relaxed);
      return bytes.size();
    }
    sent += static_cast<size_t>(n);
  }
  if (!bytes.empty()) stalled_ = false;
  return sent;
}

bool LineWriter::HasRoom() {
  pollfd entry{fd_, POLLOUT, 0};
  int ready = 0;
  do {
    ready = poll(&entry, 1, stalled_ ? 0 : max_wait_ms_);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) stalled_ = true;
  return ready != 0;
}

}  // namespace flotilla
