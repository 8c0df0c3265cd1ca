// Whole models whose matrices stay in their file's blocks on a CUDA device, emulated or real: bit
// for bit those whose matrices are expanded when they are loaded.
#include <gtest/gtest.h>

#include "tests/worker_proc/cuda/model_setup.h"
#include "worker_proc/cuda/kernels/packed_gemm.h"
#include "worker_proc/runner/weight_bytes.h"

namespace flotilla {
namespace {

using cuda::Element;
using cuda::testing::CudaModelTest;
using cuda::testing::ExpectEqualBits;
using cuda::testing::MayBeRanks;
using cuda::testing::ModelSetup;
using cuda::testing::Options;
using testing::DriverRequest;
using testing::PlanDriver;
using testing::RankThreads;
using testing::RankThreadsOptions;
using testing::TinyLlamaOptions;

// Matrices in blocks, of one type or of several side by side: by few rows, by as many as have them
// expanded, by graphs, and shared out among ranks.
TinyLlamaOptions PackedModel(DType matrices, DType embedding, bool tied) {
  TinyLlamaOptions options;
  options.matrix_dtype = matrices;
  options.embedding_dtype = embedding;
  options.tie_word_embeddings = tied;
  return options;
}
std::vector<ModelSetup> PackedSetups() {
  TinyLlamaOptions mixed = PackedModel(DType::kQ4_1, DType::kQ8_0, false);
  mixed.architecture = "qwen2";  // with biases
  mixed.other_dtypes = {{"attn_v", DType::kQ5_0},
                        {"blk.0.ffn_up", DType::kQ8_0},
                        {"blk.1.attn_output", DType::kBF16}};
  TinyLlamaOptions k_types = PackedModel(DType::kQ4_K, DType::kQ6_K, true);
  k_types.hidden_size = k_types.intermediate_size = 256;
  k_types.num_attention_heads = 4;
  k_types.num_key_value_heads = 2;
  k_types.head_dim = 64;
  k_types.other_dtypes = {{"attn_v", DType::kQ6_K}, {"ffn_down", DType::kQ5_K}};
  TinyLlamaOptions experts = PackedModel(DType::kQ4_1, DType::kQ8_0, false);  // which do not
  experts.architecture = "qwen3moe";
  experts.num_experts = 6;
  return {{"BFloat16_mixed", Element::kBFloat16, Element::kBFloat16, 0, mixed},
          {"BFloat16_experts", Element::kBFloat16, Element::kBFloat16, 0, experts},
          {"Float16_k_types", Element::kFloat16, Element::kFloat16, 0, k_types}};
}

using CudaPackedTest = CudaModelTest;
TEST_P(CudaPackedTest, MatricesThatStayPackedGiveTheSameBits) {
  struct Case {
    bool packed;
    uint32_t tp, chunk, at_once;
    cuda::GraphMode graph_mode;
  };
  constexpr uint32_t kLongest = 300;
  static_assert(kLongest > cuda::kMostPackedRows);
  std::vector<DriverRequest> expected;
  uint64_t expanded_bytes = 0;
  for (const Case& c : {Case{false, 1, 512, 8, cuda::GraphMode::kNone},
                        {true, 1, 512, 8, cuda::GraphMode::kNone},
                        {true, 1, 40, 3, cuda::GraphMode::kFull},
                        {true, 2, 512, 8, cuda::GraphMode::kNone}}) {
    if (!MayBeRanks(c.tp)) continue;
    SCOPED_TRACE(StrCat("packed ", c.packed, " tp ", c.tp, " chunk ", c.chunk));
    RankThreadsOptions options = Options({.dtype = GetParam().dtype,
                                          .kv_cache_dtype = GetParam().kv,
                                          .graph_mode = c.graph_mode,
                                          .cuda_graph_sizes = {1, 3, 8},
                                          .keep_packed = c.packed});
    options.tp = c.tp;
    options.chunked_prefill_size = 512;
    RankThreads ranks(checkpoint_.get(), options);
    const BackendMemory memory = ranks.backend().memory();
    if (c.tp == 1) {
      if (!c.packed) expanded_bytes = memory.weights;
      const double share = GetParam().model.num_experts > 0 ? 0.95 : 2.0 / 3;
      EXPECT_EQ(static_cast<double>(memory.weights) < expanded_bytes * share, c.packed);
      // Before they are loaded, about as many are expected; norms are floats then.
      const uint64_t expected_bytes = WeightBytesOfRank(*checkpoint_, ranks.backend(), 1);
      EXPECT_NEAR(static_cast<double>(memory.step_weights), expected_bytes, expected_bytes / 50.0);
    }
    std::vector<DriverRequest> requests = Requests();
    DriverRequest& longest = requests[0];
    while (longest.prompt.size() < kLongest) longest.prompt.push_back(longest.prompt.size() % 90);
    PlanDriver driver({.chunk_size = c.chunk, .at_once = c.at_once, .num_pages = ranks.num_pages()},
                      [&](const StepPlan& plan) { return ranks.Execute(plan); });
    driver.Run(&requests);
    EXPECT_EQ(ranks.backend().graph_steps().full > 0, c.graph_mode == cuda::GraphMode::kFull);
    if (expected.empty()) expected = requests;
    ExpectEqualBits(requests, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, CudaPackedTest, ::testing::ValuesIn(PackedSetups()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace flotilla
