#include "worker_proc/cuda/cuda_gather.h"

#include <cstring>

#include "worker_proc/runner/scratch.h"

namespace flotilla::cuda {

void CudaGather::Reserve(uint64_t bytes) {
  MakeRoom(bytes, &local_);
  MakeRoom(bytes, &received_);
  MakeRoom(bytes, &whole_);
}

// The collective puts rank after rank; columns of a token must lie side by side.
Status CudaGather::Run(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       uint32_t root, Tensor out) {
  const size_t rows = local.rows;
  const uint32_t element = ElementBytes(TypeOf(local));
  counts_.clear();
  for (const uint32_t c : cols) counts_.push_back(rows * c * element);
  const bool receives = root == kAllRanks || root == collective.rank();
  local_.resize(counts_[collective.rank()]);
  whole_.resize(receives ? rows * RowBytes(out) : 0);
  received_.resize(whole_.size());
  device_.Download(Data(local), local_.size(), local_.data());
  RETURN_IF_ERROR(device_.Synchronize());
  RETURN_IF_ERROR(root == kAllRanks ? collective.AllGather(local_, counts_, received_)
                                    : collective.Gather(local_, counts_, received_, root));
  if (!receives) return OkStatus();
  const std::byte* from = received_.data();
  size_t column = 0;  // in bytes
  for (const uint32_t c : cols) {
    const size_t width = size_t{c} * element;
    for (size_t t = 0; t < rows; ++t, from += width) {
      std::memcpy(whole_.data() + t * RowBytes(out) + column, from, width);
    }
    column += width;
  }
  device_.Upload(whole_.data(), whole_.size(), Data(out));
  return OkStatus();
}

}  // namespace flotilla::cuda
