#include "worker_proc/cpu/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/flags.h"

namespace flotilla::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPiece = size_t{32} << 20;  // touched between two heartbeats

void Touch(char* data, size_t bytes, size_t page) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;  // since Linux 5.14
#endif
  volatile char* touched = data;
  for (size_t i = 0; i < bytes; i += page) touched[i] = 0;
}

}  // namespace

StatusOr<Buffer> Buffer::Create(size_t floats, const char* what, const Heartbeat& heartbeat) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (floats * sizeof(float) + page) / page * page;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        StrCat("too little memory for ", what, ": ", FormatBytes(bytes)));
  }
  if (bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE);  // a wish; may be refused
  for (size_t begin = 0; begin < bytes; begin += kPiece) {
    Touch(static_cast<char*>(data) + begin, std::min(kPiece, bytes - begin), page);
    heartbeat.Beat();
  }
  return Buffer(static_cast<float*>(data), bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace flotilla::cpu
