// Sockets between the scheduler and the compile sandbox: whole streams with a deadline, and
// messages of a byte with a file descriptor.
//
// Units: bytes, nanoseconds of CLOCK_MONOTONIC. Threads: any, one a socket and direction.
// Ownership: descriptors stay the caller's, those received are owned. Errors: as each says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace flotilla {

enum class SandboxMessage : char { kVocabulary = 'V', kCompile = 'C' };

// Comes before a job's reply, as soon as somebody works on it.
inline constexpr char kCompileBegins = 'B';

struct MessageWithFd {
  SandboxMessage kind = SandboxMessage::kCompile;
  UniqueFd fd;
};

// Until there is something to read, the end among it. deadline_ns: CLOCK_MONOTONIC; INT64_MAX:
// none. DeadlineExceeded; Unavailable.
Status AwaitBytes(int fd, int64_t deadline_ns);
// Until the other side has ended, at most max_bytes.
// DeadlineExceeded; ResourceExhausted for more bytes; Unavailable.
StatusOr<std::string> ReadToEnd(int fd, size_t max_bytes, int64_t deadline_ns);
// A message with a descriptor, which stays the caller's. False: the other side is gone.
bool SendWithFd(int socket, SandboxMessage message, int fd);
// Nothing: the other side is gone, or sent no descriptor.
std::optional<MessageWithFd> ReceiveWithFd(int socket);

}  // namespace flotilla
