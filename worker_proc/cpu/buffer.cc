#include "worker_proc/cpu/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/flags.h"

namespace flotilla::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPiece = size_t{128} << 20;  // touched between two heartbeats
constexpr size_t kAlignment = 64;             // a cache line

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

void TouchPages(std::byte* data, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;  // since Linux 5.14
#endif
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  volatile std::byte* touched = data;
  for (size_t i = 0; i < bytes; i += page) touched[i] = std::byte{0};
}

}  // namespace

StatusOr<Buffer> Buffer::Create(size_t bytes, const char* what) {
  const bool huge = bytes >= kHugePage;
  const size_t unit = huge ? kHugePage : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bytes = RoundUp(std::max<size_t>(bytes, 1), unit);
  // A huge page more, so that the buffer can begin at one.
  const size_t mapped = bytes + (huge ? kHugePage : 0);
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        StrCat("too little memory for ", what, ": ", FormatBytes(bytes)));
  }
  auto* begin = static_cast<std::byte*>(data);
  if (!huge) return Buffer(begin, bytes);
  const size_t before =
      RoundUp(reinterpret_cast<uintptr_t>(data), kHugePage) - reinterpret_cast<uintptr_t>(data);
  if (before > 0) munmap(begin, before);
  begin += before;
  if (before < kHugePage) munmap(begin + bytes, kHugePage - before);
  madvise(begin, bytes, MADV_HUGEPAGE);  // a wish; may be refused
  return Buffer(begin, bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void Buffer::Touch(ThreadPool* pool, const Heartbeat& heartbeat) const {
  for (size_t begin = 0; begin < bytes_; begin += kPiece) {
    const size_t piece = std::min(kPiece, bytes_ - begin);
    const auto pages = static_cast<uint32_t>((piece + kHugePage - 1) / kHugePage);
    pool->ParallelFor(pages, pool->Grain(pages), [&](uint32_t first, uint32_t last, uint32_t) {
      const size_t from = first * kHugePage;
      TouchPages(data_ + begin + from, std::min(last * kHugePage, piece) - from);
    });
    heartbeat.Beat();
  }
}

StatusOr<std::byte*> Arena::Allocate(size_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  if (chunks_.empty() || chunks_.back().bytes() - used_ < bytes) {
    ASSIGN_OR_RETURN(Buffer chunk, Buffer::Create(std::max(bytes, chunk_bytes_), what_));
    chunks_.push_back(std::move(chunk));
    used_ = 0;
  }
  std::byte* const piece = chunks_.back().data() + used_;
  used_ += bytes;
  bytes_ += bytes;
  return piece;
}

void Arena::Touch(ThreadPool* pool, const Heartbeat& heartbeat) const {
  for (const Buffer& chunk : chunks_) chunk.Touch(pool, heartbeat);
}

}  // namespace flotilla::cpu
