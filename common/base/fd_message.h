// Messages with file descriptors, between processes over a Unix socket that keeps messages apart
// (SOCK_SEQPACKET).
//
// Units: bytes. Threads: any, one a socket and direction. Ownership: descriptors that are sent stay
// the caller's, those received are owned (close-on-exec). Errors: as each says; EINTR is none.
// Source: unix(7), SCM_RIGHTS.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/unique_fd.h"

namespace flotilla {

inline constexpr size_t kMaxFdsOfMessage = 4;

struct FdMessage {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

// False: the other side is gone. bytes: not empty.
bool SendFdMessage(int socket, std::string_view bytes, std::span<const int> fds);
// Nothing: the other side is gone, or sent more than `max_bytes`.
std::optional<FdMessage> ReceiveFdMessage(int socket, size_t max_bytes);

}  // namespace flotilla
