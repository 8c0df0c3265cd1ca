// The whole model on a CUDA device, emulated or real: small random checkpoints of every
// architecture against a naive double-precision forward, and bit for bit over TP degree, chunk
// size, batch, page size and the order of (emulated) threads; SmolLM2 itself against the CPU's
// exact reference.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "tests/worker_proc/cuda/model_setup.h"
#include "tests/worker_proc/naive_llama.h"
#include "worker_proc/cuda/emulation/emulated_device.h"

namespace flotilla {
namespace {

using cuda::Element;
using cuda::testing::CudaModelTest;
using cuda::testing::ExpectEqualBits;
using cuda::testing::MayBeRanks;
using cuda::testing::ModelSetup;
using cuda::testing::NoDevice;
using cuda::testing::OpenBackend;
using cuda::testing::Options;
using testing::DriverRequest;
using testing::NaiveLlama;
using testing::PlanDriver;
using testing::RankThreads;
using testing::RankThreadsOptions;
using testing::TinyLlamaOptions;

// The weights are those of a file of 16 bits, so that what is seen is the arithmetic's error.
TinyLlamaOptions Model(const std::string& architecture, DType dtype = DType::kBF16) {
  TinyLlamaOptions options;
  options.architecture = architecture;
  options.matrix_dtype = options.embedding_dtype = dtype;
  if (architecture == "gemma3") options.num_hidden_layers = 6;  // the sixth is global
  return options;
}

// Mixtral's and Qwen3's experts, and of widths that the tensor cores don't take.
void AddExperts(std::vector<ModelSetup>* setups) {
  const auto add = [&](const std::string& name, const TinyLlamaOptions& model) {
    setups->push_back({"Float32" + name, Element::kFloat32, Element::kFloat32, 2e-5, model});
    setups->push_back({"BFloat16" + name, Element::kBFloat16, Element::kBFloat16, 0.1, model});
  };
  TinyLlamaOptions mixtral = Model("llama");
  mixtral.num_experts = 5;
  mixtral.num_experts_per_tok = 2;
  add("Mixtral", mixtral);
  TinyLlamaOptions qwen = Model("qwen3moe");
  qwen.num_experts = 12;
  qwen.num_experts_per_tok = 4;
  add("Qwen3Moe", qwen);
  qwen.hidden_size = 100;
  qwen.intermediate_size = 37;
  setups->push_back({"BFloat16OddQwen3Moe", Element::kBFloat16, Element::kBFloat16, 0.1, qwen});
}

std::vector<ModelSetup> Setups() {
  constexpr auto k32 = Element::kFloat32;
  constexpr auto kB16 = Element::kBFloat16;
  constexpr auto k16 = Element::kFloat16;
  std::vector<ModelSetup> setups;
  for (const char* name : {"llama", "qwen2", "qwen3", "gemma3"}) {
    setups.push_back({StrCat("Float32_", name), k32, k32, 2e-5, Model(name)});
    setups.push_back({StrCat("BFloat16_", name), kB16, kB16, 0.1, Model(name)});
  }
  setups.push_back({"Float16", k16, k16, 0.01, Model("llama", DType::kF16)});
  setups.push_back({"Float32OverBFloat16", k32, kB16, 0.05, Model("llama")});
  TinyLlamaOptions quantised;
  quantised.tie_word_embeddings = false;
  setups.push_back({"Float32OfQ4_1", k32, k32, 2e-5, quantised});
  TinyLlamaOptions gemma = Model("gemma3");
  gemma.softcap = 2;
  gemma.rope_scale = 4;
  gemma.sliding_window = 3;
  gemma.num_attention_heads = 4;
  gemma.num_key_value_heads = 1;
  setups.push_back({"Float32Gemma3SoftCapped", k32, k32, 2e-5, gemma});
  TinyLlamaOptions odd = Model("qwen3");
  odd.hidden_size = 100;
  odd.intermediate_size = 167;
  odd.head_dim = 20;
  setups.push_back({"Float32Odd", k32, k32, 2e-5, odd});
  setups.push_back({"BFloat16Odd", kB16, kB16, 0.1, odd});
  for (const char* name : {"granite", "smollm3", "gemma2", "phi3"}) {
    TinyLlamaOptions other = Model(name);
    other.num_hidden_layers = 4;  // SmolLM3's fourth does not rotate
    setups.push_back({StrCat("Float32_", name), k32, k32, 2e-5, other});
  }
  // Heads that the tensor cores take.
  TinyLlamaOptions wide = Model("qwen3");
  wide.head_dim = 64;
  setups.push_back({"BFloat16Heads64", kB16, kB16, 0.1, wide});
  wide.head_dim = 128;
  setups.push_back({"Float16Heads128", Element::kFloat16, Element::kFloat16, 0.02, wide});
  AddExperts(&setups);
  return setups;
}

TEST_P(CudaModelTest, LogitsAndEmbeddingsMatchTheNaiveForward) {
  const ModelSetup& setup = GetParam();
  for (const uint32_t tp : {1u, 2u}) {
    if (!MayBeRanks(tp)) continue;
    RankThreadsOptions options = Options({setup.dtype, setup.kv});
    options.tp = tp;
    RankThreads ranks(checkpoint_.get(), options);
    std::vector<DriverRequest> requests = {Requests()[3], Requests()[4]};
    requests[0].sampling.num_prompt_logprobs = 20;
    PlanDriver driver({.chunk_size = 16, .num_pages = ranks.num_pages()},
                      [&](const StepPlan& plan) { return ranks.Execute(plan); });
    driver.Run(&requests);
    const NaiveLlama naive(checkpoint_.get());
    const auto logits = naive.Forward(requests[0].prompt);
    double worst = 0;
    ASSERT_EQ(requests[0].prompt_logprobs.size(), logits.size() - 1);
    for (size_t i = 0; i + 1 < logits.size(); ++i) {
      double sum = 0;
      for (const double logit : logits[i]) sum += std::exp(logit);
      for (const TokenLogprob& entry : requests[0].prompt_logprobs[i].top) {
        const double exact = logits[i][static_cast<size_t>(entry.token)] - std::log(sum);
        worst = std::max(worst, std::abs(entry.logprob - exact));
      }
    }
    EXPECT_LT(worst, setup.worst_logit_error);
    EXPECT_GT(worst, setup.worst_logit_error / 50) << "the bound says nothing";
    const std::vector<double> exact = naive.Embedding(requests[1].prompt, true);
    ASSERT_EQ(requests[1].embedding.size(), exact.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(requests[1].embedding[i], exact[i], setup.worst_logit_error * 2);
    }
  }
}

TEST_P(CudaModelTest, SameBitsForAnyTpChunkBatchPageSizeAndOrderOfThreads) {
  struct Case {
    uint32_t tp, chunk, at_once, page_size;
    uint64_t seed;
    uint32_t draft_tokens = 0;
  };
  std::vector<DriverRequest> expected;
  for (const Case& c : {Case{1, 64, 8, 16, 1},
                        {1, 64, 8, 16, 2},
                        {1, 7, 2, 5, 3},
                        {2, 20, 3, 16, 4},
                        {3, 64, 4, 64, 5},
                        {1, 64, 4, 16, 7, 3}}) {
    if (!MayBeRanks(c.tp)) continue;
    SCOPED_TRACE(StrCat("tp ", c.tp, " chunk ", c.chunk, " at once ", c.at_once, " page ",
                        c.page_size, " seed ", c.seed, " draft ", c.draft_tokens));
    cuda::emulation::SetSeed(c.seed);
    RankThreadsOptions options = Options({GetParam().dtype, GetParam().kv});
    options.tp = c.tp;
    options.page_size = c.page_size;
    RankThreads ranks(checkpoint_.get(), options);
    std::vector<DriverRequest> requests = Requests();
    const auto vocab_size = static_cast<int32_t>(checkpoint_->config().vocab_size);
    requests[3].masked_vocab = checkpoint_->config().vocab_size;
    if (c.draft_tokens > 0) {
      EXPECT_GE(testing::GiveDrafts(expected, vocab_size, &requests), 4u);
    }
    size_t accepted = 0;
    PlanDriver driver({.chunk_size = c.chunk,
                       .at_once = c.at_once,
                       .page_size = c.page_size,
                       .num_pages = ranks.num_pages(),
                       .last_tokens = c.seed % 2 == 0,
                       .draft_tokens = c.draft_tokens},
                      [&](const StepPlan& plan) {
                        StepResult result = ranks.Execute(plan);
                        for (const RowResult& row : result.rows) accepted += row.accepted.size();
                        return result;
                      });
    driver.Run(&requests);
    EXPECT_EQ(accepted > 0, c.draft_tokens > 0);
    testing::ExpectWithinMasks(requests[3]);
    if (expected.empty()) {
      expected = requests;
      continue;
    }
    ExpectEqualBits(requests, expected);
  }
}

// Steps replayed from graphs, whole and in pieces, padded to their size or not at all.
TEST_P(CudaModelTest, GraphsGiveTheBitsOfEagerSteps) {
  std::vector<DriverRequest> expected;
  using enum cuda::GraphMode;
  for (const auto& [mode, tp, draft_tokens] :
       {std::tuple{kNone, 1u, 0u}, std::tuple{kFull, 1u, 0u}, std::tuple{kPiecewise, 1u, 0u},
        std::tuple{kFullDecodeOnly, 1u, 0u}, std::tuple{kFullAndPiecewise, 1u, 0u},
        std::tuple{kFull, 2u, 0u}, std::tuple{kFull, 1u, 3u}}) {
    if (!MayBeRanks(tp)) continue;
    SCOPED_TRACE(StrCat(cuda::GraphModeName(mode), " tp ", tp, " draft ", draft_tokens));
    RankThreadsOptions options = Options({.dtype = GetParam().dtype,
                                          .kv_cache_dtype = GetParam().kv,
                                          .graph_mode = mode,
                                          .cuda_graph_sizes = {1, 3, 8}});
    options.tp = tp;
    RankThreads ranks(checkpoint_.get(), options);
    std::vector<DriverRequest> requests = Requests();
    for (DriverRequest& request : requests) {
      if (!request.embed) request.max_new_tokens += 20;  // until prompts are no more
    }
    const auto vocab_size = static_cast<int32_t>(checkpoint_->config().vocab_size);
    if (draft_tokens > 0) {
      EXPECT_GE(testing::GiveDrafts(expected, vocab_size, &requests), 4u);
    }
    PlanDriver driver({.chunk_size = 6,
                       .at_once = 5,
                       .num_pages = ranks.num_pages(),
                       .draft_tokens = draft_tokens},
                      [&](const StepPlan& plan) { return ranks.Execute(plan); });
    driver.Run(&requests);
    const GraphSteps steps = ranks.backend().graph_steps();
    EXPECT_EQ(steps.full > 0,
              mode != cuda::GraphMode::kNone && mode != cuda::GraphMode::kPiecewise);
    EXPECT_EQ(steps.piecewise > 0,
              mode == cuda::GraphMode::kPiecewise || mode == cuda::GraphMode::kFullAndPiecewise);
    EXPECT_EQ(steps.padding_tokens > 0, mode != cuda::GraphMode::kNone);
    if (expected.empty()) {
      expected = requests;
      continue;
    }
    ExpectEqualBits(requests, expected);
  }
}

// The other rank has graphs, the new one none: neither may wait for what the other does not do.
using CudaRespawnTest = CudaModelTest;
TEST_P(CudaRespawnTest, ARankThatIsReplacedReplaysWithTheOther) {
  if (!MayBeRanks(2)) GTEST_SKIP() << "ranks are threads here";
  RankThreadsOptions options = Options({.dtype = GetParam().dtype,
                                        .kv_cache_dtype = GetParam().kv,
                                        .graph_mode = cuda::GraphMode::kFull,
                                        .cuda_graph_sizes = {1, 3, 8}});
  options.tp = 2;
  RankThreads ranks(checkpoint_.get(), options);
  std::vector<DriverRequest> expected;
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    if (epoch > 1) ranks.Respawn(epoch % 2, epoch);
    std::vector<DriverRequest> requests = Requests();
    const uint64_t before = ranks.backend().graph_steps().full;
    PlanDriver driver({.chunk_size = 6, .at_once = 5, .num_pages = ranks.num_pages()},
                      [&](const StepPlan& plan) { return ranks.Execute(plan); });
    driver.Run(&requests);
    EXPECT_GT(ranks.backend().graph_steps().full, epoch == 1 ? before : 0);
    if (epoch == 1) expected = requests;
    ExpectEqualBits(requests, expected);
  }
}

// Prompts' steps exchange by a library, which is said to be faster, graphs by memory; a rank that
// is new measures again with the other.
TEST_P(CudaRespawnTest, LargeExchangesByALibraryHaveTheBitsOfMemory) {
  if (!MayBeRanks(2)) GTEST_SKIP() << "ranks are threads here";
  std::atomic<uint32_t> asked = 0;
  std::vector<DriverRequest> expected;
  for (const bool two_ways : {false, true}) {
    cuda::CudaBackendOptions backend = {.dtype = GetParam().dtype,
                                        .kv_cache_dtype = GetParam().kv,
                                        .graph_mode = cuda::GraphMode::kFull,
                                        .cuda_graph_sizes = {1, 3, 8}};
    backend.exchange.least_by_library = 1024;
    backend.exchange.time_ns = [&](uint64_t, bool by_library) {
      ++asked;
      return by_library ? 1 : 10;
    };
    RankThreadsOptions options = Options(backend);
    options.tp = 2;
    options.make_backend = [backend, two_ways] {
      return cuda::MakeCudaBackend(cuda::MakeEmulatedDevice({.have_communicator = two_ways}),
                                   backend);
    };
    RankThreads ranks(checkpoint_.get(), options);
    uint32_t measured = 0;
    for (uint32_t epoch = 1; epoch <= 2; ++epoch) {
      if (epoch > 1) ranks.Respawn(1, epoch);
      EXPECT_EQ(asked > measured, two_ways);
      measured = asked;
      std::vector<DriverRequest> requests = Requests();
      PlanDriver driver({.chunk_size = 20, .at_once = 5, .num_pages = ranks.num_pages()},
                        [&](const StepPlan& plan) { return ranks.Execute(plan); });
      driver.Run(&requests);
      const GraphSteps steps = ranks.backend().graph_steps();
      EXPECT_GT(steps.full, 0u);
      EXPECT_GT(steps.eager, 0u);
      if (expected.empty()) expected = requests;
      ExpectEqualBits(requests, expected);
    }
  }
}

// Steps of one token by the matrix-vector kernel: other bits, the same logprobs.
TEST_P(CudaModelTest, OneTokenStepsMayTakeTheMatrixVectorKernel) {
  std::vector<std::vector<DriverRequest>> runs;
  for (const bool batch_invariant : {true, false}) {
    RankThreads ranks(checkpoint_.get(), Options({.dtype = GetParam().dtype,
                                                  .kv_cache_dtype = GetParam().kv,
                                                  .batch_invariant = batch_invariant}));
    EXPECT_EQ(std::string(ranks.backend().name()).ends_with("-gemv"), !batch_invariant);
    std::vector<DriverRequest> requests = {Requests()[2]};
    PlanDriver driver({.chunk_size = 1, .num_pages = ranks.num_pages()},
                      [&](const StepPlan& plan) { return ranks.Execute(plan); });
    driver.Run(&requests);
    runs.push_back(requests);
  }
  for (size_t i = 0; i < runs[0][0].prompt_logprobs.size(); ++i) {
    EXPECT_NEAR(runs[0][0].prompt_logprobs[i].logprob, runs[1][0].prompt_logprobs[i].logprob,
                GetParam().worst_logit_error * 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, CudaRespawnTest,
                         ::testing::Values(Setups().front(), Setups()[7]),  // BFloat16_gemma3
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Setups, CudaModelTest, ::testing::ValuesIn(Setups()),
                         [](const auto& info) { return info.param.name; });

// ---- SmolLM2 ----------------------------------------------------------------------------------

// Logits of every position of a text, in chunks.
std::vector<std::vector<float>> LogitsOf(const Checkpoint& checkpoint, Backend* backend,
                                         const std::vector<int32_t>& ids) {
  const auto collective = MakeSingleRankCollective();
  const Heartbeat heartbeat;
  const RealClock clock;
  std::vector<std::vector<float>> logits;
  ModelRunnerOptions options;
  options.context_length = 512;
  options.max_running_requests = 2;
  options.chunked_prefill_size = 16;
  options.available_memory = [] { return AvailableMemoryBytes(); };
  options.on_logits = [&](uint32_t, uint32_t, std::span<const float> row) {
    logits.emplace_back(row.begin(), row.end());
    return OkStatus();
  };
  auto runner = ModelRunner::Create({&checkpoint, backend, collective.get(), &heartbeat, &clock,
                                     *cpu::SelectSamplerKernels("auto")},
                                    options);
  CHECK_OK(runner.status());
  CHECK_OK((*runner)->AllocateKvCache(32));
  CHECK_OK((*runner)->Reset().status());
  std::vector<DriverRequest> requests(1);
  requests[0].prompt = ids;
  requests[0].max_new_tokens = 1;
  requests[0].sampling.temperature = 0;
  requests[0].sampling.num_prompt_logprobs = 1;
  PlanDriver driver({.chunk_size = 16, .num_pages = 32}, [&](StepPlan plan) {
    StepResult result;
    CHECK_OK((*runner)->Execute(&plan, &result));
    return result;
  });
  driver.Run(&requests);
  return logits;
}

// KL(exact || other) of the distributions that the logits mean.
double Divergence(const std::vector<float>& exact, const std::vector<float>& other) {
  const auto log_sum = [](const std::vector<float>& logits) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    return std::log(sum);
  };
  const double exact_sum = log_sum(exact);
  const double other_sum = log_sum(other);
  double kl = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double logprob = exact[i] - exact_sum;
    kl += std::exp(logprob) * (logprob - (other[i] - other_sum));
  }
  return kl;
}

TEST(CudaSmolLm2Test, TheWholeForwardIsThatOfTheExactReference) {
  if (const std::string reason = NoDevice(); !reason.empty()) GTEST_SKIP() << reason;
  const char* path = std::getenv("FLOTILLA_TEST_MODEL");
  ASSERT_NE(path, nullptr) << "FLOTILLA_TEST_MODEL is not set; ./flotilla test sets it";
  const auto checkpoint = OpenCheckpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  // "The capital of France is Paris. …": any text does.
  std::vector<int32_t> ids = {504,  3575, 282, 4649, 314, 7042, 30,  657,  314, 253,
                              2837, 282,  260, 905,  28,  284,  260, 2240, 282, 260};
  CpuBackendOptions exact_options;
  exact_options.kernels = *cpu::SelectKernels("auto");
  exact_options.quant_kernels = *cpu::SelectQuantKernels("auto");
  const auto exact_backend = MakeCpuBackend(exact_options);
  const auto exact = LogitsOf(**checkpoint, exact_backend.get(), ids);
  ASSERT_EQ(exact.size(), ids.size());
  struct Case {
    cuda::CudaBackendOptions options;
    double mean_kl;
  };
  const Case cases[] = {{{Element::kBFloat16, Element::kBFloat16}, 1e-3},
                        {{.dtype = Element::kFloat32, .kv_cache_dtype = Element::kFloat32}, 1e-8}};
  for (const Case& c : cases) {
    const auto backend = OpenBackend(c.options);
    const auto logits = LogitsOf(**checkpoint, backend.get(), ids);
    ASSERT_EQ(logits.size(), ids.size());
    double sum = 0;
    for (size_t i = 0; i < ids.size(); ++i) sum += Divergence(exact[i], logits[i]);
    const double mean = sum / static_cast<double>(ids.size());
    std::printf("%s: mean KL %.3g over %zu positions\n", backend->name(), mean, ids.size());
    EXPECT_LT(mean, c.mean_kl);
    EXPECT_GT(mean, 0) << "it can't be exact";
    if (c.options.dtype == Element::kFloat32) continue;
    cuda::CudaBackendOptions packed = c.options;
    packed.keep_packed = true;
    EXPECT_EQ(LogitsOf(**checkpoint, OpenBackend(packed).get(), ids), logits);
  }
}

}  // namespace
}  // namespace flotilla
