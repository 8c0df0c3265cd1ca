#include "worker_proc/cpu/cpu_products.h"

#include "common/base/check.h"

namespace flotilla::cpu {
namespace {

constexpr uint32_t kPanelUnit = 4;  // panels that a kernel computes side by side

// A kernel can write what gate and up become at once.
bool IsFused(const CpuLinear& w, const Tensor& out) {
  return w.parts.size() == 1 && w.parts[0].quant != nullptr && F32(out) == nullptr;
}

uint32_t MostTiledTokens(const CpuLinear& w, uint32_t rows) {
  uint32_t tokens = 0;
  for (const LinearPart& part : w.parts) {
    if (part.quant != nullptr) tokens = std::max(tokens, TiledTokens(part.format, rows));
  }
  return tokens;
}

// To the columns [begin, end), the matrix's rows.
void AddBias(const CpuLinear& w, uint32_t begin, uint32_t end, uint32_t rows, float* out,
             size_t out_stride) {
  for (uint32_t t = 0; t < rows; ++t) {
    for (uint32_t c = begin; c < end; ++c) out[t * out_stride + c - begin] += w.bias[c];
  }
}

}  // namespace

Rows RowsOf(const Tensor& tensor, uint32_t begin, uint32_t count) {
  return {F32(tensor) != nullptr ? F32Row(tensor, begin) : nullptr,
          Q8(tensor) != nullptr ? Q8Row(tensor, begin) : nullptr, count, tensor.cols};
}

Rows Slice(const Rows& rows, uint32_t begin, uint32_t count) {
  DCHECK(begin % kTileTokens == 0 && begin + count <= rows.count);
  Rows slice = {nullptr, nullptr, count, rows.cols};
  if (rows.f32 != nullptr) slice.f32 = rows.f32 + size_t{begin} * rows.cols;
  if (rows.q8 != nullptr) slice.q8 = rows.q8 + size_t{begin} * (rows.cols / kQuantBlock);
  if (rows.packed != nullptr) {
    slice.packed = static_cast<const std::byte*>(rows.packed) + PackedTokensBytes(begin, rows.cols);
  }
  return slice;
}

// An expert that has 13 rows has a tile of 16.
void CpuProducts::Expect(uint32_t rows, uint32_t cols, bool of_experts) {
  largest_packed_ =
      std::max(largest_packed_, PackedTokensBytes(uint64_t{rows} * (of_experts ? 2 : 1), cols));
}

Status CpuProducts::Warmup(Arena* arena) {
  if (quant_.pack_tokens == nullptr || largest_packed_ == 0) return OkStatus();
  ASSIGN_OR_RETURN(packed_, arena->Allocate(largest_packed_));
  return OkStatus();
}

void CpuProducts::Pack(std::span<Product> products) {
  if (packed_ == nullptr) return;
  size_t used = 0;
  for (Product& product : products) {
    const uint32_t tokens = MostTiledTokens(*product.weight, product.x.count);
    if (tokens == 0) continue;
    product.x.packed = packed_ + used;
    used += PackedTokensBytes(tokens, product.x.cols);
  }
  DCHECK(used <= largest_packed_);
  const auto pack = [&](const Product& product, uint32_t tokens, uint32_t begin, uint32_t end) {
    const Rows& x = product.x;
    quant_.pack_tokens(
        {x.q8, x.cols / kQuantBlock, tokens, x.cols, const_cast<void*>(x.packed), begin, end});
  };
  const auto tiles = [](uint32_t tokens) { return (tokens + kTileTokens - 1) / kTileTokens; };
  if (products.size() == 1) {
    const uint32_t tokens = MostTiledTokens(*products[0].weight, products[0].x.count);
    pool_.ParallelFor(tiles(tokens), 1, [&](uint32_t begin, uint32_t end, uint32_t) {
      pack(products[0], tokens, begin, end);
    });
    return;
  }
  pool_.ParallelFor(static_cast<uint32_t>(products.size()), 1,
                    [&](uint32_t begin, uint32_t end, uint32_t) {
                      for (uint32_t i = begin; i < end; ++i) {
                        const Product& product = products[i];
                        const uint32_t tokens = MostTiledTokens(*product.weight, product.x.count);
                        if (tokens > 0) pack(product, tokens, 0, tiles(tokens));
                      }
                    });
}

void CpuProducts::Panels(const CpuLinear& w, const Rows& x, uint32_t begin, uint32_t end,
                         float* out, size_t out_stride) const {
  uint32_t column = 0;
  for (const LinearPart& part : w.parts) {
    const uint32_t first = std::max(begin, part.panel_begin);
    const uint32_t last = std::min(end, part.panel_end());
    if (first >= last) continue;
    const size_t panel = first - part.panel_begin;
    const uint32_t rows = part.rows - static_cast<uint32_t>(panel) * kPanelRows;
    float* const y = out + column;
    if (part.floats != nullptr) {
      const size_t bytes = panel * kPanelRows * x.cols * WeightTypeBytes(part.type);
      kernels_.gemm({part.type, static_cast<const std::byte*>(part.floats) + bytes, rows, x.cols,
                     x.f32, x.cols, x.count, y, out_stride, 0, last - first});
    } else {
      quant_.gemm({part.format, part.quant + panel * part.format.panel_bytes(x.cols), x.cols, rows,
                   x.q8, x.cols / kQuantBlock, x.count, y, out_stride, 0, last - first, x.packed});
    }
    const uint32_t row_begin = part.RowOf(first), row_end = part.RowOf(last);
    if (!w.bias.empty()) AddBias(w, row_begin, row_end, x.count, y, out_stride);
    column += row_end - row_begin;
  }
}

void CpuProducts::Linear(const CpuLinear& w, Tensor x, Tensor out) {
  DCHECK(x.cols == w.in_features && out.cols == w.out_features && x.rows == out.rows);
  Product product = {&w, RowsOf(x, 0, x.rows)};
  Pack({&product, 1});
  pool_.ParallelFor(w.num_panels, pool_.Grain(w.num_panels, kPanelUnit),
                    [&](uint32_t begin, uint32_t end, uint32_t) {
                      Panels(w, product.x, begin, end, F32(out) + w.RowOf(begin), out.cols);
                    });
}

void CpuProducts::GateUp(const Product& product, HiddenAct act, Tensor out, uint32_t begin,
                         uint32_t end) const {
  const LinearPart& part = product.weight->parts[0];
  const Rows& x = product.x;
  const uint32_t blocks = out.cols / kQuantBlock;
  quant_.gate_up({part.format, part.quant, x.cols, out.cols, x.q8, x.cols / kQuantBlock, x.count,
                  Q8Row(out, product.first_row), blocks, begin, end, act, x.packed});
}

void CpuProducts::ActMul(HiddenAct act, Tensor gate_up, Tensor out) {
  const auto act_mul = act == HiddenAct::kSilu ? kernels_.silu_mul : kernels_.gelu_mul;
  ForRows(out.rows, [&](uint32_t begin, uint32_t end) {
    for (uint32_t t = begin; t < end; ++t) {
      float* const row = F32Row(gate_up, t);
      float* const result = F32(out) != nullptr ? F32Row(out, t) : row;  // in place of the gate
      act_mul(row, 1, out.cols, result);
      if (Q8(out) != nullptr) quant_.quantize(result, 1, out.cols, Q8Row(out, t));
    }
  });
}

void CpuProducts::LinearActMul(const CpuLinear& w, HiddenAct act, Tensor x, Tensor gate_up,
                               Tensor out) {
  if (!IsFused(w, out)) {
    Linear(w, x, gate_up);
    return ActMul(act, gate_up, out);
  }
  Product product = {&w, RowsOf(x, 0, x.rows)};
  Pack({&product, 1});
  const uint32_t blocks = out.cols / kQuantBlock;
  pool_.ParallelFor(blocks, pool_.Grain(blocks), [&](uint32_t begin, uint32_t end, uint32_t) {
    GateUp(product, act, out, begin, end);
  });
}

void CpuProducts::LinearActMuls(std::span<const Product> products, HiddenAct act, Tensor gate_up,
                                Tensor out) {
  const bool fused = std::all_of(products.begin(), products.end(), [&](const Product& product) {
    return IsFused(*product.weight, out);
  });
  // Of each product so many pieces: blocks of columns, or panels, of which those of more parts may
  // have one more.
  uint32_t each = fused ? out.cols / kQuantBlock : 0;
  for (const Product& product : products) {
    if (!fused) each = std::max(each, product.weight->num_panels);
  }
  const auto run = [&](const Product& product, uint32_t begin, uint32_t end) {
    if (fused) return GateUp(product, act, out, begin, end);
    const CpuLinear& w = *product.weight;
    Panels(w, product.x, begin, end, F32Row(gate_up, product.first_row) + w.RowOf(begin),
           gate_up.cols);
  };
  const uint32_t count = static_cast<uint32_t>(products.size()) * each;
  const uint32_t grain = std::min(pool_.Grain(count, fused ? 1 : kPanelUnit), each);
  pool_.ParallelFor(count, grain, [&](uint32_t begin, uint32_t end, uint32_t) {
    while (begin < end) {
      const uint32_t i = begin / each;
      const uint32_t last = std::min(end, (i + 1) * each);
      run(products[i], begin - i * each, last - i * each);
      begin = last;
    }
  });
  if (!fused) ActMul(act, gate_up, out);
}

}  // namespace flotilla::cpu
