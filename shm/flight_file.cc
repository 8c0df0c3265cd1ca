// Flight recordings as files; flight_ring.h is the interface.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "common/base/unique_fd.h"
#include "common/base/wire.h"
#include "shm/flight_ring.h"

namespace flotilla {
namespace {

constexpr std::string_view kFileMagic = "flotilla flight 1\n";

}  // namespace

Status WriteFlight(int fd, const std::vector<std::string>& records) {
  std::string bytes(kFileMagic);
  WireWriter out(&bytes);
  for (const std::string& record : records) out.PutBytes(record);
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const ssize_t written = write(fd, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == ENOSPC || errno == EDQUOT))
      return absl::ResourceExhaustedError(std::strerror(errno));
    if (written < 0) return absl::UnavailableError(std::strerror(errno));
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return OkStatus();
}

Status WriteFlightFile(const std::string& path, const std::vector<std::string>& records) {
  if (access(path.c_str(), F_OK) == 0) return absl::AlreadyExistsError(StrCat(path, " exists"));
  // Under its own name there is never a part of one.
  const std::string temporary = StrCat(path, kFlightPartSuffix);
  const UniqueFd fd(open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  Status status =
      fd.valid() ? WriteFlight(fd.get(), records) : absl::UnavailableError(std::strerror(errno));
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = absl::UnavailableError(std::strerror(errno));
  if (status.ok()) return status;
  if (fd.valid()) unlink(temporary.c_str());
  return Annotate(status, StrCat("can't write ", path));
}

StatusOr<std::vector<std::string>> ReadFlightFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(StrCat("can't read ", path, ": ", std::strerror(errno)));
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (!bytes.starts_with(kFileMagic)) {
    return absl::InvalidArgumentError(StrCat(path, " is no flight recording of this version"));
  }
  WireReader in(std::string_view(bytes).substr(kFileMagic.size()));
  std::vector<std::string> records;
  while (in.remaining() > 0) {
    records.emplace_back(in.GetBytes());
    if (!in.ok()) return absl::DataLossError(StrCat(path, " is cut off"));
  }
  return records;
}

}  // namespace flotilla
