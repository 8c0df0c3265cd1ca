#include "worker_proc/cpu/cpu_gather.h"

#include <cstring>

namespace flotilla::cpu {
namespace {

constexpr uint32_t kRowsAPiece = 16;

}  // namespace

// The collective puts rank after rank; columns of a token must lie side by side.
Status ColumnGather::Run(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                         uint32_t root, Tensor out) {
  const bool receives = root == kAllRanks || root == collective.rank();
  const uint32_t rows = local.rows;
  counts_.clear();
  size_t row_bytes = 0;  // of all ranks
  for (uint32_t c : cols) {
    counts_.push_back(c * sizeof(float) * rows);
    row_bytes += c * sizeof(float);
  }
  auto* const whole = receives ? reinterpret_cast<std::byte*>(F32(out)) : nullptr;
  std::byte* const received = rows == 1 ? whole : staging_;
  const std::span<const std::byte> in(reinterpret_cast<const std::byte*>(F32(local)),
                                      counts_[collective.rank()]);
  const std::span<std::byte> bytes(received, receives ? row_bytes * rows : 0);
  RETURN_IF_ERROR(root == kAllRanks ? collective.AllGather(in, counts_, bytes)
                                    : collective.Gather(in, counts_, bytes, root));
  if (!receives || rows == 1) return OkStatus();
  pool_->ParallelFor(rows, kRowsAPiece, [&](uint32_t begin, uint32_t end, uint32_t) {
    size_t column = 0;
    const std::byte* from = received;
    for (const size_t count : counts_) {
      const size_t width = count / rows;
      for (uint32_t t = begin; t < end; ++t) {
        std::memcpy(whole + t * row_bytes + column, from + t * width, width);
      }
      column += width;
      from += count;
    }
  });
  return OkStatus();
}

}  // namespace flotilla::cpu
