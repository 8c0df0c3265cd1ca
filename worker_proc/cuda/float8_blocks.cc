#include "worker_proc/cuda/float8_blocks.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/checkpoint/float8.h"

namespace flotilla::cuda {

bool MayBeFloat8Blocks(const TensorView& view) {
  if (view.dtype != DType::kF8E4M3 || view.cols % kFloat8Values != 0) return false;
  const uint64_t block_cols = view.scales->block_cols;
  return block_cols >= view.cols || block_cols % kFloat8Values == 0;
}

Status PackFloat8(const TensorView& view, uint64_t begin, uint64_t end, uint8_t* out) {
  CHECK(MayBeFloat8Blocks(view) && end <= view.rows);
  for (uint64_t row = begin; row < end; ++row) {
    const uint8_t* const values = view.data.data() + row * view.cols;
    if (std::any_of(values, values + view.cols, IsNanE4M3)) {
      return absl::InvalidArgumentError(
          StrCat("tensor ", view.name, " has a weight that is not a number; it is damaged"));
    }
    const std::span<const float> factors = view.scales->RowFactors(row, view.cols);
    for (uint64_t c = 0; c < view.cols; c += kFloat8Values, out += kFloat8Bytes) {
      std::memcpy(out, &factors[c / view.scales->block_cols], sizeof(float));
      std::memcpy(out + sizeof(float), values + c, kFloat8Values);
    }
  }
  return OkStatus();
}

}  // namespace flotilla::cuda
