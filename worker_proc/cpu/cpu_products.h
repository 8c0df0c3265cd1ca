// Linear and LinearActMul of the CPU backend: which kernel multiplies which rows by which part of a
// matrix. The rows are a tensor's, or those of it that an expert has.
//
// Shapes, bits: as kernels.h and quant_kernels.h say. Threads: one, with the pool's; Panels may run
// on all of them at once. Ownership: pool and arena outlive it. Errors: none but the arena's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "worker_proc/cpu/buffer.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/thread_pool.h"

namespace flotilla::cpu {

// Rows of a tensor. What is absent is null.
struct Rows {
  const float* f32 = nullptr;
  const ActBlock* q8 = nullptr;
  uint32_t count = 0;
  uint32_t cols = 0;
  const void* packed = nullptr;  // as the kernels' tiles, of the first TiledTokens
};
// `count` rows of a tensor from `begin` on.
Rows RowsOf(const Tensor& tensor, uint32_t begin, uint32_t count);
// The same of rows; begin: a multiple of kTileTokens.
Rows Slice(const Rows& rows, uint32_t begin, uint32_t count);

class CpuProducts {
 public:
  CpuProducts(const KernelTable& kernels, const QuantKernelTable& quant, ThreadPool* pool)
      : kernels_(kernels), quant_(quant), pool_(*pool) {}

  // Before Warmup: there will be products of so many rows, of all experts together if
  // `of_experts`.
  void Expect(uint32_t rows, uint32_t cols, bool of_experts);
  Status Warmup(Arena* arena);

  void Linear(const CpuLinear& w, Tensor x, Tensor out);
  void LinearActMul(const CpuLinear& w, HiddenAct act, Tensor x, Tensor gate_up, Tensor out);

  // Some products at once, each of another matrix.
  struct Product {
    const CpuLinear* weight = nullptr;
    Rows x;
    uint32_t first_row = 0;  // of the tensors
  };
  // Packs the rows of all of them, for what the kernels take as tiles.
  void Pack(std::span<Product> products);
  // LinearActMul of each; all matrices are of one shape.
  void LinearActMuls(std::span<const Product> products, HiddenAct act, Tensor gate_up, Tensor out);
  // The panels [begin, end) of one product; out: the first one's columns of the first row.
  void Panels(const CpuLinear& w, const Rows& x, uint32_t begin, uint32_t end, float* out,
              size_t out_stride) const;

  // f(begin, end) over the rows of an op that takes little time a row.
  template <typename F>
  void ForRows(uint32_t rows, const F& f) {
    constexpr uint32_t kRowsAPiece = 8;  // of well under a microsecond each
    pool_.ParallelFor(rows, std::max(kRowsAPiece, pool_.Grain(rows)),
                      [&](uint32_t begin, uint32_t end, uint32_t) { f(begin, end); });
  }

 private:
  void ActMul(HiddenAct act, Tensor gate_up, Tensor out);
  void GateUp(const Product& product, HiddenAct act, Tensor out, uint32_t begin,
              uint32_t end) const;

  const KernelTable& kernels_;
  const QuantKernelTable& quant_;
  ThreadPool& pool_;
  size_t largest_packed_ = 0;  // bytes
  std::byte* packed_ = nullptr;
};

}  // namespace flotilla::cpu
