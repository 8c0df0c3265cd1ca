#include "scheduler_proc/grammar/sandbox_io.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/fd_message.h"

namespace flotilla {

Status AwaitBytes(int fd, int64_t deadline_ns) {
  while (true) {
    pollfd poll_fd = {fd, POLLIN, 0};
    int wait_ms = -1;
    if (deadline_ns != INT64_MAX) {
      const int64_t left_ns = deadline_ns - RealClock::Now();
      if (left_ns <= 0) return absl::DeadlineExceededError("no answer in time");
      wait_ms = static_cast<int>(std::min<int64_t>(left_ns / kNsPerMs + 1, 60'000));
    }
    const int ready = poll(&poll_fd, 1, wait_ms);
    if (ready > 0) return OkStatus();
    if (ready < 0 && errno != EINTR)
      return absl::UnavailableError(StrCat("socket: ", std::strerror(errno)));
  }
}

StatusOr<std::string> ReadToEnd(int fd, size_t max_bytes, int64_t deadline_ns) {
  std::string bytes;
  std::string chunk(256 << 10, '\0');
  while (true) {
    RETURN_IF_ERROR(AwaitBytes(fd, deadline_ns));
    const ssize_t got = read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::UnavailableError(StrCat("socket: ", std::strerror(errno)));
    if (got == 0) return bytes;
    bytes.append(chunk, 0, static_cast<size_t>(got));
    if (bytes.size() > max_bytes) return absl::ResourceExhaustedError("too many bytes");
  }
}

bool SendWithFd(int socket, SandboxMessage message, int fd) {
  const char byte = static_cast<char>(message);
  return SendFdMessage(socket, {&byte, 1}, {&fd, 1});
}

std::optional<MessageWithFd> ReceiveWithFd(int socket) {
  std::optional<FdMessage> in = ReceiveFdMessage(socket, 1);
  if (!in || in->fds.size() != 1) return std::nullopt;
  return MessageWithFd{static_cast<SandboxMessage>(in->bytes[0]), std::move(in->fds[0])};
}

}  // namespace flotilla
