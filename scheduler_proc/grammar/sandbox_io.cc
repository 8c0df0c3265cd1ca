#include "scheduler_proc/grammar/sandbox_io.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/clock.h"

namespace flotilla {

namespace {

// A message of a byte with room for a descriptor.
struct FdMessage {
  char byte = 0;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};

  FdMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  FdMessage(const FdMessage&) = delete;  // it points into itself
  FdMessage& operator=(const FdMessage&) = delete;
};

}  // namespace

StatusOr<std::string> ReadToEnd(int fd, size_t max_bytes, int64_t deadline_ns) {
  std::string bytes;
  std::string chunk(256 << 10, '\0');
  while (true) {
    pollfd poll_fd = {fd, POLLIN, 0};
    int wait_ms = -1;
    if (deadline_ns != INT64_MAX) {
      const int64_t left_ns = deadline_ns - RealClock::Now();
      if (left_ns <= 0) return absl::DeadlineExceededError("no answer in time");
      wait_ms = static_cast<int>(std::min<int64_t>(left_ns / kNsPerMs + 1, 60'000));
    }
    const int ready = poll(&poll_fd, 1, wait_ms);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t got = ready < 0 ? -1 : read(fd, chunk.data(), chunk.size());
    if (got < 0) return absl::UnavailableError(StrCat("socket: ", std::strerror(errno)));
    if (got == 0) return bytes;
    bytes.append(chunk, 0, static_cast<size_t>(got));
    if (bytes.size() > max_bytes) return absl::ResourceExhaustedError("too many bytes");
  }
}

bool SendWithFd(int socket, SandboxMessage message, int fd) {
  FdMessage out;
  out.byte = static_cast<char>(message);
  cmsghdr* rights = CMSG_FIRSTHDR(&out.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket, &out.header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == 1;
}

std::optional<MessageWithFd> ReceiveWithFd(int socket) {
  FdMessage in;
  ssize_t got = -1;
  do {
    got = recvmsg(socket, &in.header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  const cmsghdr* rights = CMSG_FIRSTHDR(&in.header);
  if (got != 1 || rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return std::nullopt;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof(fd));
  return MessageWithFd{static_cast<SandboxMessage>(in.byte), UniqueFd(fd)};
}

}  // namespace flotilla
