// Attention by a backend's threads: one long sequence gives the same bits whether one thread
// computes it or several share its keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "tests/worker_proc/kernel_cases.h"
#include "worker_proc/cpu/cpu_backend.h"
#include "worker_proc/cpu/cpu_tensor.h"

namespace flotilla::cpu {
namespace {

constexpr uint32_t kKeys = 3000, kPageSize = 16, kPages = (kKeys + kPageSize - 1) / kPageSize;
constexpr uint32_t kQueries = 2;

// The last kQueries of kKeys tokens attend to all before.
std::vector<float> Attend(KvType type, uint32_t threads, uint32_t window) {
  CpuBackendOptions options;
  options.kernels = *SelectKernels("auto");
  options.quant_kernels = *SelectQuantKernels("auto");
  options.kv_cache_dtype = type;
  options.threads = {threads, 0};
  const auto backend = MakeCpuBackend(options);
  AttentionLayer layer;
  layer.num_heads = 4;
  layer.num_kv_heads = 1;
  layer.qk_dim = layer.v_dim = 32;
  layer.scale = 0.2f;
  layer.window = window;
  const Tensor qkv = *backend->NewTensor(TensorUse::kHidden, kKeys, layer.qkv_cols());
  const Tensor out = *backend->NewTensor(TensorUse::kHidden, kQueries, 4 * 32);
  CHECK_OK(backend->Warmup({kKeys, 1, kKeys, kPageSize}));
  CHECK_OK(backend->AllocateKvCache({1, kPageSize, 1, 32, 32}, kPages));
  const auto values = testing::RandomFloats(size_t{kKeys} * qkv.cols, 1);
  std::copy(values.begin(), values.end(), F32(qkv));
  ForwardBatch batch;
  batch.num_seqs = 1;
  batch.num_tokens = kKeys;
  batch.positions.assign(kKeys, 0);
  batch.out_cache_loc.resize(kKeys);
  std::iota(batch.out_cache_loc.begin(), batch.out_cache_loc.end(), 0);
  RopeSpec spec;
  spec.dim = 32;
  spec.max_positions = 1;
  const auto rope = *backend->MakeRope(spec);
  backend->RopeAndWriteKv({*rope, layer}, backend->BeginStep(batch), qkv);
  batch.num_tokens = kQueries;
  batch.cu_q_lens = {0, kQueries};
  batch.kv_lens = {kKeys};
  batch.pages_per_seq = kPages;
  batch.page_indices.resize(kPages);
  std::iota(batch.page_indices.begin(), batch.page_indices.end(), 0u);
  backend->RaggedPagedAttention(layer, backend->BeginStep(batch), qkv.First(kQueries), out);
  return {F32(out), F32(out) + kQueries * out.cols};
}

TEST(PagedAttentionTest, ThreadsThatShareALongSequenceChangeNoBit) {
  for (const KvType type : {KvType::kFloat32, KvType::kBFloat16, KvType::kInt8}) {
    for (const uint32_t window : {0u, 1500u}) {
      const std::vector<float> alone = Attend(type, 1, window);
      EXPECT_TRUE(std::any_of(alone.begin(), alone.end(), [](float x) { return x != 0; }));
      for (const uint32_t threads : {2u, 3u}) {
        EXPECT_TRUE(testing::SameBits(Attend(type, threads, window), alone))
            << "type " << static_cast<uint32_t>(type) << " threads " << threads;
      }
    }
  }
}

}  // namespace
}  // namespace flotilla::cpu
