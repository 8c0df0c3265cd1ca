// Every kernel's launcher, of the platform that this is compiled for. Their headers say what they
// compute; kernel_table.h is how the rest of the worker reaches them.
#pragma once

#include "worker_proc/cuda/kernels/kernel_table.h"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {

void RmsNorm(const RmsNormArgs& args, Stream stream);
void Embedding(const EmbeddingArgs& args, Stream stream);
void RopeKv(const RopeKvArgs& args, Stream stream);
void PagedAttention(const AttentionArgs& args, Stream stream);
void MmaAttention(const AttentionArgs& args, Stream stream);  // for PagedAttention
void ActMul(const ActMulArgs& args, Stream stream);
void Gemv(const GemvArgs& args, Stream stream);
void SkinnyGemm(const SkinnyGemmArgs& args, Stream stream);
void ResidentGemm(const SkinnyGemmArgs& args, Stream stream);  // for SkinnyGemm
void PackedGemm(const PackedGemmArgs& args, Stream stream);
void Expand(const ExpandArgs& args, Stream stream);
void PackedEmbedding(const PackedEmbeddingArgs& args, Stream stream);
void RouteTokens(const RouteArgs& args, Stream stream);
void ExpertGemm(const ExpertGemmArgs& args, Stream stream);
void CombineExperts(const CombineArgs& args, Stream stream);
void SelectRows(const SelectRowsArgs& args, Stream stream);
void SoftCap(const SoftCapArgs& args, Stream stream);
void GatherColumns(const GatherArgs& args, Stream stream);
void GatherAddNorm(const GatherAddNormArgs& args, Stream stream);
void InterleaveColumns(const InterleaveArgs& args, Stream stream);
void SearchRows(const SampleArgs& args, Stream stream);  // for SampleRows
void SampleRows(const SampleArgs& args, Stream stream);

const KernelTable& Kernels();

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
