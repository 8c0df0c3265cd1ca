#include "common/base/unix_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace flotilla {
namespace {

constexpr int kBacklog = 8;
constexpr timeval kConnectTimeout = {.tv_sec = 5, .tv_usec = 0};

Status Failed(const char* what, const std::string& path) {
  const bool stays = errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EROFS;
  const std::string message = StrCat(what, path, ": ", std::strerror(errno));
  return stays ? absl::FailedPreconditionError(message) : absl::UnavailableError(message);
}

}  // namespace

StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return absl::InvalidArgumentError(StrCat("a socket's path is too long: ", path));
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// It listens under another name first, so that whoever finds a file at the path can connect.
StatusOr<UnixListener> UnixListener::Listen(const std::string& path, int type) {
  const std::string other = StrCat(path, ".", getpid());
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(other));
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  unlink(other.c_str());
  struct stat file = {};
  if (!fd.valid() ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return Failed("can't listen on ", path);
  if (chmod(other.c_str(), S_IRUSR | S_IWUSR) != 0 || stat(other.c_str(), &file) != 0 ||
      listen(fd.get(), kBacklog) != 0 || rename(other.c_str(), path.c_str()) != 0) {
    const Status status = Failed("can't listen on ", path);
    unlink(other.c_str());
    return status;
  }
  UnixListener listener;
  listener.fd_ = std::move(fd);
  listener.path_ = path;
  listener.device_ = file.st_dev;
  listener.inode_ = file.st_ino;
  return listener;
}

UnixListener::UnixListener(UnixListener&& other) noexcept { *this = std::move(other); }

UnixListener& UnixListener::operator=(UnixListener&& other) noexcept {
  Close();
  fd_ = std::move(other.fd_);
  path_ = std::exchange(other.path_, {});
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

bool UnixListener::reachable() const {
  struct stat file = {};
  return !path_.empty() && stat(path_.c_str(), &file) == 0 && file.st_dev == device_ &&
         file.st_ino == inode_;
}

void UnixListener::Close() {
  fd_.reset();
  if (reachable()) unlink(path_.c_str());
  path_.clear();
}

StatusOr<UniqueFd> ConnectUnix(const std::string& path, int type) {
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kConnectTimeout, sizeof(kConnectTimeout));
  if (fd.valid() &&
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return fd;
  if (errno == ENOENT || errno == ECONNREFUSED)
    return absl::NotFoundError(StrCat("nobody listens on ", path));
  return Failed("can't connect to ", path);
}

}  // namespace flotilla
