#include "worker_proc/runner/logits_dump.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <array>

namespace flotilla {

StatusOr<LogitsDump> LogitsDump::Open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return absl::InvalidArgumentError(StrCat("--logits-dump: can't write ", path));
  }
  return LogitsDump(std::move(fd));
}

Status LogitsDump::Append(uint32_t slot, uint32_t position, std::span<const float> logits) {
  std::array<uint32_t, 4> header = {slot, position, static_cast<uint32_t>(logits.size()), 0};
  std::array<iovec, 2> parts = {
      {{header.data(), sizeof(header)}, {const_cast<float*>(logits.data()), logits.size_bytes()}}};
  const auto bytes = static_cast<ssize_t>(sizeof(header) + logits.size_bytes());
  if (::writev(fd_.get(), parts.data(), parts.size()) != bytes) {
    return absl::InternalError("--logits-dump: short write (is the disk full?)");
  }
  return OkStatus();
}

}  // namespace flotilla
