// Packed weights from start to start: what a rank packs is written beside the model once, in the
// background, and read by later starts (pack_file.h).
//
// A weight store asks for part after part. As long as the file has what is asked for, its memory is
// given out; what it lacks is packed and added. Nothing here can fail a start: a file that is
// damaged, of another model or version is logged and written anew; a full disk or a folder that
// can't be written costs the cache.
//
// Files: MODEL.TYPE.RANKofTP.pack in the model's folder, else MODEL.HASH.TYPE… in the user's cache
// folder (HASH: of the model's path). The key in the file has the model's identity, so a new model
// of the same path replaces the old one's file.
//
// Units: bytes. Threads: one; SaveInBackground starts another, which reads the parts. Ownership:
// parts from the file are the cache's, added ones the caller's, alive until Wait or the destructor.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/memory_info.h"
#include "common/checkpoint/checkpoint.h"
#include "worker_proc/cpu/pack_file.h"

namespace flotilla::cpu {

struct PackCacheOptions {
  std::string dir = "off";  // auto: as above; off; else a folder
  std::string model_path;
  std::string model_identity;  // ModelIdentity(); empty: off
  uint32_t rank = 0;
  uint32_t ranks = 1;
  // auto only: who names a folder wants the file.
  uint64_t min_bytes = kLeastPackBytes;
};

// Names and places of the model's files, with their sizes and times, and of its tensors, with some
// of their bytes.
std::string ModelIdentity(const std::string& path, const Checkpoint& checkpoint);

class PackCache {
 public:
  // type: of the arithmetic, as in a file's name.
  PackCache(const PackCacheOptions& options, const std::string& type, ThreadPool* pool,
            const Heartbeat& heartbeat);
  ~PackCache();  // gives up writing
  PackCache(const PackCache&) = delete;
  PackCache& operator=(const PackCache&) = delete;

  // The next part's bytes; null: it has to be packed, and then be added.
  const std::byte* Next(const PackPart& part);
  void Add(const PackPart& part, const std::byte* data);

  // After the last part; does nothing if all came from the file, or too little was packed.
  void SaveInBackground();
  // Until that is done (tests).
  void Wait();

  uint64_t bytes_from_file() const { return bytes_from_file_; }
  uint64_t bytes_packed() const { return bytes_packed_; }

 private:
  void Open();
  void Save();

  const PackCacheOptions options_;
  ThreadPool* const pool_;
  const Heartbeat heartbeat_;
  std::vector<std::string> paths_;  // where the file may be, best first; none: off
  bool opened_ = false;
  std::optional<PackFile> file_;
  PackContents contents_;
  uint64_t bytes_from_file_ = 0;
  uint64_t bytes_packed_ = 0;
  std::atomic<bool> stop_{false};
  std::thread writer_;
};

}  // namespace flotilla::cpu
