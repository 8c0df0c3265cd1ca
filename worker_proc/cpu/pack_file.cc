#include "worker_proc/cpu/pack_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>

#include "common/base/flags.h"
#include "common/base/trusted_file.h"
#include "common/base/unique_fd.h"
#include "common/base/xxh64.h"
#include "worker_proc/cpu/pack_format.h"

namespace flotilla::cpu {
namespace {

constexpr uint64_t kFilePiece = uint64_t{128} << 20;   // between two heartbeats
constexpr uint64_t kSpareBytes = uint64_t{256} << 20;  // left free on the disk

Status ErrnoStatus(std::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text =
      StrCat(absl::string_view(what.data(), what.size()), " ", path, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  return absl::PermissionDeniedError(text);
}

// All of it, or false with errno (0: the file ended).
bool ReadAt(int fd, uint64_t offset, void* out, size_t bytes) {
  auto* to = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = 0;
    if (got <= 0) return false;
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAt(int fd, uint64_t offset, const void* data, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t written = pwrite(fd, from, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    from += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

struct Opened {
  UniqueFd fd;
  PackHeader header;
  uint64_t data_offset = 0;
};

StatusOr<Opened> OpenChecked(const std::string& path, const std::string& key) {
  Opened opened;
  opened.fd.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened.fd.valid()) return ErrnoStatus("can't open", path);
  struct stat info;
  if (fstat(opened.fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::DataLossError(StrCat(path, " is not a regular file"));
  }
  RETURN_IF_ERROR(CheckTrusted(info));  // ours is 0644
  const auto size = static_cast<uint64_t>(info.st_size);
  std::string bytes(kPackPreambleBytes, '\0');
  const Status cut_off = absl::DataLossError("packed weights: the file is cut off");
  if (!ReadAt(opened.fd.get(), 0, bytes.data(), bytes.size())) return cut_off;
  ASSIGN_OR_RETURN(const uint64_t header_bytes, PackHeaderBytes(bytes));
  if (header_bytes > size - bytes.size()) return cut_off;
  bytes.resize(kPackPreambleBytes + header_bytes);
  if (!ReadAt(opened.fd.get(), 0, bytes.data(), bytes.size())) return cut_off;
  ASSIGN_OR_RETURN(opened.header, ParsePackHeader(bytes, key));
  opened.data_offset = PackDataOffset(bytes.size());
  const uint64_t expected = opened.data_offset + opened.header.data_bytes();
  if (size != expected) {
    return absl::DataLossError(
        StrCat("packed weights: the file has ", size, " bytes, not ", expected));
  }
  return opened;
}

}  // namespace

PackFile::~PackFile() {
  if (mapped_ != nullptr) munmap(const_cast<std::byte*>(mapped_), mapped_bytes_);
}

// At an address of whole huge pages, or no huge page could be mapped.
Status PackFile::Map(int fd, uint64_t offset, uint64_t bytes, const Options& options) {
  void* const room =
      mmap(nullptr, bytes + kPackAlignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return absl::ResourceExhaustedError("no room to map packed weights");
  const auto begin = reinterpret_cast<uintptr_t>(room);
  const uintptr_t aligned = (begin + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
  void* const data = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ,
                          MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    munmap(room, bytes + kPackAlignment);
    return absl::ResourceExhaustedError("packed weights can't be mapped");
  }
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t end = (aligned + bytes + page - 1) / page * page;
  if (aligned > begin) munmap(room, aligned - begin);
  if (begin + bytes + kPackAlignment > end) {
    munmap(reinterpret_cast<void*>(end), begin + bytes + kPackAlignment - end);
  }
  mapped_ = static_cast<const std::byte*>(data);
  mapped_bytes_ = bytes;
  madvise(data, bytes, MADV_HUGEPAGE);  // for what is still to be read; a wish
  for (uint64_t from = 0; from < bytes; from += kFilePiece) {
#ifdef MADV_POPULATE_READ
    // What can't be read here would end the process there. An old kernel's EINVAL says nothing.
    if (madvise(static_cast<std::byte*>(data) + from, std::min(kFilePiece, bytes - from),
                MADV_POPULATE_READ) != 0 &&
        (errno == EFAULT || errno == EHWPOISON))
      return absl::DataLossError(StrCat("packed weights can't be read from ", from));
#endif
    options.heartbeat.Beat();
  }
  return OkStatus();
}

// As /proc/self/smaps tells of the mapping; seven eighths of it will do.
bool PackFile::MappedInHugePages() const {
  char begin[32];
  std::snprintf(begin, sizeof(begin), "%lx-", reinterpret_cast<unsigned long>(mapped_));
  std::ifstream file("/proc/self/smaps");
  bool ours = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long kib = 0;
    if (line.starts_with(begin)) ours = true;
    if (ours && std::sscanf(line.c_str(), "FilePmdMapped: %lu kB", &kib) == 1) {
      return uint64_t{kib} * 1024 * 8 >= mapped_bytes_ * 7;
    }
  }
  return false;
}

Status PackFile::CopyAndCheck(const std::vector<uint64_t>& checksums, const Options& options,
                              bool copy) {
  std::atomic<uint64_t> bad{UINT64_MAX};  // a block
  const uint64_t blocks_a_piece = kFilePiece / kPackBlock;
  for (uint64_t first = 0; first < checksums.size(); first += blocks_a_piece) {
    const auto count = static_cast<uint32_t>(std::min(blocks_a_piece, checksums.size() - first));
    options.pool->ParallelFor(count, 1, [&](uint32_t begin, uint32_t end, uint32_t) {
      for (uint64_t block = first + begin; block < first + end; ++block) {
        const uint64_t at = block * kPackBlock;
        const uint64_t bytes = std::min(kPackBlock, mapped_bytes_ - at);
        if (copy) std::memcpy(copy_.data() + at, mapped_ + at, bytes);
        if (Xxh64((copy ? copy_.data() : mapped_) + at, bytes) != checksums[block]) bad = block;
      }
    });
    options.heartbeat.Beat();
  }
  if (bad == UINT64_MAX) return OkStatus();
  return absl::DataLossError(StrCat("packed weights: the checksum of MiB ", bad.load()));
}

StatusOr<PackFile> PackFile::Open(const std::string& path, const Options& options) {
  ASSIGN_OR_RETURN(const Opened opened, OpenChecked(path, options.key));
  PackFile file;
  const std::vector<uint64_t> offsets = opened.header.Offsets();
  for (size_t i = 0; i < opened.header.parts.size(); ++i) {
    file.parts_.push_back({opened.header.parts[i], offsets[i]});
  }
  if (offsets.back() == 0) return file;
  RETURN_IF_ERROR(file.Map(opened.fd.get(), opened.data_offset, offsets.back(), options));
  const bool copy = options.memory == Memory::kCopy ||
                    (options.memory == Memory::kAuto && !file.MappedInHugePages());
  if (copy) {
    ASSIGN_OR_RETURN(file.copy_, Buffer::Create(offsets.back(), "weights"));
  }
  RETURN_IF_ERROR(file.CopyAndCheck(opened.header.checksums, options, copy));
  if (copy) munmap(const_cast<std::byte*>(std::exchange(file.mapped_, nullptr)), offsets.back());
  return file;
}

namespace {

// The bytes of the data that a header describes, piece by piece.
class DataReader {
 public:
  DataReader(const PackContents& contents, const std::vector<uint64_t>& offsets)
      : contents_(contents), offsets_(offsets) {}

  // The block that begins at `at`, `bytes` long; zeros between parts.
  void Read(uint64_t at, uint64_t bytes, std::byte* out) {
    std::memset(out, 0, bytes);
    while (part_ < contents_.parts.size() && offsets_[part_] < at + bytes) {
      const uint64_t begin = std::max(at, offsets_[part_]);
      const uint64_t end = std::min(at + bytes, offsets_[part_] + contents_.parts[part_].bytes);
      if (begin < end) {
        std::memcpy(out + (begin - at), contents_.data[part_] + (begin - offsets_[part_]),
                    end - begin);
      }
      if (offsets_[part_ + 1] > at + bytes) return;
      ++part_;
    }
  }

 private:
  const PackContents& contents_;
  const std::vector<uint64_t>& offsets_;
  size_t part_ = 0;  // the first that is not wholly behind us
};

// The data first, then the header, whose checksums are known by then.
Status WriteContents(int fd, const std::string& path, const PackContents& contents,
                     const std::atomic<bool>& stop) {
  PackHeader header{contents.key, contents.parts, {}};
  const std::vector<uint64_t> offsets = header.Offsets();
  const uint64_t data_bytes = offsets.back();
  header.checksums.resize((data_bytes + kPackBlock - 1) / kPackBlock);
  const uint64_t data_offset = PackDataOffset(BuildPackHeader(header).size());
  struct statvfs disk;
  if (fstatvfs(fd, &disk) == 0 &&
      uint64_t{disk.f_bavail} * disk.f_frsize < data_offset + data_bytes + kSpareBytes) {
    return absl::ResourceExhaustedError(StrCat(
        "too little room on the disk for ", FormatBytes(data_offset + data_bytes), " in ", path));
  }
  // To nothing first: the file may be left from a crash.
  if (ftruncate(fd, 0) != 0 || ftruncate(fd, static_cast<off_t>(data_offset + data_bytes)) != 0) {
    return ErrnoStatus("can't write", path);
  }
  DataReader reader(contents, offsets);
  // As large as a huge page: the page cache may then take one.
  std::vector<std::byte> piece(kPackAlignment);
  for (uint64_t at = 0; at < data_bytes; at += piece.size()) {
    if (stop.load(std::memory_order_relaxed)) return absl::CancelledError("stopped");
    const uint64_t bytes = std::min<uint64_t>(piece.size(), data_bytes - at);
    reader.Read(at, bytes, piece.data());
    for (uint64_t block = 0; block < bytes; block += kPackBlock) {
      header.checksums[(at + block) / kPackBlock] =
          Xxh64(piece.data() + block, std::min(kPackBlock, bytes - block));
    }
    if (!WriteAt(fd, data_offset + at, piece.data(), bytes)) {
      return ErrnoStatus("can't write", path);
    }
  }
  const std::string bytes = BuildPackHeader(header);
  return WriteAt(fd, 0, bytes.data(), bytes.size()) ? OkStatus() : ErrnoStatus("can't write", path);
}

}  // namespace

Status WritePackFile(const std::string& path, const PackContents& contents,
                     const std::atomic<bool>& stop) {
  const std::string temporary = path + ".tmp";
  UniqueFd fd(open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) return ErrnoStatus("can't create", temporary);
  // The lock goes with the process. Whoever had it may have renamed the file meanwhile.
  struct stat ours, named;
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || fstat(fd.get(), &ours) != 0 ||
      stat(temporary.c_str(), &named) != 0 || ours.st_ino != named.st_ino) {
    return absl::UnavailableError(StrCat("another process writes ", path));
  }
  Status status = WriteContents(fd.get(), path, contents, stop);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus("can't rename", temporary);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace flotilla::cpu
