// A file of packed weights: parts in the order in which a model loads them, each as the kernels
// read it, so that a start need not pack again.
//
// Layout, little-endian: magic, the header's size and checksum; the header (version, key, parts,
// checksums of the data); from a multiple of 2 MiB on the data, each part at a multiple of 64
// bytes. Checksums are XXH64, of each MiB of the data. Everything is checked before a part is given
// out: the file is nobody's word but ours, and so it must be this user's or root's.
//
// Reading: where the page cache has the file in huge pages it is mapped and shared with whoever
// else has; else it is copied into huge pages, since matrices in small ones are read at half the
// speed (docs/performance.md). Writing: to a temporary name, under a lock, then renamed; whoever
// has the old file mapped keeps it.
//
// Units: bytes. Threads: one, with the pool's. Ownership: a PackFile owns the memory of its parts.
// Errors: NotFound: there is none; DataLoss: damaged, says where; FailedPrecondition: another key
// or version; PermissionDenied: another user's; ResourceExhausted: no room; Unavailable: someone
// else writes it; Cancelled.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/cpu/buffer.h"
#include "worker_proc/cpu/thread_pool.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla::cpu {

// To be raised whenever a packed byte, or this file's layout, changes its meaning.
inline constexpr uint32_t kPackFormatVersion = 1;

// What a part is; two that are equal, of one model, have equal bytes.
struct PackPart {
  uint64_t source = 0;  // hash of the names and rows that it is made of
  uint64_t format = 0;  // of its elements
  uint64_t rows = 0;
  uint64_t cols = 0;
  uint64_t bytes = 0;
  bool operator==(const PackPart&) const = default;
};

// What goes into a file. The data must stay as it is meanwhile.
struct PackContents {
  std::string key;  // of the model and whatever else decides about the bytes
  std::vector<PackPart> parts;
  std::vector<const std::byte*> data;  // of each part
};

class PackFile {
 public:
  enum class Memory : uint32_t { kAuto, kMap, kCopy };  // kAuto: as above
  struct Options {
    std::string key;
    ThreadPool* pool = nullptr;
    Heartbeat heartbeat = {};
    Memory memory = Memory::kAuto;
  };
  static StatusOr<PackFile> Open(const std::string& path, const Options& options);
  PackFile(PackFile&& other) noexcept
      : parts_(std::move(other.parts_)),
        mapped_(std::exchange(other.mapped_, nullptr)),
        mapped_bytes_(other.mapped_bytes_),
        copy_(std::move(other.copy_)) {}
  PackFile& operator=(PackFile&&) = delete;
  ~PackFile();

  size_t size() const { return parts_.size(); }
  const PackPart& part(size_t i) const { return parts_[i].part; }
  const std::byte* data(size_t i) const { return begin() + parts_[i].offset; }
  bool is_mapped() const { return mapped_ != nullptr; }

 private:
  struct Placed {
    PackPart part;
    uint64_t offset = 0;  // in the data
  };
  PackFile() = default;
  const std::byte* begin() const { return mapped_ != nullptr ? mapped_ : copy_.data(); }
  Status Map(int fd, uint64_t offset, uint64_t bytes, const Options& options);
  bool MappedInHugePages() const;
  Status CopyAndCheck(const std::vector<uint64_t>& checksums, const Options& options, bool copy);

  std::vector<Placed> parts_;
  const std::byte* mapped_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  Buffer copy_;
};

// `stop`: gives up soon after it is true.
Status WritePackFile(const std::string& path, const PackContents& contents,
                     const std::atomic<bool>& stop);

}  // namespace flotilla::cpu
