// Steps that are begun while the device still has the one before: the same tokens and logprobs bit
// for bit as steps that wait for each other, whatever is asked of them, with slots and pages that
// change hands in between. The queue of the emulated device starts kernels early besides.
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "tests/fakes/gguf_builder.h"
#include "tests/worker_proc/plan_driver.h"
#include "tests/worker_proc/rank_threads.h"
#include "worker_proc/cuda/cuda_backend.h"
#include "worker_proc/cuda/emulation/block.h"
#include "worker_proc/cuda/emulation/emulated_device.h"

namespace flotilla {
namespace {

using cuda::Element;
using cuda::GraphMode;
using testing::DriverRequest;
using testing::PlanDriver;
using testing::RankThreads;
using testing::RankThreadsOptions;

class StepsAheadTest : public ::testing::Test {
 protected:
  StepsAheadTest() {
    testing::TinyLlamaOptions model;
    model.architecture = "qwen3";
    model.head_dim = 64;
    model.matrix_dtype = model.embedding_dtype = DType::kBF16;
    const std::string path = StrCat(::testing::TempDir(), "steps_ahead_", getpid(), ".gguf");
    testing::WriteTinyLlama(path, model);
    auto opened = OpenCheckpoint(path);
    CHECK_OK(opened.status());
    checkpoint_ = std::move(*opened);
    unlink(path.c_str());  // the mapping stays
  }

  std::unique_ptr<RankThreads> Ranks(GraphMode mode, uint32_t tp = 1,
                                     const cuda::EmulatedLinks& links = {}) const {
    return Ranks(tp, [mode, links] { return MakeBackend(mode, {1, 4}, links); });
  }
  std::unique_ptr<RankThreads> Ranks(uint32_t tp,
                                     std::function<std::unique_ptr<Backend>()> backend) const {
    RankThreadsOptions options;
    options.tp = tp;
    options.max_running_requests = 4;
    options.chunked_prefill_size = 32;
    options.make_backend = std::move(backend);
    return std::make_unique<RankThreads>(checkpoint_.get(), options);
  }
  static std::unique_ptr<Backend> MakeBackend(GraphMode mode,
                                              const std::vector<uint32_t>& cuda_graph_sizes,
                                              const cuda::EmulatedLinks& links = {}) {
    return cuda::MakeCudaBackend(
        cuda::MakeEmulatedDevice(links),
        {Element::kBFloat16, Element::kBFloat16, true, mode, cuda_graph_sizes});
  }

  DriverRequest Request(uint32_t length, uint32_t max_new_tokens) {
    DriverRequest request;
    for (uint32_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<int32_t>(rng_() % checkpoint_->config().vocab_size));
    }
    request.max_new_tokens = max_new_tokens;
    request.sampling.temperature = length % 2 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = length;
    if (length % 3 == 0) request.sampling.num_logprobs = 3;
    if (length == 4) request.sampling.num_prompt_logprobs = 2;
    return request;
  }
  // Of many lengths; short ones leave their slots and pages soon.
  std::vector<DriverRequest> Requests() {
    std::vector<DriverRequest> requests;
    for (const uint32_t length : {1u, 40u, 7u, 15u, 2u, 33u, 9u, 4u}) {
      requests.push_back(Request(length, 1 + length % 6));
    }
    return requests;
  }

  static PlanDriver Driver(RankThreads* ranks, bool last_tokens) {
    return {{.chunk_size = 20, .at_once = 4, .num_pages = 40, .last_tokens = last_tokens},
            [ranks](const StepPlan& plan) { return ranks->Execute(plan); }};
  }
  static uint32_t RunAhead(RankThreads* ranks, std::vector<DriverRequest>* requests) {
    ModelRunner& runner = ranks->runner();
    PlanDriver driver = Driver(ranks, true);
    return driver.RunAhead(
        requests,
        [&](StepPlan* plan, StepResult* result) {
          const StatusOr<bool> begun = runner.Begin(plan, result);
          CHECK_OK(begun.status());
          return *begun;
        },
        [&] {
          while (!*runner.Done()) {
          }
          CHECK_OK(runner.End());
        });
  }

  static void ExpectEqual(const std::vector<DriverRequest>& got,
                          const std::vector<DriverRequest>& expected) {
    const auto bits = [](const std::vector<PositionLogprobs>& positions) {
      std::vector<std::pair<int32_t, float>> all;
      for (const PositionLogprobs& p : positions) {
        all.emplace_back(p.token, p.logprob);
        for (const TokenLogprob& top : p.top) all.emplace_back(top.token, top.logprob);
      }
      return all;
    };
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].output.size(), got[i].embed ? 0 : got[i].max_new_tokens) << i;
      EXPECT_EQ(got[i].output, expected[i].output) << i;
      EXPECT_EQ(bits(got[i].logprobs), bits(expected[i].logprobs)) << i;
      EXPECT_EQ(bits(got[i].prompt_logprobs), bits(expected[i].prompt_logprobs)) << i;
      EXPECT_EQ(got[i].embedding_bits(), expected[i].embedding_bits()) << i;
    }
  }

  std::mt19937 rng_{5};
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(StepsAheadTest, HaveTheBitsOfStepsThatWait) {
  const std::vector<DriverRequest> requests = Requests();
  for (const GraphMode mode : {GraphMode::kNone, GraphMode::kFull}) {
    cuda::emulation::SetSeed(3);
    const auto ranks = Ranks(mode);
    std::vector<DriverRequest> expected = requests;
    const uint32_t steps = Driver(ranks.get(), false).Run(&expected);
    std::vector<DriverRequest> got = requests;
    EXPECT_EQ(RunAhead(ranks.get(), &got), steps - 1) << "all but the first";
    ExpectEqual(got, expected);
  }
}

// Penalties count the tokens, hidden states come to the host, logprobs of a long prompt take more
// rows than the head has at once: such steps wait for those before.
TEST_F(StepsAheadTest, WhatNeedsTheStepBeforeIsExecutedBehindIt) {
  std::vector<DriverRequest> requests = Requests();
  requests[1].sampling.num_prompt_logprobs = 2;
  requests[2].sampling.frequency_penalty = 0.5f;
  requests[4].embed = requests[4].mean = true;
  requests[4].max_new_tokens = 0;
  requests[6].embed = true;
  requests[6].max_new_tokens = 0;
  const auto ranks = Ranks(GraphMode::kFull);
  std::vector<DriverRequest> expected = requests;
  const uint32_t steps = Driver(ranks.get(), false).Run(&expected);
  std::vector<DriverRequest> got = requests;
  const uint32_t ahead = RunAhead(ranks.get(), &got);
  EXPECT_GT(ahead, 0u);
  EXPECT_LT(ahead, steps - 1);
  ExpectEqual(got, expected);
}

// A plan that the slots refuse changes nothing, and is refused as Execute refuses it.
TEST_F(StepsAheadTest, APlanThatDoesNotFitIsRefusedAndNothingHasBegun) {
  const auto ranks = Ranks(GraphMode::kNone);
  ModelRunner& runner = ranks->runner();
  StepPlan plan;
  plan.rows.emplace_back().num_tokens = 1;  // of a slot that is not open
  plan.input_ids = {1};
  StepResult result;
  EXPECT_TRUE(absl::IsInvalidArgument(runner.Begin(&plan, &result).status()));
  EXPECT_EQ(runner.num_begun(), 0u);
  StepPlan unsampled;
  unsampled.opens.emplace_back();
  PlanRow& row = unsampled.rows.emplace_back();
  row.num_tokens = row.num_new_pages = row.start_pos = 1;
  unsampled.input_ids = {kLastToken};
  unsampled.new_pages = {0};
  EXPECT_TRUE(absl::IsInvalidArgument(runner.Begin(&unsampled, &result).status()));
  EXPECT_EQ(runner.num_begun(), 0u);
  std::vector<DriverRequest> requests = Requests();
  std::vector<DriverRequest> expected = requests;
  Driver(ranks.get(), false).Run(&expected);
  RunAhead(ranks.get(), &requests);
  ExpectEqual(requests, expected);
}

// Ranks exchange through what a step's end orders; the CPU samples on the host: both wait.
TEST_F(StepsAheadTest, SeveralRanksAndTheCpuExecute) {
  StepPlan plan;
  plan.opens.emplace_back();
  PlanRow& row = plan.rows.emplace_back();
  row.num_tokens = row.num_new_pages = 1;
  row.flags = kRowSample;
  plan.input_ids = {1};
  plan.new_pages = {0};
  StepResult result;
  const auto two = Ranks(GraphMode::kNone, 2);
  EXPECT_FALSE(*two->runner().Begin(&plan, &result));
  RankThreads cpu(checkpoint_.get(), RankThreadsOptions());
  EXPECT_FALSE(*cpu.runner().Begin(&plan, &result));
}

// Ranks that do not reach each other's memory: by a communicator, without graphs, with the bits of
// one rank; in the next epoch too.
TEST_F(StepsAheadTest, RanksWithACommunicatorHaveTheBitsOfOne) {
  const std::vector<DriverRequest> requests = Requests();
  std::vector<DriverRequest> expected = requests;
  const auto one = Ranks(GraphMode::kNone);
  Driver(one.get(), false).Run(&expected);
  const auto two = Ranks(GraphMode::kAuto, 2, {.share_memory = false, .have_communicator = true});
  for (uint32_t epoch = 1; epoch <= 2; ++epoch) {
    if (epoch == 2) two->Respawn(1, epoch);
    std::vector<DriverRequest> got = requests;
    Driver(two.get(), true).Run(&got);
    EXPECT_EQ(two->backend().graph_steps().full, 0u);
    EXPECT_GT(two->backend().graph_steps().eager, 0u);
    ExpectEqual(got, expected);
  }
}

// As where one of them has less memory: nobody waits for it, and nobody pads a step alone.
TEST_F(StepsAheadTest, RanksThatCaptureDifferentGraphsHaveNone) {
  const std::vector<DriverRequest> requests = Requests();
  std::vector<DriverRequest> expected = requests;
  Driver(Ranks(GraphMode::kNone).get(), false).Run(&expected);
  std::atomic<uint32_t> opened = 0;
  const auto two = Ranks(2, [&opened] {
    return MakeBackend(GraphMode::kFull, {opened++ % 2 + 1, 4});
  });
  std::vector<DriverRequest> got = requests;
  Driver(two.get(), true).Run(&got);
  EXPECT_EQ(two->backend().graph_steps().full, 0u);
  EXPECT_GT(two->backend().graph_steps().eager, 0u);
  ExpectEqual(got, expected);
}

TEST_F(StepsAheadTest, AGraphModeThatRanksCannotHaveIsRefused) {
  auto segment = Segment::Create("ranks", CollectiveSegmentBytes(2, 1 << 16));
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE(InitCollective(*segment, 2, 1 << 16).ok());
  const auto rank = [&](uint32_t r) {
    ShmCollectiveOptions options;
    options.rank = r;
    const auto collective = AttachShmCollective(&*segment, options);
    CHECK_OK(collective.status());
    CHECK_OK((*collective)->Reset(1));
    const auto backend =
        cuda::MakeCudaBackend(cuda::MakeEmulatedDevice({.share_memory = false}),
                              {Element::kBFloat16, Element::kBFloat16, true, GraphMode::kFull});
    const uint32_t cols[] = {8, 8};
    CHECK_OK(backend->NewShard(TensorUse::kHidden, 4, cols, r).status());
    CHECK_OK(backend->Warmup({4, 4, 16, 16}));
    CHECK_OK(backend->ConnectRanks(**collective));
    const Status refused = backend->PrepareGraphs(**collective, true);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message(),
              "--graph-mode full: the collective of the ranks can't run in a graph; use auto");
  };
  std::thread other([&] { rank(1); });
  rank(0);
  other.join();
}

}  // namespace
}  // namespace flotilla
