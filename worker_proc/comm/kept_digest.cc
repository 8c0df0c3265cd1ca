#include "worker_proc/comm/kept_digest.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace flotilla {

// Two lines: the stamp of the files that were hashed, and their digest.
std::string KeptDigest(const Checkpoint& checkpoint, const std::string& path,
                       const std::function<void()>& on_piece) {
  const std::string stamp = checkpoint.Stamp();
  if (path.empty() || stamp.empty()) return checkpoint.Digest(on_piece);
  std::ifstream kept(path);
  std::string kept_stamp, digest;
  if (std::getline(kept, kept_stamp) && std::getline(kept, digest) && kept_stamp == stamp &&
      !digest.empty()) {
    return digest;
  }
  digest = checkpoint.Digest(on_piece);
  const std::string own = StrCat(path, ".", getpid());
  std::ofstream file(own);
  file << stamp << "\n" << digest << "\n";
  file.close();
  // Whole or not at all, whoever reads meanwhile.
  if (!file || std::rename(own.c_str(), path.c_str()) != 0) unlink(own.c_str());
  return digest;
}

}  // namespace flotilla
