#include "worker_proc/cuda/cuda_attention.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

// Of parts of one kind of layer: rows that find no room are computed by one block each.
constexpr uint64_t kMaxPartBytes = uint64_t{64} << 20;

bool SameKind(const AttentionLayer& a, const AttentionLayer& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads && a.v_dim == b.v_dim &&
         a.window == b.window;
}

uint32_t Group(const AttentionLayer& layer) { return layer.num_heads / layer.num_kv_heads; }

}  // namespace

Status CudaAttention::Allocate(const KvCacheShape& shape, uint32_t num_pages) {
  if (shape.v_dim > kMaxHeadDim) {
    return absl::UnimplementedError(StrCat("heads of ", shape.v_dim,
                                           " dimensions; the CUDA backend "
                                           "has at most ",
                                           kMaxHeadDim));
  }
  cache_ = DeviceBuffer();  // the old one first
  ASSIGN_OR_RETURN(cache_, device_.Allocate(PageBytes(shape) * num_pages));
  shape_ = shape;
  num_pages_ = num_pages;
  return OkStatus();
}

KvPages CudaAttention::Pages(const AttentionLayer& layer) const {
  const uint64_t rows = uint64_t{num_pages_} * shape_.page_size * shape_.num_kv_heads;
  const uint64_t k_bytes = rows * shape_.qk_dim * ElementBytes(kv_type_);
  const uint64_t v_bytes = rows * shape_.v_dim * ElementBytes(kv_type_);
  std::byte* const k = cache_.data() + layer.layer * (k_bytes + v_bytes);
  return {k,           k + k_bytes, kv_type_, shape_.page_size, shape_.num_kv_heads, shape_.qk_dim,
          shape_.v_dim};
}

void CudaAttention::BeginStep(const ForwardBatch* batch, std::optional<PlanShape> fixed) {
  batch_ = batch;
  fixed_ = fixed;
  for (Kind& kind : kinds_) Plan(&kind);
}

RopeKvArgs CudaAttention::RopeArgs(const RopeTable& rope, const AttentionLayer& layer,
                                   RopeKvArgs args) const {
  args.num_heads = layer.num_heads;
  args.kv = Pages(layer);
  args.writes_kv = layer.writes_kv;
  args.table = static_cast<const CudaRope&>(rope).table.as<const float>();
  args.rope_dim = rope.spec.dim;
  args.interleaved = rope.spec.interleaved;
  return args;
}

Status CudaAttention::MakeRoom(Kind* kind) {
  const AttentionLayer& layer = kind->layer;
  const uint32_t group = Group(layer);
  const uint64_t splits = CeilDiv(bounds_.max_positions, kSplitKeys);
  const uint64_t row_bytes = uint64_t{layer.num_kv_heads} * (layer.v_dim + 2) * sizeof(float);
  const uint64_t rows = splits > 1 ? splits * bounds_.max_tokens * group : 0;
  kind->max_part_rows = static_cast<uint32_t>(std::min(rows, kMaxPartBytes / row_bytes));
  const AttentionBounds bounds = {bounds_.max_tokens, bounds_.max_seqs, group, kind->max_part_rows,
                                  HasMmaKernel(Pages(layer)) ? kNarrowItemRows : kItemRows};
  AttentionPlanInput input = InputOf(*kind);
  input.item_rows = bounds.item_rows;
  const uint32_t items =
      std::max(MaxAttentionItems(bounds), FixedItems(bounds_.max_tokens, bounds_.max_seqs, input));
  const uint64_t counters = uint64_t{MaxAttentionShares(bounds)} * layer.num_kv_heads;
  const uint64_t parts = uint64_t{kind->max_part_rows} * layer.num_kv_heads;
  const auto allocate = [&](uint64_t bytes) {
    plan_bytes_ += bytes;
    return device_.Allocate(bytes);
  };
  ASSIGN_OR_RETURN(kind->items, allocate(items * sizeof(AttentionItem)));
  ASSIGN_OR_RETURN(kind->counters, allocate(counters * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(kind->part_out, allocate(parts * layer.v_dim * sizeof(float)));
  ASSIGN_OR_RETURN(kind->part_max, allocate(parts * sizeof(float)));
  ASSIGN_OR_RETURN(kind->part_sum, allocate(parts * sizeof(float)));
  kind->plan.items.reserve(items);
  device_.UploadAll(std::vector<uint32_t>(counters), kind->counters);
  kind->plan.order.reserve(bounds_.max_seqs);
  kind->plan.counts.reserve(splits + 1);
  kind->plan.splits.reserve(items);
  return OkStatus();
}

StatusOr<CudaAttention::Kind*> CudaAttention::KindOf(const AttentionLayer& layer) {
  for (Kind& kind : kinds_) {
    if (SameKind(kind.layer, layer)) return &kind;
  }
  Kind kind;
  kind.layer = layer;
  RETURN_IF_ERROR(MakeRoom(&kind));
  kinds_.push_back(std::move(kind));
  Plan(&kinds_.back());
  return &kinds_.back();
}

// Graphs launch the kernel for decodes only, whatever their steps have.
uint32_t CudaAttention::ItemRows(const Kind& kind) const {
  if (!HasMmaKernel(Pages(kind.layer))) return kItemRows;
  return fixed_.has_value() ? kNarrowItemRows : kWideItemRows;
}

AttentionPlanInput CudaAttention::InputOf(const Kind& kind) const {
  return {.num_kv_heads = kind.layer.num_kv_heads,
          .group = Group(kind.layer),
          .window = kind.layer.window,
          .parallel_blocks = device_.parallel_blocks(),
          .max_part_rows = kind.max_part_rows,
          .item_rows = ItemRows(kind)};
}

void CudaAttention::Plan(Kind* kind) {
  AttentionPlanInput input = InputOf(*kind);
  input.num_seqs = batch_->num_seqs;
  input.cu_q_lens = batch_->cu_q_lens.data();
  input.kv_lens = batch_->kv_lens.data();
  input.pages_per_seq = batch_->pages_per_seq;
  if (fixed_.has_value()) {
    input.num_items = FixedItems(fixed_->num_tokens, fixed_->num_seqs, input);
  }
  MakeAttentionPlan(input, &kind->plan);
  device_.UploadAll(kind->plan.items, kind->items);
}

void CudaAttention::Attend(const AttentionLayer& layer, const AttentionContext& context, Tensor qkv,
                           Tensor out, const std::optional<RopeKvArgs>& rope) {
  const StatusOr<Kind*> found = KindOf(layer);
  if (!found.ok()) {
    error_ = found.status();
    return;
  }
  const Kind& kind = **found;
  AttentionArgs args;
  args.kv = Pages(layer);
  args.num_heads = layer.num_heads;
  args.scale = layer.scale;
  args.softcap = layer.softcap;
  args.window = layer.window;
  args.q = Floats(qkv);
  args.q_stride = qkv.cols;
  args.page_indices = context.page_indices;
  args.items = kind.items.as<const AttentionItem>();
  args.num_items = static_cast<uint32_t>(kind.plan.items.size());
  args.wide_items = kind.plan.wide_items;
  args.narrow_items = kind.plan.narrow_items;
  args.part_out = kind.part_out.as<float>();
  args.part_max = kind.part_max.as<float>();
  args.part_sum = kind.part_sum.as<float>();
  args.counters = kind.counters.as<uint32_t>();
  args.out = Data(out);
  args.out_type = TypeOf(out);
  args.rotates = rope.has_value();
  if (args.rotates) {
    args.rope = *rope;
    args.rope.positions = context.positions;
    args.rope.slot_mapping = context.slot_mapping;
  }
  device_.kernels().paged_attention(args, device_.stream());
}

}  // namespace flotilla::cuda
