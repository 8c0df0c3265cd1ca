#include "worker_proc/cpu/cpu_gather.h"

#include <cstring>

namespace flotilla::cpu {
namespace {

constexpr uint32_t kGatherRowsAPiece = 16;

}  // namespace

ColumnGather::ColumnGather(ThreadPool* pool, const QuantKernelTable* kernels, std::byte* staging)
    : pool_(pool), kernels_(*kernels), staging_(staging), rows_(pool->threads()) {}

void ColumnGather::CopyRow(uint32_t rows, uint32_t t, std::byte* row) const {
  const std::byte* from = staging_;
  for (const size_t count : counts_) {
    const size_t width = count / rows;
    std::memcpy(row, from + t * width, width);
    row += width;
    from += count;
  }
}

// The collective puts rank after rank; columns of a token must lie side by side.
Status ColumnGather::Run(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                         uint32_t root, Tensor out) {
  const uint32_t rows = local.rows;
  const bool quantised = Q8(local) != nullptr;
  counts_.clear();
  size_t row_bytes = 0;  // of all ranks
  for (const uint32_t c : cols) {
    const size_t width = quantised ? c / kQuantBlock * sizeof(ActBlock) : c * sizeof(float);
    counts_.push_back(width * rows);
    row_bytes += width;
  }
  const void* const data = quantised ? static_cast<const void*>(Q8(local)) : F32(local);
  const std::span<const std::byte> in(static_cast<const std::byte*>(data),
                                      counts_[collective.rank()]);
  const bool receives = root == kAllRanks || root == collective.rank();
  const std::span<std::byte> received(staging_, receives ? row_bytes * rows : 0);
  RETURN_IF_ERROR(root == kAllRanks ? collective.AllGather(in, counts_, received)
                                    : collective.Gather(in, counts_, received, root));
  if (!receives) return OkStatus();
  if (!quantised && F32(out) == nullptr) {
    for (std::vector<float>& row : rows_) row.resize(out.cols);
  }
  pool_->ParallelFor(rows, kGatherRowsAPiece, [&](uint32_t begin, uint32_t end, uint32_t worker) {
    for (uint32_t t = begin; t < end; ++t) {
      if (quantised) {
        CopyRow(rows, t, reinterpret_cast<std::byte*>(Q8Row(out, t)));
        continue;
      }
      float* const row = F32(out) != nullptr ? F32Row(out, t) : rows_[worker].data();
      CopyRow(rows, t, reinterpret_cast<std::byte*>(row));
      if (Q8(out) != nullptr) kernels_.quantize(row, 1, out.cols, Q8Row(out, t));
    }
  });
  return OkStatus();
}

}  // namespace flotilla::cpu
