// A Unix socket that listens at a path of the file system.
//
// A file that is there already, somebody else's too, is replaced, at no instant by none; at the end
// the file is removed, unless it has been replaced meanwhile.
// Threads: one. Errors: InvalidArgument (path too long), FailedPrecondition (no such folder, or not
// ours to write to), Unavailable.
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace flotilla {

// InvalidArgument: the path is too long for one.
StatusOr<sockaddr_un> UnixAddress(const std::string& path);

class UnixListener {
 public:
  // type: SOCK_STREAM or SOCK_SEQPACKET. The file is for this user alone.
  static StatusOr<UnixListener> Listen(const std::string& path, int type);
  UnixListener() = default;  // none
  ~UnixListener() { Close(); }
  UnixListener(UnixListener&& other) noexcept;
  UnixListener& operator=(UnixListener&& other) noexcept;

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // Its file is still at the path.
  bool reachable() const;
  void Close();

 private:
  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// The other end. NotFound: nobody listens there. InvalidArgument; Unavailable, also if whoever
// listens does not accept for some seconds.
StatusOr<UniqueFd> ConnectUnix(const std::string& path, int type);

}  // namespace flotilla
