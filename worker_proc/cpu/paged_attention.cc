#include "worker_proc/cpu/paged_attention.h"

#include <algorithm>
#include <cstring>

#include "worker_proc/runner/scratch.h"

namespace flotilla::cpu {
namespace {

constexpr uint32_t kPiecesAThread = 8;
constexpr uint32_t kMaxPartRows = 8192;  // a few MiB; beyond it keys are not cut
constexpr uint32_t kMergeRowsAPiece = 8;

}  // namespace

Status PagedAttention::Warmup(Arena* activations, uint32_t max_positions) {
  max_splits_ = (max_positions + kSplitKeys - 1) / kSplitKeys;
  for (uint32_t worker = 0; worker < pool_.threads(); ++worker) {
    ASSIGN_OR_RETURN(std::byte * scores,
                     activations->Allocate(kAttentionRows * kScoresStride * sizeof(float)));
    scratch_.push_back({reinterpret_cast<float*>(scores), nullptr, nullptr, {}, nullptr});
  }
  worker_floats_.resize(pool_.threads());
  return OkStatus();
}

Status PagedAttention::Allocate(const KvCacheShape& shape, uint32_t num_pages,
                                const Heartbeat& heartbeat) {
  if (type_ == KvType::kInt8 && shape.qk_dim > kMaxRotatedDim) {
    return absl::InvalidArgumentError(StrCat("--kv-cache-dtype int8: a head has ", shape.qk_dim,
                                             " dimensions, more than ", kMaxRotatedDim,
                                             "; use bfloat16"));
  }
  shape_ = shape;
  const KvGeometry kv = Geometry();
  const size_t heads = static_cast<size_t>(num_pages) * shape.num_kv_heads;
  layer_k_bytes_ = heads * kv.k_head_bytes();
  layer_bytes_ = layer_k_bytes_ + heads * kv.v_head_bytes();
  cache_ = Buffer();
  ASSIGN_OR_RETURN(cache_, Buffer::Create(shape.num_layers * layer_bytes_, "KV cache"));
  cache_.Touch(&pool_, heartbeat);
  return OkStatus();
}

void PagedAttention::PreparePlan(const PlanShape& shape) {
  items_.MakeRoom(shape.num_tokens, shape.num_seqs, max_part_rows_);
  MakeRoom(shape.num_tokens * straddling_cols_, &straddling_rows_);
}

void PagedAttention::Write(const AttentionLayer& layer, const AttentionContext& context, Tensor qkv,
                           uint32_t begin, uint32_t end) const {
  const size_t k_col = static_cast<size_t>(layer.num_heads) * layer.qk_dim;
  const size_t v_col = k_col + static_cast<size_t>(layer.num_kv_heads) * layer.qk_dim;
  const float* const rows = F32Row(qkv, begin);
  kernels_.write_kv({Geometry(), rows + k_col, rows + v_col, qkv.cols, context.slot_mapping + begin,
                     end - begin, KPages(layer.layer), VPages(layer.layer)});
}

AttentionArgs PagedAttention::Args(const AttentionLayer& layer, const AttentionContext& context,
                                   Tensor qkv) const {
  AttentionArgs args;
  args.kv = Geometry();
  args.num_heads = layer.num_heads;
  args.scale = layer.scale;
  args.softcap = layer.softcap;
  args.window = layer.window;
  args.q = F32(qkv);
  args.q_stride = qkv.cols;
  args.k_pages = KPages(layer.layer);
  args.v_pages = VPages(layer.layer);
  args.cu_q_lens = context.cu_q_lens;
  args.kv_lens = context.kv_lens;
  args.page_indices = context.page_indices;
  args.pages_per_seq = context.pages_per_seq;
  return args;
}

// Of each worker: an item's rows of out and q, the rows of a tile, a maximum and a sum each. Of the
// splits: enough for as many sequences of full length as there are pieces, within kMaxPartRows.
void PagedAttention::PrepareScratch(const AttentionLayer& layer) {
  const uint32_t group = layer.num_heads / layer.num_kv_heads;
  const size_t rows = size_t{MaxItemTokens(group)} * group;
  const size_t tile_floats = size_t{kAttentionRows} * layer.v_dim;
  const size_t floats = rows * (layer.v_dim + 2 + layer.qk_dim) + tile_floats;
  for (uint32_t worker = 0; worker < pool_.threads(); ++worker) {
    std::vector<float>& memory = worker_floats_[worker];
    if (memory.size() < floats) memory.resize(floats);
    float* const max = memory.data() + rows * layer.v_dim;
    scratch_[worker].part = {memory.data(), max, max + rows};
    scratch_[worker].tile_out = max + 2 * rows;
    scratch_[worker].q = scratch_[worker].tile_out + tile_floats;
  }
  max_part_rows_ = 0;
  if (pool_.threads() == 1 || max_splits_ == 1) return;
  const uint64_t wanted = uint64_t{pool_.threads()} * kPiecesAThread * max_splits_ * group;
  max_part_rows_ = static_cast<uint32_t>(std::min<uint64_t>(wanted, kMaxPartRows));
  const size_t part_floats = size_t{max_part_rows_} * (layer.v_dim + 2);
  if (part_floats_.size() < part_floats) part_floats_.resize(part_floats);
}

AttentionPart PagedAttention::Part(uint32_t row, uint32_t v_dim) {
  float* const max = part_floats_.data() + size_t{max_part_rows_} * v_dim;
  return {part_floats_.data() + size_t{row} * v_dim, max + row, max + max_part_rows_ + row};
}

void PagedAttention::Attend(const AttentionLayer& layer, const AttentionContext& context,
                            Tensor qkv, Tensor out) {
  PrepareScratch(layer);
  const uint32_t group = layer.num_heads / layer.num_kv_heads;
  const AttentionItems& items =
      items_.For({context.num_seqs, context.cu_q_lens, context.kv_lens, layer.num_kv_heads, group,
                  pool_.threads() * kPiecesAThread, layer.window, max_part_rows_});
  Target target{out, group * layer.v_dim, context.cu_q_lens};
  if (F32(out) == nullptr && target.cols % kQuantBlock != 0) {
    // Blocks straddle kv heads: whole rows in float first.
    straddling_cols_ = out.cols;
    straddling_rows_.resize(static_cast<size_t>(out.rows) * out.cols);
    straddling_ = {straddling_rows_.data(), Q8(out)};
    target.out.data = &straddling_;
  }
  const AttentionArgs args = Args(layer, context, qkv);
  pool_.ParallelFor(static_cast<uint32_t>(items.items.size()), 1,
                    [&](uint32_t begin, uint32_t end, uint32_t worker) {
                      for (uint32_t i = begin; i < end; ++i) {
                        RunItem(args, items.items, i, worker, target);
                      }
                    });
  pool_.ParallelFor(static_cast<uint32_t>(items.merges.size()), 1,
                    [&](uint32_t begin, uint32_t end, uint32_t) {
                      for (uint32_t i = begin; i < end; ++i) {
                        MergeParts(args, items.merges[i], target);
                      }
                    });
  if (F32(target.out) != nullptr && Q8(target.out) != nullptr) {
    QuantizeRows(target.out, context.num_tokens);
  }
}

void PagedAttention::RunItem(const AttentionArgs& args, const std::vector<AttentionItem>& items,
                             uint32_t i, uint32_t worker, const Target& target) {
  const AttentionItem& item = items[i];
  AttentionScratch scratch = scratch_[worker];
  // The threads take items in turn.
  if (i + pool_.threads() < items.size()) scratch.next = &items[i + pool_.threads()];
  if (item.split != kAllSplits) {
    scratch.part = Part(item.part_row, args.kv.v_dim);
    kernels_.attention(args, item, scratch);
    return;
  }
  kernels_.attention(args, item, scratch);
  Store(item, scratch.part.out, target);
}

void PagedAttention::MergeParts(const AttentionArgs& args, const AttentionItems::Merge& merge,
                                const Target& target) {
  const AttentionItem& item = merge.item;
  const uint32_t v_dim = args.kv.v_dim;
  const uint32_t rows =
      (item.token_end - item.token_begin) * (args.num_heads / args.kv.num_kv_heads);
  const AttentionPart into = Part(item.part_row, v_dim);
  for (uint32_t i = 1; i < merge.num_parts; ++i) {
    MergeAttention(Part(item.part_row + i * rows, v_dim), rows, v_dim, into);
  }
  FinishAttention(into, rows, v_dim);
  Store(item, into.out, target);
}

void PagedAttention::Store(const AttentionItem& item, const float* result,
                           const Target& target) const {
  const uint32_t cols = target.cols, first_token = target.cu_q_lens[item.seq];
  const size_t column = static_cast<size_t>(item.kv_head) * cols;
  for (uint32_t t = item.token_begin; t < item.token_end; ++t, result += cols) {
    if (F32(target.out) != nullptr) {
      std::memcpy(F32Row(target.out, first_token + t) + column, result, cols * sizeof(float));
    } else {
      quant_.quantize(result, 1, cols, Q8Row(target.out, first_token + t) + column / kQuantBlock);
    }
  }
}

void PagedAttention::QuantizeRows(Tensor out, uint32_t rows) const {
  pool_.ParallelFor(rows, std::max(kMergeRowsAPiece, pool_.Grain(rows)),
                    [&](uint32_t begin, uint32_t end, uint32_t) {
                      quant_.quantize(F32Row(out, begin), end - begin, out.cols, Q8Row(out, begin));
                    });
}

}  // namespace flotilla::cpu
