// A file of API keys (docs/api_keys.md) for a test; it goes with the object. Threads: one.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/base/sha256.h"
#include "common/base/status.h"

namespace flotilla {

inline std::string KeyLine(std::string_view tenant, std::string_view key,
                           std::string_view rest = "") {
  return StrCat(tenant, " ", Sha256Hex(key), " ", rest, "\n");
}

class KeysFile {
 public:
  explicit KeysFile(std::string_view text = "") {
    char name[] = "/tmp/flotilla-keys-XXXXXX";
    const int fd = mkstemp(name);
    CHECK(fd >= 0);
    close(fd);
    path_ = name;
    Write(text);
  }
  ~KeysFile() { Remove(); }
  KeysFile(const KeysFile&) = delete;
  KeysFile& operator=(const KeysFile&) = delete;

  void Write(std::string_view text) const { std::ofstream(path_) << text; }
  void Remove() const { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace flotilla
