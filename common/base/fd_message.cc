#include "common/base/fd_message.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "common/base/check.h"

namespace flotilla {
namespace {

// One buffer of bytes, and room for descriptors.
struct Envelope {
  iovec data;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFdsOfMessage)] = {};
  msghdr header = {};

  Envelope(void* bytes, size_t size) : data{bytes, size} {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
  }
  Envelope(const Envelope&) = delete;  // it points into itself
  Envelope& operator=(const Envelope&) = delete;
};

}  // namespace

bool SendFdMessage(int socket, std::string_view bytes, std::span<const int> fds) {
  CHECK(!bytes.empty() && fds.size() <= kMaxFdsOfMessage);
  Envelope out(const_cast<char*>(bytes.data()), bytes.size());
  if (!fds.empty()) {
    out.header.msg_control = out.control;
    out.header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&out.header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket, &out.header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

std::optional<FdMessage> ReceiveFdMessage(int socket, size_t max_bytes) {
  FdMessage message;
  message.bytes.resize(max_bytes);
  Envelope in(message.bytes.data(), max_bytes);
  in.header.msg_control = in.control;
  in.header.msg_controllen = sizeof(in.control);
  ssize_t got = -1;
  do {
    got = recvmsg(socket, &in.header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  for (cmsghdr* each = got < 0 ? nullptr : CMSG_FIRSTHDR(&in.header); each != nullptr;
       each = CMSG_NXTHDR(&in.header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= each->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<const char*>(each) + at, sizeof(fd));
      message.fds.emplace_back(fd);
    }
  }
  if (got <= 0 || (in.header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return std::nullopt;
  message.bytes.resize(static_cast<size_t>(got));
  return message;
}

}  // namespace flotilla
