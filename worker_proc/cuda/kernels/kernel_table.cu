#include "worker_proc/cuda/kernels/kernel_table.h"

#include "worker_proc/cuda/kernels/launchers.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {

const KernelTable& Kernels() {
  static constexpr KernelTable kTable = {
      .rms_norm = RmsNorm,
      .embedding = Embedding,
      .rope_kv = RopeKv,
      .paged_attention = PagedAttention,
      .act_mul = ActMul,
      .gemv = Gemv,
      .skinny_gemm = SkinnyGemm,
      .packed_gemm = PackedGemm,
      .expand = Expand,
      .packed_embedding = PackedEmbedding,
      .route_tokens = RouteTokens,
      .expert_gemm = ExpertGemm,
      .combine_experts = CombineExperts,
      .select_rows = SelectRows,
      .soft_cap = SoftCap,
      .gather_columns = GatherColumns,
      .gather_add_norm = GatherAddNorm,
      .interleave_columns = InterleaveColumns,
      .sample_rows = SampleRows,
  };
  return kTable;
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
