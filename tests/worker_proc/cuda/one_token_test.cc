// Which kernels a step of one token takes, eager and from graphs of every mode: those that norm,
// add and rotate on their way, and none for that alone. Their bits are other tests'.
#include <gtest/gtest.h>

#include "tests/worker_proc/cuda/model_setup.h"
#include "worker_proc/cuda/emulation/emulated_device.h"

namespace flotilla {
namespace {

using cuda::Element;
using cuda::GraphMode;
using cuda::KernelTable;
using cuda::Stream;
using cuda::testing::CudaModelTest;
using cuda::testing::ModelSetup;
using cuda::testing::Options;
using testing::DriverRequest;
using testing::PlanDriver;
using testing::RankThreads;
using testing::TinyLlamaOptions;

// Of steps of one token; by a replay only what is between pieces of a graph.
struct Launches {
  uint32_t norms = 0, ropes = 0, rotating = 0, adding = 0, normed = 0;
};
Launches launches;

const KernelTable& CountingKernels() {
  static const KernelTable table = [] {
    KernelTable kernels = cuda::emulated::Kernels();
    kernels.rms_norm = [](const cuda::RmsNormArgs& args, Stream stream) {
      if (args.rows == 1) ++launches.norms;
      cuda::emulated::Kernels().rms_norm(args, stream);
    };
    kernels.rope_kv = [](const cuda::RopeKvArgs& args, Stream stream) {
      if (args.tokens == 1) ++launches.ropes;
      cuda::emulated::Kernels().rope_kv(args, stream);
    };
    kernels.paged_attention = [](const cuda::AttentionArgs& args, Stream stream) {
      if (args.rotates) ++launches.rotating;
      cuda::emulated::Kernels().paged_attention(args, stream);
    };
    kernels.skinny_gemm = [](const cuda::SkinnyGemmArgs& args, Stream stream) {
      if (args.matrix.adds) ++launches.adding;
      if (args.matrix.norm_weight != nullptr) ++launches.normed;
      cuda::emulated::Kernels().skinny_gemm(args, stream);
    };
    return kernels;
  }();
  return table;
}

constexpr uint32_t kLayers = 3;

ModelSetup Setup() {
  TinyLlamaOptions model;
  model.architecture = "qwen3";
  model.head_dim = 64;
  model.num_hidden_layers = kLayers;
  model.matrix_dtype = model.embedding_dtype = DType::kBF16;
  return {"qwen3", Element::kBFloat16, Element::kBFloat16, 0.1, model};
}

using OneTokenTest = CudaModelTest;
TEST_P(OneTokenTest, HasFiveLaunchesALayer) {
  using enum GraphMode;
  for (const GraphMode mode : {kNone, kFull, kPiecewise}) {
    SCOPED_TRACE(cuda::GraphModeName(mode));
    const cuda::CudaBackendOptions backend = {.graph_mode = mode, .cuda_graph_sizes = {1, 4}};
    flotilla::testing::RankThreadsOptions options = Options(backend);
    options.make_backend = [backend] {
      return cuda::MakeCudaBackend(cuda::MakeEmulatedDevice({}, CountingKernels()), backend);
    };
    launches = {};
    RankThreads ranks(checkpoint_.get(), options);
    std::vector<DriverRequest> requests = {Requests()[0]};  // one token long
    PlanDriver driver({.chunk_size = 1, .num_pages = ranks.num_pages()},
                      [&](const StepPlan& plan) { return ranks.Execute(plan); });
    driver.Run(&requests);
    const auto tokens = static_cast<uint32_t>(requests[0].output.size());
    ASSERT_GE(tokens, 3u);
    const GraphSteps steps = ranks.backend().graph_steps();
    EXPECT_EQ(mode == kNone ? steps.eager : mode == kFull ? steps.full : steps.piecewise, tokens);
    // Each forward but a replay adds twice a layer. Only the first norm and the last are kernels.
    const uint32_t forwards = launches.adding / (2 * kLayers);
    EXPECT_TRUE(mode == kNone ? forwards == tokens : forwards > 0) << forwards;
    EXPECT_EQ(launches.adding, forwards * 2 * kLayers);
    EXPECT_EQ(launches.normed, forwards * (2 * kLayers - 1));
    EXPECT_EQ(launches.norms, forwards * 2);
    EXPECT_EQ(launches.ropes, 0u);
    const uint32_t replayed = mode == kPiecewise ? tokens : 0;
    EXPECT_EQ(launches.rotating, (forwards + replayed) * kLayers);
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, OneTokenTest, ::testing::Values(Setup()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace flotilla
