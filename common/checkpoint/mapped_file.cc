#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/unique_fd.h"
#include "common/checkpoint/gguf.h"

namespace flotilla {

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: a FIFO given by mistake must not hang the open; it has no effect on regular files.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    const int error = errno;
    const std::string message = StrCat("cannot open model file ", path, ": ", std::strerror(error));
    if (error == ENOENT) return absl::NotFoundError(message);
    if (error == EACCES) return absl::PermissionDeniedError(message);
    if (error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG)
      return absl::InvalidArgumentError(message);
    return absl::UnavailableError(message);  // of the disk, or for now: another try may do
  }
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) {
    return absl::InternalError(StrCat("cannot stat ", path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        StrCat(path, " is not a regular file; give the path of a .gguf file"));
  }
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(StrCat(path, " is empty; download the model again"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        StrCat("cannot map ", size, " bytes of ", path, ": ", std::strerror(errno)));
  }
  const auto time = [](const timespec& t) { return StrCat(t.tv_sec, ".", t.tv_nsec); };
  return MappedFile(static_cast<const uint8_t*>(data), size,
                    StrCat(info.st_dev, ":", info.st_ino, ":", size, ":", time(info.st_mtim), ":",
                           time(info.st_ctim)));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      stamp_(std::move(other.stamp_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(stamp_, other.stamp_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::ReleasePages(std::span<const uint8_t> part) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace flotilla
