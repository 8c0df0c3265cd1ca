#include "deploy/launcher/runtime_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "common/base/log.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

constexpr char kRunDirPrefix[] = "flotilla-run-";
constexpr size_t kMaxPathBytes = 70;    // sockaddr_un takes 107; names in it take at most 36
constexpr time_t kUnlockedGraceS = 60;  // a directory without a lock is being made, or was left

// True if the directory has a launcher's lock and no process holds it.
bool LockIsFree(const std::string& path) {
  const UniqueFd lock(open((path + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
}

// A launcher that died before it had its lock left nothing but this; rmdir spares anything else.
void RemoveUnfinished(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || info.st_ctime + kUnlockedGraceS >= std::time(nullptr))
    return;
  unlink((path + "/lock.new").c_str());
  rmdir(path.c_str());
}

bool IsOurs(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & 0777) == 0700;
}

void RemoveStale(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (it->path().filename().string().rfind(kRunDirPrefix, 0) != 0 || !IsOurs(path)) continue;
    if (!LockIsFree(path)) {
      if (access((path + "/lock").c_str(), F_OK) != 0) RemoveUnfinished(path);
      continue;
    }
    std::error_code ignored;
    fs::remove_all(path, ignored);
    Log().info("removed the directory of a dead launcher {}", Kv("path", path));
  }
}

}  // namespace

std::string RuntimeDir::DefaultParent() {
  const char* xdg = std::getenv("XDG_RUNTIME_DIR");
  return xdg != nullptr && *xdg != '\0' && access(xdg, W_OK | X_OK) == 0 ? xdg : "/tmp";
}

StatusOr<RuntimeDir> RuntimeDir::Create(const std::string& parent) {
  RemoveStale(parent);
  std::string path = parent + "/" + kRunDirPrefix + "XXXXXX";
  if (path.size() > kMaxPathBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("the path '", parent, "' is too long for Unix sockets; set XDG_RUNTIME_DIR"));
  if (mkdtemp(path.data()) == nullptr)
    return absl::UnavailableError(
        absl::StrCat("can't make a directory in ", parent, ": ", std::strerror(errno)));
  // Locked before it gets the name that RemoveStale looks at.
  const std::string fresh = path + "/lock.new";
  UniqueFd lock(open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!lock.valid() || flock(lock.get(), LOCK_EX | LOCK_NB) != 0 ||
      rename(fresh.c_str(), (path + "/lock").c_str()) != 0)
    return absl::UnavailableError(absl::StrCat("can't lock ", path, ": ", std::strerror(errno)));
  return RuntimeDir(std::move(path), std::move(lock));
}

RuntimeDir::~RuntimeDir() {
  if (!lock_.valid()) return;  // moved from
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace flotilla
