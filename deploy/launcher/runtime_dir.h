// The launcher's private directory (mode 0700) for Unix sockets: $XDG_RUNTIME_DIR or /tmp, then
// flotilla-run-XXXXXX. A lock held in it (flock, which the kernel drops with its holder) says that
// its launcher lives; Create() removes those of dead launchers of this user. Removed with the
// object. Threads: one. Errors: the parent can't be written to, or its path is too long for
// sockets.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace flotilla {

class RuntimeDir {
 public:
  static StatusOr<RuntimeDir> Create(const std::string& parent);
  // $XDG_RUNTIME_DIR if that is a directory that can be written to, else /tmp.
  static std::string DefaultParent();

  RuntimeDir(RuntimeDir&& other) noexcept = default;
  RuntimeDir& operator=(RuntimeDir&&) = delete;
  ~RuntimeDir();

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  RuntimeDir(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;
};

}  // namespace flotilla
