#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/interprocess/exceptions.hpp>
#include <cerrno>
#include <utility>

namespace flotilla {
namespace {

namespace bip = boost::interprocess;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kMaxSegmentBytes = size_t{1} << 40;

// What mapped_region wants: something with a mapping handle.
struct FdMapping {
  int fd;
  bip::mapping_handle_t get_mapping_handle() const {
    return bip::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

StatusOr<bip::mapped_region> MapWhole(int fd, size_t bytes) {
  try {
    return bip::mapped_region(FdMapping{fd}, bip::read_write, 0, bytes);
  } catch (const bip::interprocess_exception& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map a shared segment of ", bytes, " bytes: ", e.what()));
  }
}

}  // namespace

StatusOr<Segment> Segment::Create(const std::string& name, size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0 || bytes > kMaxSegmentBytes)
    return absl::InvalidArgumentError(absl::StrCat("segment ", name, ": bad size ", bytes));
  bytes = (bytes + page - 1) / page * page;
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("memfd_create ", name));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("segment ", name, ": cannot size it"));
  // Pages now, so that too little memory is an error here and not a SIGBUS in a serving process.
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("segment ", name, ": no memory for ", bytes, " bytes"));
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("segment ", name, ": cannot seal it"));
  ASSIGN_OR_RETURN(bip::mapped_region region, MapWhole(fd.get(), bytes));
  return Segment(std::move(fd), std::move(region));
}

StatusOr<Segment> Segment::Map(UniqueFd fd, size_t min_bytes) {
  if (!fd.valid()) return absl::InvalidArgumentError("segment: no descriptor");
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0)
    return absl::FailedPreconditionError(
        absl::StrCat("descriptor ", fd.get(), " is not a shared segment (memfd)"));
  if ((seals & kSeals) != kSeals)
    return absl::FailedPreconditionError(
        absl::StrCat("descriptor ", fd.get(), ": the shared segment is not sealed"));
  struct stat st;
  if (fstat(fd.get(), &st) != 0) return absl::ErrnoToStatus(errno, "segment: fstat");
  if (st.st_size <= 0 || static_cast<uint64_t>(st.st_size) < min_bytes)
    return absl::FailedPreconditionError(absl::StrCat("descriptor ", fd.get(), ": the segment has ",
                                                      st.st_size, " bytes, expected ", min_bytes));
  // Inherited descriptors are open across exec; ours must not leak further.
  if (fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0)
    return absl::ErrnoToStatus(errno, "segment: cannot set close-on-exec");
  ASSIGN_OR_RETURN(bip::mapped_region region, MapWhole(fd.get(), static_cast<size_t>(st.st_size)));
  return Segment(std::move(fd), std::move(region));
}

}  // namespace flotilla
