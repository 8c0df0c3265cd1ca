#include "worker_proc/cpu/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include "common/base/flags.h"

namespace flotilla::cpu {

StatusOr<Buffer> Buffer::Create(size_t floats, const char* what) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (floats * sizeof(float) + page) / page * page;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        StrCat("too little memory for ", what, ": ", FormatBytes(bytes)));
  }
  constexpr size_t kHugePage = size_t{2} << 20;
  if (bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE);  // a wish; may be refused
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0)
    return Buffer(static_cast<float*>(data), bytes);
#endif
  volatile char* touch = static_cast<char*>(data);
  for (size_t i = 0; i < bytes; i += page) touch[i] = 0;
  return Buffer(static_cast<float*>(data), bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace flotilla::cpu
