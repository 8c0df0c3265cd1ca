// Our own kernels as one table of functions: those that nvcc compiled, or the same source emulated
// on the CPU. What each computes is in its header.
//
// Threads: as the stream's. Ownership: all memory is the caller's, where the platform's kernels
// reach it. Errors: none; shapes are checked when the model is loaded, and a launch that fails
// shows when the stream is waited for.
#pragma once

#include "worker_proc/cuda/kernels/act_mul.h"
#include "worker_proc/cuda/kernels/embedding.h"
#include "worker_proc/cuda/kernels/expert_gemm.h"
#include "worker_proc/cuda/kernels/gather.h"
#include "worker_proc/cuda/kernels/gemv.h"
#include "worker_proc/cuda/kernels/norm.h"
#include "worker_proc/cuda/kernels/packed_gemm.h"
#include "worker_proc/cuda/kernels/paged_attention.h"
#include "worker_proc/cuda/kernels/rope_kv.h"
#include "worker_proc/cuda/kernels/route.h"
#include "worker_proc/cuda/kernels/rows.h"
#include "worker_proc/cuda/kernels/sample.h"
#include "worker_proc/cuda/kernels/skinny_gemm.h"

namespace flotilla::cuda {

struct KernelTable {
  void (*rms_norm)(const RmsNormArgs&, Stream);
  void (*embedding)(const EmbeddingArgs&, Stream);
  void (*rope_kv)(const RopeKvArgs&, Stream);
  void (*paged_attention)(const AttentionArgs&, Stream);
  void (*act_mul)(const ActMulArgs&, Stream);
  void (*gemv)(const GemvArgs&, Stream);
  void (*skinny_gemm)(const SkinnyGemmArgs&, Stream);
  void (*packed_gemm)(const PackedGemmArgs&, Stream);
  void (*expand)(const ExpandArgs&, Stream);
  void (*packed_embedding)(const PackedEmbeddingArgs&, Stream);
  void (*route_tokens)(const RouteArgs&, Stream);
  void (*expert_gemm)(const ExpertGemmArgs&, Stream);
  void (*combine_experts)(const CombineArgs&, Stream);
  void (*select_rows)(const SelectRowsArgs&, Stream);
  void (*soft_cap)(const SoftCapArgs&, Stream);
  void (*gather_columns)(const GatherArgs&, Stream);
  void (*gather_add_norm)(const GatherAddNormArgs&, Stream);
  void (*interleave_columns)(const InterleaveArgs&, Stream);
  void (*sample_rows)(const SampleArgs&, Stream);
};

namespace gpu {
const KernelTable& Kernels();
}
namespace emulated {
const KernelTable& Kernels();
}

}  // namespace flotilla::cuda
