// The whole model on small random checkpoints: against a naive double-precision forward, and bit
// for bit over TP degree, threads, instruction set, chunk size, batch and page size; in all
// arithmetics of the CPU backend and with every mixture of tensor types.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "tests/support/equal_bytes.h"
#include "tests/worker_proc/model_setups.h"
#include "tests/worker_proc/naive_llama.h"
#include "tests/worker_proc/plan_driver.h"
#include "tests/worker_proc/rank_threads.h"
#include "tests/worker_proc/tiles_emulated.h"
#include "worker_proc/cpu/sampler_kernels.h"

namespace flotilla {
namespace {

using testing::DriverRequest;
using testing::kFloat;
using testing::PlanDriver;
using testing::RankThreads;
using testing::RankThreadsOptions;
using testing::Setup;

class LlamaTest : public ::testing::Test {
 protected:
  void Open(const testing::TinyLlamaOptions& options = {}) {
    const std::string path = StrCat(::testing::TempDir(), "llama_test_", getpid(), ".gguf");
    testing::WriteTinyLlama(path, options);
    auto opened = OpenCheckpoint(path);
    CHECK_OK(opened.status());
    checkpoint_ = std::move(*opened);
    unlink(path.c_str());  // the mapping stays
  }

  // Prompts of mixed lengths, greedy and sampled, with penalties and without, all with logprobs.
  std::vector<DriverRequest> Requests() const {
    std::vector<DriverRequest> requests;
    std::mt19937 rng(4);
    for (const uint32_t length : {1u, 40u, 7u, 65u, 16u, 33u}) {
      DriverRequest request;
      for (uint32_t i = 0; i < length; ++i) {
        request.prompt.push_back(static_cast<int32_t>(rng() % checkpoint_->config().vocab_size));
      }
      request.max_new_tokens = 3 + length % 9;
      request.sampling.temperature = length % 2 == 0 ? 0.0f : 0.8f;
      request.sampling.top_p = 0.95f;
      request.sampling.seed = length;
      request.sampling.num_logprobs = 20;
      request.sampling.num_prompt_logprobs = 20;
      if (length < 40) {
        request.sampling.repetition_penalty = 1.5f;
        request.sampling.frequency_penalty = 0.7f;
        request.logit_bias = {{5, 2}, {50, -1}};
      }
      requests.push_back(std::move(request));
    }
    return requests;
  }
  // Both poolings of a prompt of three pages and of one of a single token.
  std::vector<DriverRequest> EmbedRequests() const {
    std::vector<DriverRequest> requests;
    for (size_t i = 0; i < 4; ++i) {
      DriverRequest& request = requests.emplace_back();
      request.prompt = Requests()[i / 2].prompt;
      request.max_new_tokens = 0;
      request.embed = true;
      request.mean = i % 2 == 1;
    }
    return requests;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
};

void ExpectSameBits(const std::vector<PositionLogprobs>& a,
                    const std::vector<PositionLogprobs>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token, b[i].token);
    EXPECT_EQ(a[i].rank, b[i].rank);
    EXPECT_TRUE(testing::EqualBytes(a[i].logprob, b[i].logprob));
    EXPECT_TRUE(testing::EqualBytes(a[i].top, b[i].top));
  }
}

struct Dump {
  uint32_t slot, position;
  std::vector<float> logits;
};
std::vector<Dump> ReadDump(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Dump> dumps;
  uint32_t header[4];
  while (file.read(reinterpret_cast<char*>(header), sizeof(header))) {
    Dump dump{header[0], header[1], std::vector<float>(header[2])};
    file.read(reinterpret_cast<char*>(dump.logits.data()),
              static_cast<std::streamsize>(header[2] * sizeof(float)));
    dumps.push_back(std::move(dump));
  }
  return dumps;
}

class LlamaSetupTest : public LlamaTest, public ::testing::WithParamInterface<Setup> {
 protected:
  void SetUp() override { Open(GetParam().model); }
  RankThreadsOptions Options(uint32_t tp) const {
    RankThreadsOptions options;
    options.tp = tp;
    options.dtype = GetParam().dtype;
    options.kv_cache_dtype = GetParam().kv;
    return options;
  }
};

TEST_P(LlamaSetupTest, LogitsMatchTheNaiveForward) {
  const std::string path =
      StrCat(::testing::TempDir(), "llama_test_logits_", getpid(), "_", GetParam().name);
  unlink(path.c_str());
  RankThreadsOptions options = Options(2);
  options.logits_dump = path;
  RankThreads ranks(checkpoint_.get(), options);
  std::vector<DriverRequest> requests = {Requests()[1]};
  PlanDriver driver({.chunk_size = 16, .num_pages = ranks.num_pages()},
                    [&](const StepPlan& plan) { return ranks.Execute(plan); });
  driver.Run(&requests);
  std::vector<int32_t> ids = requests[0].prompt;
  ids.insert(ids.end(), requests[0].output.begin(), requests[0].output.end());
  const auto exact = testing::NaiveLlama(checkpoint_.get()).Forward(ids);
  const std::vector<Dump> dumps = ReadDump(path);
  unlink(path.c_str());
  ASSERT_EQ(dumps.size(), ids.size() - 1);  // the last token sampled was never an input
  double worst = 0;
  for (size_t i = 0; i < dumps.size(); ++i) {
    ASSERT_EQ(dumps[i].position, i);
    for (size_t v = 0; v < exact[i].size(); ++v) {
      worst = std::max(worst, std::abs(dumps[i].logits[v] - exact[i][v]));
    }
  }
  EXPECT_LT(worst, GetParam().worst_logit_error);
  EXPECT_GT(worst, GetParam().worst_logit_error / 20) << "the bound says nothing";
}

TEST_P(LlamaSetupTest, EmbeddingsMatchTheNaiveForward) {
  RankThreads ranks(checkpoint_.get(), Options(2));
  std::vector<DriverRequest> requests = EmbedRequests();
  PlanDriver driver({.chunk_size = 16, .num_pages = ranks.num_pages()},
                    [&](const StepPlan& plan) { return ranks.Execute(plan); });
  driver.Run(&requests);
  for (const DriverRequest& request : requests) {
    const std::vector<double> exact =
        testing::NaiveLlama(checkpoint_.get()).Embedding(request.prompt, request.mean);
    ASSERT_EQ(request.embedding.size(), exact.size());
    double dot = 0, squares = 0, exact_squares = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      dot += exact[i] * request.embedding[i];
      squares += double{request.embedding[i]} * request.embedding[i];
      exact_squares += exact[i] * exact[i];
    }
    const double cosine = dot / std::sqrt(squares * exact_squares);
    const bool kv8 = GetParam().kv == testing::kKv8;
    EXPECT_GT(cosine, GetParam().dtype != kFloat ? 0.98 : kv8 ? 0.9998 : 0.99999) << request.mean;
    EXPECT_NEAR(squares / exact_squares, 1, GetParam().dtype != kFloat ? 0.1 : kv8 ? 1e-2 : 1e-3);
  }
}

TEST_P(LlamaSetupTest, SameBitsForAnyTpThreadsChunkBatchPageSizeAndIsa) {
  std::vector<DriverRequest> expected;
  uint64_t probe = 0;
  struct Case {
    uint32_t tp, chunk, at_once, page_size;
    std::string isa;
    uint32_t threads = 1;
    bool last_tokens = false;
    uint32_t draft_tokens = 0;
  };
  std::vector<Case> cases = {{1, 512, 8, 16, "reference"}};
  for (const std::string& isa : cpu::SupportedIsas()) {
    for (uint32_t tp = 1; tp <= 3; ++tp) cases.push_back({tp, tp == 2 ? 16u : 50u, tp, 16, isa});
  }
  cases.push_back({1, 512, 8, 16, "tiles"});
  cases.push_back({2, 50, 6, 16, "tiles", 2});
  cases.push_back({3, 50, 6, 16, "tiles"});
  cases.push_back({2, 3, 6, 5, "auto"});
  cases.push_back({3, 1, 2, 1, "auto"});
  cases.push_back({4, 20, 4, 16, "auto"});  // of models with fewer kv heads too
  cases.push_back({1, 512, 6, 64, "auto"});
  cases.push_back({1, 512, 6, 16, "auto", 2});
  cases.push_back({1, 40, 3, 16, "auto", 3});
  cases.push_back({2, 100, 6, 16, "auto", 2});
  cases.push_back({1, 40, 6, 16, "auto", 1, true});
  cases.push_back({3, 40, 6, 16, "auto", 1, true});
  cases.push_back({1, 40, 3, 16, "auto", 1, false, 5});
  cases.push_back({2, 40, 6, 4, "auto", 2, true, 3});
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat("tp ", c.tp, " chunk ", c.chunk, " at once ", c.at_once, " page ",
                        c.page_size, " isa ", c.isa, " threads ", c.threads, " last tokens ",
                        c.last_tokens, " draft ", c.draft_tokens));
    RankThreadsOptions options = Options(c.tp);
    options.threads = c.threads;
    options.isa = c.isa == "tiles" ? "avx2" : c.isa;
    if (c.isa == "tiles") options.quant_kernels = cpu::testing::EmulatedTilesAvx2().table;
    const uint64_t products = *cpu::testing::EmulatedTilesAvx2().products;
    options.page_size = c.page_size;
    RankThreads ranks(checkpoint_.get(), options);
    std::vector<DriverRequest> requests = Requests();
    for (DriverRequest& each : EmbedRequests()) requests.push_back(std::move(each));
    const auto vocab_size = static_cast<int32_t>(checkpoint_->config().vocab_size);
    requests[3].masked_vocab = checkpoint_->config().vocab_size;
    if (c.draft_tokens > 0) {
      EXPECT_GE(testing::GiveDrafts(expected, vocab_size, &requests), 2u);
    }
    size_t accepted = 0;
    PlanDriver driver({.chunk_size = c.chunk,
                       .at_once = c.at_once,
                       .page_size = c.page_size,
                       .num_pages = ranks.num_pages(),
                       .last_tokens = c.last_tokens,
                       .draft_tokens = c.draft_tokens},
                      [&](const StepPlan& plan) {
                        StepResult result = ranks.Execute(plan);
                        for (const RowResult& row : result.rows) accepted += row.accepted.size();
                        return result;
                      });
    driver.Run(&requests);
    EXPECT_EQ(accepted > 0, c.draft_tokens > 0);
    if (c.isa == "tiles") {
      const bool ran = *cpu::testing::EmulatedTilesAvx2().products > products;
      EXPECT_EQ(ran,
                GetParam().dtype != kFloat && GetParam().name != "Int8WithoutAQuantisedMatrix");
    }
    testing::ExpectWithinMasks(requests[3]);
    if (expected.empty()) {
      expected = requests;
      probe = ranks.probe_hash();
      continue;
    }
    EXPECT_EQ(ranks.probe_hash(), probe);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(requests[i].output, expected[i].output) << "request " << i;
      ExpectSameBits(requests[i].logprobs, expected[i].logprobs);
      ExpectSameBits(requests[i].prompt_logprobs, expected[i].prompt_logprobs);
      EXPECT_EQ(requests[i].prompt_logprobs.size(),
                requests[i].embed ? 0 : requests[i].prompt.size() - 1);
      EXPECT_EQ(requests[i].embedding_bits(), expected[i].embedding_bits()) << "request " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, LlamaSetupTest, ::testing::ValuesIn(testing::Setups()),
                         [](const auto& info) { return info.param.name; });

// Pages computed by one request serve another that starts behind them.
void ExpectPrefixHitGivesTheSameBits(RankThreads& ranks) {
  std::vector<int32_t> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(3 + i * 5);
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.num_logprobs = 20;
  StepPlan cold;
  cold.opens = {{0, 0, sampling}};
  cold.rows = {{0, 0, 40, 3, kRowSample, -1}};
  cold.input_ids = ids;
  cold.new_pages = {8, 2, 5};
  const StepResult first = ranks.Execute(cold);
  StepPlan hit;
  hit.opens = {{1, 0, sampling}};
  hit.rows = {{1, 32, 8, 3, kRowSample, -1}};
  hit.input_ids.assign(ids.begin() + 32, ids.end());
  hit.new_pages = {8, 2, 11};
  const StepResult second = ranks.Execute(hit);
  EXPECT_EQ(first.rows[0].token, second.rows[0].token);
  ExpectSameBits({first.rows[0].logprobs}, {second.rows[0].logprobs});
}

TEST_F(LlamaTest, APrefixHitGivesTheSameBits) {
  Open();
  for (const auto kv : {testing::kKv32, testing::kKv16, testing::kKv8}) {
    RankThreads ranks(checkpoint_.get(), {.tp = 1, .kv_cache_dtype = kv});
    ExpectPrefixHitGivesTheSameBits(ranks);
  }
}

// After a retraction the output so far is computed again as part of the prompt, from the start or
// behind a prefix hit.
TEST_F(LlamaTest, PenaltiesGoOnOverARetraction) {
  Open();
  RankThreads ranks(checkpoint_.get(), {.tp = 1});
  std::vector<int32_t> ids(20, 7);
  SamplingParams sampling;
  sampling.temperature = 0.9f;
  sampling.presence_penalty = 1;
  sampling.frequency_penalty = 0.5f;
  sampling.repetition_penalty = 1.3f;
  // The tokens from `from` on that the slot does not have yet, then the next one.
  const auto step = [&](uint32_t slot, uint32_t from, std::vector<uint32_t> pages,
                        std::vector<PlanOpen> opens, std::vector<int32_t> history) {
    StepPlan plan;
    plan.opens = std::move(opens);
    plan.history = std::move(history);
    plan.input_ids.assign(ids.begin() + from, ids.end());
    plan.rows = {{slot, from, static_cast<uint32_t>(plan.input_ids.size()),
                  static_cast<uint32_t>(pages.size()), kRowSample, -1}};
    plan.new_pages = std::move(pages);
    return ranks.Execute(plan).rows[0].token;
  };
  ids.push_back(step(0, 0, {4, 9}, {{0, 20, sampling}}, {}));
  for (uint32_t i = 20; i < 31; ++i) ids.push_back(step(0, i, {}, {}, {}));
  const std::vector<int32_t> undisturbed = ids;
  ids.resize(26);
  for (const uint32_t prefix : {0u, 16u}) {
    const std::vector<int32_t> history(ids.begin(), ids.begin() + prefix);
    const std::vector<uint32_t> pages =
        prefix == 0 ? std::vector<uint32_t>{1, 2} : std::vector<uint32_t>{4, 3};
    ids.push_back(step(1, prefix, pages, {{1, 20, sampling, 0, prefix}}, history));
    for (uint32_t i = 26; i < 31; ++i) ids.push_back(step(1, i, {}, {}, {}));
    EXPECT_EQ(ids, undisturbed);
    ids.resize(26);
  }
  // It matters where the output begins.
  ids.push_back(step(1, 0, {1, 2}, {{1, 26, sampling}}, {}));
  for (uint32_t i = 26; i < 31; ++i) ids.push_back(step(1, i, {}, {}, {}));
  EXPECT_NE(ids, undisturbed);
}

TEST_F(LlamaTest, EachRankReadsOnlyItsRows) {
  Open();
  std::vector<uint64_t> read;
  for (uint32_t tp = 1; tp <= 3; ++tp) {
    RankThreads ranks(checkpoint_.get(), {.tp = tp});
    uint64_t sum = 0;
    for (uint32_t r = 0; r < tp; ++r) sum += ranks.runner(r).weight_bytes_read();
    read.push_back(sum);
  }
  uint64_t matrices = 0;
  uint64_t norms = 0;
  for (const TensorView& view : checkpoint_->tensors()) {
    (view.rows == 1 ? norms : matrices) += view.data.size();
  }
  // Norms are read by all, matrices once (the tied embedding as head; as embedding by row, lazily).
  for (uint32_t tp = 1; tp <= 3; ++tp) EXPECT_EQ(read[tp - 1], matrices + tp * norms);
}

// A kv head that ranks share is in the cache of each, and so are the rows that make it.
TEST_F(LlamaTest, RanksThatShareAKvHeadHoldItEach) {
  testing::TinyLlamaOptions model;
  model.num_attention_heads = 8;
  model.num_key_value_heads = 2;
  Open(model);
  RankThreads alone(checkpoint_.get(), {.tp = 1});
  RankThreads ranks(checkpoint_.get(), {.tp = 3});
  uint64_t read = 0;
  for (uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks.runner(r).kv_page_bytes() * 2, alone.runner().kv_page_bytes());
    read += ranks.runner(r).weight_bytes_read();
  }
  EXPECT_EQ(ranks.num_pages(), alone.num_pages() * 2 / 3) << "of the same memory";
  uint64_t twice = 0;  // half of k and v, and all norms three times
  for (const TensorView& view : checkpoint_->tensors()) {
    const std::string name(view.name);
    const bool kv = name.find("k_proj") != name.npos || name.find("v_proj") != name.npos;
    if (kv) twice += view.data.size() / 2;
    if (view.rows == 1) twice += view.data.size() * 2;
  }
  EXPECT_EQ(read, alone.runner().weight_bytes_read() + twice);
}

TEST_F(LlamaTest, AnIllegalPlanIsRefusedAndTheModelGoesOn) {
  Open();
  RankThreads ranks(checkpoint_.get(), {.tp = 1});
  StepPlan plan;
  plan.rows = {{3, 0, 1, 1, kRowSample, -1}};
  plan.input_ids = {1};
  plan.new_pages = {0};
  StepResult result;
  EXPECT_EQ(ranks.runner().Execute(&plan, &result).code(), absl::StatusCode::kInvalidArgument);
  plan.opens = {{3, 0, {}}};
  EXPECT_TRUE(ranks.runner().Execute(&plan, &result).ok());
  EXPECT_EQ(result.rows.size(), 1u);
}

// The other ranks keep their KV cache while one is away, so memory looks scarcer on its return.
TEST_F(LlamaTest, ARespawnedRankTakesTheNumberOfPagesAlreadyChosen) {
  Open();
  const auto backend = MakeCpuBackend(
      {.kernels = *cpu::SelectKernels("auto"), .quant_kernels = *cpu::SelectQuantKernels("auto")});
  const auto collective = MakeSingleRankCollective();
  const Heartbeat heartbeat;
  const RealClock clock;
  const ModelRunner::Deps deps{checkpoint_.get(), backend.get(), collective.get(),
                               &heartbeat,        &clock,        &cpu::Avx2SamplerKernels()};
  ModelRunnerOptions options;
  options.kv_cache_memory = 64 << 20;
  options.available_memory = [] { return uint64_t{32} << 20; };
  EXPECT_FALSE(ModelRunner::Create(deps, options).ok());
  EXPECT_EQ(backend->memory().weights, 0u) << "refused before anything is loaded";
  options.kv_pages_chosen = true;
  const auto runner = ModelRunner::Create(deps, options);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const uint64_t fits = (uint64_t{32} << 20) / (*runner)->kv_page_bytes();
  EXPECT_EQ((*runner)->AllocateKvCache(static_cast<uint32_t>(fits) + 1).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ((*runner)->Reset().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE((*runner)->AllocateKvCache(static_cast<uint32_t>(fits)).ok());
  EXPECT_TRUE((*runner)->Reset().ok());
}

TEST_F(LlamaTest, UnknownTensorsAndBadOptionsAreRefused) {
  testing::TinyLlamaOptions options;
  testing::GgufBuilder builder = testing::TinyLlama(options);
  builder.AddMatrix("rope_phases.weight", 0, 8, DType::kF32, std::vector<float>(8, 1.0f));
  const std::string path = StrCat(::testing::TempDir(), "llama_test_extra_", getpid(), ".gguf");
  testing::WriteBytes(path, builder.Build());
  const auto opened = OpenCheckpoint(path);
  unlink(path.c_str());
  const auto backend = MakeCpuBackend(
      {.kernels = *cpu::SelectKernels("auto"), .quant_kernels = *cpu::SelectQuantKernels("auto")});
  const auto collective = MakeSingleRankCollective();
  const Heartbeat heartbeat;
  const RealClock clock;
  ModelRunnerOptions runner;
  runner.available_memory = [] { return uint64_t{1} << 30; };
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(opened.status().message().find("rope_phases"), std::string::npos) << opened.status();
  Open();
  const ModelRunner::Deps deps{checkpoint_.get(), backend.get(), collective.get(),
                               &heartbeat,        &clock,        &cpu::Avx2SamplerKernels()};
  runner.context_length = 513;  // the model has 512
  EXPECT_EQ(ModelRunner::Create(deps, runner).status().code(), absl::StatusCode::kInvalidArgument);
  runner.context_length = 0;
  runner.available_memory = [] { return uint64_t{1000}; };
  const auto small = ModelRunner::Create(deps, runner);
  EXPECT_EQ(small.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(small.status().message().find("too little memory"), std::string::npos);
}

}  // namespace
}  // namespace flotilla
