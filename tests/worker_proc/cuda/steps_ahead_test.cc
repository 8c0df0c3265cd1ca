// Steps that are begun while the device still has the one before: the same tokens and logprobs bit
// for bit as steps of one rank that wait for each other, whatever is asked of them, for one rank
// and for several, with slots and pages that change hands in between. The queue of the emulated
// device starts kernels early besides.
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "tests/fakes/gguf_builder.h"
#include "tests/worker_proc/ahead_ranks.h"
#include "tests/worker_proc/plan_driver.h"
#include "tests/worker_proc/rank_threads.h"
#include "worker_proc/cuda/cuda_backend.h"
#include "worker_proc/cuda/emulation/block.h"
#include "worker_proc/cuda/emulation/emulated_device.h"

namespace flotilla {
namespace {

using cuda::Element;
using cuda::GraphMode;
using testing::AheadRanks;
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
    return Ranks(tp, [this, mode, links] { return MakeBackend(mode, {1, 4}, links); });
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
  std::unique_ptr<Backend> MakeBackend(GraphMode mode,
                                       const std::vector<uint32_t>& cuda_graph_sizes,
                                       const cuda::EmulatedLinks& links = {}) const {
    cuda::CudaBackendOptions options;
    options.graph_mode = mode;
    options.cuda_graph_sizes = cuda_graph_sizes;
    options.epoch = &epoch_;
    options.exchange.least_by_library = 1024;
    options.exchange.time_ns = [](uint64_t, bool by_library) { return by_library ? 1 : 2; };
    return cuda::MakeCudaBackend(cuda::MakeEmulatedDevice(links), options);
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

  static testing::DriverOptions Options(bool last_tokens) {
    return {.chunk_size = 20, .at_once = 4, .num_pages = 40, .last_tokens = last_tokens};
  }
  static PlanDriver Driver(RankThreads* ranks, bool last_tokens) {
    return {Options(last_tokens), [ranks](const StepPlan& plan) { return ranks->Execute(plan); }};
  }
  static uint32_t RunAhead(RankThreads* ranks, std::vector<DriverRequest>* requests,
                           uint32_t tp = 1) {
    AheadRanks ahead(ranks, tp);
    PlanDriver driver(Options(true),
                      [&ahead](const StepPlan& plan) { return ahead.Execute(plan); });
    return driver.RunAhead(
        requests,
        [&ahead](StepPlan* plan, StepResult* result) {
          const StatusOr<bool> begun = ahead.Begin(plan, result);
          CHECK_OK(begun.status());
          return *begun;
        },
        [&ahead] { CHECK_OK(ahead.End()); });
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

  // What one rank makes of them, steps waiting for each other.
  std::vector<DriverRequest> Expected(std::vector<DriverRequest> requests) const {
    Driver(Ranks(GraphMode::kNone).get(), false).Run(&requests);
    return requests;
  }

  std::mt19937 rng_{5};
  std::atomic<uint32_t> epoch_ = 1;
  std::unique_ptr<Checkpoint> checkpoint_;
};

constexpr cuda::EmulatedLinks kByCommunicator = {.share_memory = false, .have_communicator = true};
constexpr cuda::EmulatedLinks kBoth = {.have_communicator = true};
constexpr cuda::EmulatedLinks kByHost = {.share_memory = false};

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

// Their last tokens come to them by their devices.
TEST_F(StepsAheadTest, RanksThatReachEachOtherHaveTheBitsOfOne) {
  const std::vector<DriverRequest> requests = Requests();
  const std::vector<DriverRequest> expected = Expected(requests);
  struct Setup {
    uint32_t tp;
    GraphMode mode;
    cuda::EmulatedLinks links;
  };
  for (const Setup& setup :
       {Setup{2, GraphMode::kNone, {}}, Setup{2, GraphMode::kFull, {}},
        Setup{3, GraphMode::kFull, {}}, Setup{2, GraphMode::kAuto, kByCommunicator},
        Setup{2, GraphMode::kNone, kBoth}, Setup{2, GraphMode::kFull, kBoth}}) {
    const auto ranks = Ranks(setup.mode, setup.tp, setup.links);
    std::vector<DriverRequest> got = requests;
    EXPECT_GT(RunAhead(ranks.get(), &got, setup.tp), 10u);
    EXPECT_EQ(ranks->backend().graph_steps().full > 0, setup.mode == GraphMode::kFull);
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
  for (const uint32_t length : {5u, 8u, 11u}) {  // nothing but penalties
    requests.push_back(Request(length, 3));
    requests.back().sampling.presence_penalty = 0.5f;
  }
  for (const uint32_t tp : {1u, 2u}) {
    const auto ranks = Ranks(GraphMode::kFull, tp);
    std::vector<DriverRequest> expected = requests;
    const uint32_t steps = Driver(ranks.get(), false).Run(&expected);
    std::vector<DriverRequest> got = requests;
    const uint32_t ahead = RunAhead(ranks.get(), &got, tp);
    EXPECT_GT(ahead, 0u);
    EXPECT_LT(ahead, steps - 1);
    ExpectEqual(got, expected);
  }
}

// Some ranks know already that there is no token, others do not: all go on alike, and the request
// beside it has its own tokens.
TEST_F(StepsAheadTest, BadLogitsKeepRanksInStep) {
  const auto step = [](std::initializer_list<uint32_t> slots, uint32_t start_pos) {
    StepPlan plan;
    for (const uint32_t slot : slots) {
      PlanRow& row = plan.rows.emplace_back();
      row.slot = slot;
      row.start_pos = start_pos;
      row.num_tokens = 1;
      row.flags = kRowSample;
      if (start_pos == 0) {
        row.num_new_pages = 1;
        plan.new_pages.push_back(slot);
        plan.opens.emplace_back().slot = slot;
        plan.input_ids.push_back(static_cast<int32_t>(40 + slot));
      } else {
        plan.input_ids.push_back(kLastToken);
      }
    }
    return plan;
  };
  const auto alone = Ranks(GraphMode::kNone);
  std::vector<int32_t> expected;
  for (uint32_t position = 0; position < 5; ++position) {
    expected.push_back(alone->Execute(step({1}, position)).rows[0].token);
  }
  const auto two = Ranks(GraphMode::kFull, 2);
  for (int round = 0; round < 4; ++round) {
    AheadRanks ahead(two.get(), 2);
    std::deque<StepPlan> plans;
    std::deque<StepResult> results;
    const auto begin = [&](StepPlan plan) {
      plans.push_back(std::move(plan));
      results.emplace_back();
      const StatusOr<bool> begun = ahead.Begin(&plans.back(), &results.back());
      CHECK_OK(begun.status());
      EXPECT_TRUE(*begun);
    };
    StepPlan first = step({0, 1}, 0);
    first.opens[0].num_logit_bias = 1;
    first.logit_bias.push_back({7, std::numeric_limits<float>::quiet_NaN()});
    begin(first);
    begin(step({0, 1}, 1));
    EXPECT_TRUE(absl::IsDataLoss(ahead.End()));
    begin(step({0, 1}, 2));
    EXPECT_TRUE(absl::IsDataLoss(ahead.End()));
    StepPlan last = step({1}, 3);
    begin(last);
    EXPECT_TRUE(absl::IsDataLoss(ahead.End()));
    begin(step({1}, 4));
    for (uint32_t position = 3; position < 5; ++position) {
      EXPECT_TRUE(ahead.End().ok());
      EXPECT_EQ(results[position].rows.at(0).token, expected[position]) << position;
    }
  }
}

// Both of its steps are void when the epoch ends; then there is a successor.
TEST_F(StepsAheadTest, ARankThatIsLostVoidsWhatHasBegun) {
  const std::vector<DriverRequest> requests = Requests();
  const std::vector<DriverRequest> expected = Expected(requests);
  for (const cuda::EmulatedLinks& links : {cuda::EmulatedLinks(), kByCommunicator}) {
    const auto ranks = Ranks(GraphMode::kAuto, 2, links);
    ModelRunner& runner = ranks->runner();
    const uint32_t epoch = epoch_;
    StepPlan plans[2];
    StepResult results[2];
    plans[0].opens.emplace_back();
    plans[0].new_pages = {0};
    plans[0].input_ids = {1};
    plans[1].input_ids = {kLastToken};
    for (uint32_t i = 0; i < 2; ++i) {
      PlanRow& row = plans[i].rows.emplace_back();
      row.start_pos = i;
      row.num_tokens = 1;
      row.num_new_pages = 1 - i;
      row.flags = kRowSample;
      const StatusOr<bool> begun = runner.Begin(&plans[i], &results[i]);
      ASSERT_TRUE(begun.ok() && *begun) << begun.status();
    }
    for (int look = 0; look < 100; ++look) EXPECT_FALSE(*runner.Done());
    epoch_ = epoch + 1;
    for (uint32_t i = 0; i < 2; ++i) {
      while (!*runner.Done()) {
      }
      EXPECT_TRUE(absl::IsAborted(runner.End()));
      EXPECT_TRUE(results[i].rows.empty());
    }
    EXPECT_EQ(runner.num_begun(), 0u);
    ranks->Respawn(1, 2);
    std::vector<DriverRequest> got = requests;
    EXPECT_GT(RunAhead(ranks.get(), &got, 2), 10u);
    ExpectEqual(got, expected);
  }
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

// Through the host each exchange waits for the step; the CPU samples on the host.
TEST_F(StepsAheadTest, RanksWithoutLinksAndTheCpuExecute) {
  StepPlan plan;
  plan.opens.emplace_back();
  PlanRow& row = plan.rows.emplace_back();
  row.num_tokens = row.num_new_pages = 1;
  row.flags = kRowSample;
  plan.input_ids = {1};
  plan.new_pages = {0};
  StepResult result;
  const auto two = Ranks(GraphMode::kNone, 2, kByHost);
  EXPECT_FALSE(*two->runner(0).Begin(&plan, &result));
  EXPECT_FALSE(*two->runner(1).Begin(&plan, &result));
  RankThreads cpu(checkpoint_.get(), RankThreadsOptions());
  EXPECT_FALSE(*cpu.runner().Begin(&plan, &result));
}

// Ranks that do not reach each other's memory: by a communicator, without graphs, with the bits of
// one rank; in the next epoch too.
TEST_F(StepsAheadTest, RanksWithACommunicatorHaveTheBitsOfOne) {
  const std::vector<DriverRequest> requests = Requests();
  const std::vector<DriverRequest> expected = Expected(requests);
  const auto two = Ranks(GraphMode::kAuto, 2, kByCommunicator);
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
  const std::vector<DriverRequest> expected = Expected(requests);
  std::atomic<uint32_t> opened = 0;
  const auto two = Ranks(2, [this, &opened] {
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
