// The worker binary end to end: real processes, rings and model.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "common/checkpoint/gguf.h"
#include "common/text/tokenizer.h"
#include "tests/worker_proc/plan_driver.h"
#include "tests/worker_proc/test_replica.h"

namespace flotilla {
namespace {

using testing::DriverRequest;
using testing::PlanDriver;
using testing::TestReplica;

std::string ModelPath() {
  const char* path = std::getenv("FLOTILLA_TEST_MODEL");
  return path == nullptr ? "" : path;
}

#define REQUIRE_MODEL()                                                                           \
  ASSERT_FALSE(ModelPath().empty()) << "set FLOTILLA_TEST_MODEL to SmolLM2-135M-Instruct's Q4_1 " \
                                       "GGUF file; ./flotilla test downloads it and does so"

std::unique_ptr<Tokenizer> LoadTokenizer() {
  auto file = MappedFile::Open(ModelPath());
  CHECK_OK(file.status());
  auto gguf = GgufFile::Parse(file->bytes(), {.metadata_only = true});
  CHECK_OK(gguf.status());
  auto tokenizer = CreateTokenizer(*gguf);
  CHECK_OK(tokenizer.status());
  return std::move(*tokenizer);
}

StatusOr<std::unique_ptr<TestReplica>> StartReady(uint32_t tp,
                                                  std::vector<std::string> flags = {}) {
  ASSIGN_OR_RETURN(auto replica, TestReplica::Create(
                                     {tp, FLOTILLA_WORKER_BINARY, ModelPath(), std::move(flags)}));
  RETURN_IF_ERROR(replica->BeginEpoch(1));
  return replica;
}

PlanDriver DriverOf(TestReplica* replica, testing::DriverOptions options) {
  options.num_pages = replica->num_pages();
  return PlanDriver(options, [replica](const StepPlan& plan) {
    StatusOr<StepResult> result = replica->Execute(plan);
    CHECK_OK(result.status());
    return *result;
  });
}

DriverRequest Request(std::vector<int32_t> prompt, uint32_t max_new_tokens) {
  DriverRequest request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  request.sampling.temperature = 0;
  return request;
}

TEST(WorkerProcessTest, ContinuesAPromptSensibly) {
  REQUIRE_MODEL();
  const auto tokenizer = LoadTokenizer();
  const auto prompt = tokenizer->Encode("The capital of France is");
  ASSERT_TRUE(prompt.ok());
  auto replica = StartReady(1, {"--kv-cache-memory", "400MiB"});
  ASSERT_TRUE(replica.ok()) << replica.status();
  std::vector<DriverRequest> requests = {Request(*prompt, 8)};
  DriverOf(replica->get(), {}).Run(&requests);
  const std::string text = tokenizer->Decode(requests[0].output, true);
  EXPECT_NE(text.find("Paris"), std::string::npos) << text;
}

// Four requests with logprobs, of different lengths.
std::vector<DriverRequest> Mixed() {
  std::vector<DriverRequest> requests;
  for (uint32_t length : {3u, 40u, 70u, 18u}) {
    std::vector<int32_t> prompt;
    for (uint32_t i = 0; i < length; ++i) {
      prompt.push_back(static_cast<int32_t>((17 + i * i * 31 + length * 101) % 40000));
    }
    requests.push_back(Request(std::move(prompt), 6));
    requests.back().sampling.num_logprobs = 5;
    requests.back().sampling.num_prompt_logprobs = 2;
    requests.back().sampling.seed = length;
    requests.back().sampling.temperature = length > 20 ? 0.9f : 0.0f;
  }
  return requests;
}

void ExpectEqual(const std::vector<DriverRequest>& a, const std::vector<DriverRequest>& b) {
  const auto same = [](const std::vector<PositionLogprobs>& x,
                       const std::vector<PositionLogprobs>& y) {
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(x[i].token, y[i].token);
      EXPECT_EQ(std::bit_cast<uint32_t>(x[i].logprob), std::bit_cast<uint32_t>(y[i].logprob));
    }
  };
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].output, b[i].output);
    same(a[i].logprobs, b[i].logprobs);
    same(a[i].prompt_logprobs, b[i].prompt_logprobs);
  }
}

TEST(WorkerProcessTest, SameBitsForOneTwoAndThreeProcesses) {
  REQUIRE_MODEL();
  std::vector<DriverRequest> expected;
  uint64_t probe = 0;
  for (uint32_t tp = 1; tp <= 3; ++tp) {
    auto replica = StartReady(tp, {"--kv-cache-memory", "400MiB"});
    ASSERT_TRUE(replica.ok()) << replica.status();
    std::vector<DriverRequest> requests = Mixed();
    DriverOf(replica->get(), {.chunk_size = tp == 2 ? 16u : 512u, .at_once = tp}).Run(&requests);
    const uint64_t hash = (*replica)->control()->reports[0].probe_hash.load();
    if (tp == 1) {
      expected = requests;
      probe = hash;
    }
    EXPECT_EQ(hash, probe);
    ExpectEqual(requests, expected);
  }
}

TEST(WorkerProcessTest, AKilledRankComesBackInTheNextEpochWithTheSameAnswers) {
  REQUIRE_MODEL();
  auto replica = StartReady(2, {"--kv-cache-memory", "400MiB"});
  ASSERT_TRUE(replica.ok()) << replica.status();
  std::vector<DriverRequest> before = Mixed();
  DriverOf(replica->get(), {}).Run(&before);

  for (const uint32_t victim : {1u, 0u}) {
    const uint32_t epoch = victim == 1 ? 2 : 3;
    // A step is in flight when the rank dies; its result, if any, is of the old epoch.
    StepPlan plan;
    plan.step_id = 1000;
    plan.epoch = epoch - 1;
    plan.opens = {{0, 0, {}}};
    plan.rows = {{0, 0, 300, 19, kRowSample, -1}};
    plan.input_ids.assign(300, 5);
    for (uint32_t page = 0; page < 19; ++page) plan.new_pages.push_back(page);
    ASSERT_TRUE((*replica)->Publish(plan).ok());
    (*replica)->Kill(victim);
    ASSERT_TRUE((*replica)->Spawn(victim).ok());
    const Status joined = (*replica)->BeginEpoch(epoch);
    ASSERT_TRUE(joined.ok()) << joined;
    std::vector<DriverRequest> after = Mixed();
    testing::PlanDriver driver({.num_pages = (*replica)->num_pages(), .epoch = epoch},
                               [&](const StepPlan& p) {
                                 StatusOr<StepResult> result = (*replica)->Execute(p);
                                 CHECK_OK(result.status());
                                 while (result->epoch != epoch) {  // left over from before
                                   result = (*replica)->ReadResult();
                                   CHECK_OK(result.status());
                                 }
                                 return *result;
                               });
    driver.Run(&after);
    ExpectEqual(after, before);
  }
}

TEST(WorkerProcessTest, RefusesJunkAndOldEpochsAndGoesOn) {
  REQUIRE_MODEL();
  auto replica = StartReady(1, {"--kv-cache-memory", "400MiB"});
  ASSERT_TRUE(replica.ok()) << replica.status();
  ASSERT_TRUE((*replica)->PublishFrame("junk").ok());
  auto refused = (*replica)->ReadResult();
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->code, static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(refused->epoch, 1u) << "the scheduler would pass it over";
  StepPlan plan;  // a row on a slot that nobody opened
  plan.step_id = 5;
  plan.epoch = 1;
  plan.rows = {{0, 0, 1, 1, kRowSample, -1}};
  plan.input_ids = {1};
  plan.new_pages = {0};
  refused = (*replica)->Execute(plan);
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->code, static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(refused->step_id, 5u);
  plan.opens = {{0, 0, {}}};
  plan.epoch = 7;
  ASSERT_TRUE((*replica)->Publish(plan).ok());  // another epoch's: no answer
  plan.epoch = 1;
  plan.step_id = 6;
  const auto good = (*replica)->Execute(plan);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->step_id, 6u);
  EXPECT_EQ(good->code, 0u);
}

// Ending the process instead would have the same step planned again, for ever.
TEST(WorkerProcessTest, AResultLargerThanItsRingTakesIsAFailedStep) {
  REQUIRE_MODEL();
  auto replica = TestReplica::Create(
      {1, FLOTILLA_WORKER_BINARY, ModelPath(), {"--kv-cache-memory", "400MiB"}, 32 << 10});
  ASSERT_TRUE(replica.ok()) << replica.status();
  ASSERT_TRUE((*replica)->BeginEpoch(1).ok());
  StepPlan plan;
  plan.step_id = 5;
  plan.epoch = 1;
  plan.opens = {{0, 0, {}}};
  plan.opens[0].sampling.num_prompt_logprobs = 20;
  plan.rows = {{0, 0, 100, 7, kRowSample | kRowPromptLogprobs, -1}};
  plan.input_ids.assign(100, 5);
  plan.new_pages = {0, 1, 2, 3, 4, 5, 6};
  const auto large = (*replica)->Execute(plan);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->code, static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  EXPECT_NE(large->message.find("too many for its ring"), std::string::npos) << large->message;
  EXPECT_TRUE(large->rows.empty());
  plan = StepPlan();
  plan.step_id = 6;
  plan.epoch = 1;
  plan.rows = {{0, 100, 1, 0, kRowSample, -1}};
  plan.input_ids = {5};
  const auto next = (*replica)->Execute(plan);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->code, 0u) << next->message;
}

TEST(WorkerProcessTest, EndsInOrderOnSigtermAndOnAShutdownPlan) {
  REQUIRE_MODEL();
  auto replica = StartReady(1, {"--kv-cache-memory", "400MiB"});
  ASSERT_TRUE(replica.ok()) << replica.status();
  kill((*replica)->pid(0), SIGTERM);
  EXPECT_EQ((*replica)->WaitExit(0), 0);
  EXPECT_EQ(ReplicaControl::State((*replica)->control()->workers[0]), ProcessState::kStopping);
  ASSERT_TRUE((*replica)->Spawn(0).ok());
  ASSERT_TRUE((*replica)->BeginEpoch(2).ok());
  StepPlan shutdown;
  shutdown.command = StepCommand::kShutdown;
  shutdown.epoch = 2;
  ASSERT_TRUE((*replica)->Publish(shutdown).ok());
  EXPECT_EQ((*replica)->WaitExit(0), 0);
}

TEST(WorkerProcessTest, WhatCanNeverWorkExitsWithTwo) {
  REQUIRE_MODEL();
  const auto exit_code = [](const std::string& model, std::vector<std::string> flags,
                            uint32_t tp = 1) {
    auto replica = TestReplica::Create({tp, FLOTILLA_WORKER_BINARY, model, std::move(flags)});
    CHECK_OK(replica.status());
    return (*replica)->WaitExit(tp - 1);
  };
  EXPECT_EQ(exit_code("/nonexistent.gguf", {}), 2);
  EXPECT_EQ(exit_code("/proc/self/exe", {}), 2);  // no GGUF
  EXPECT_EQ(exit_code(ModelPath(), {"--isa", "mmx"}), 2);
  EXPECT_EQ(exit_code(ModelPath(), {"--page-size", "0"}), 2);
  EXPECT_EQ(exit_code(ModelPath(), {"--kv-cache-memory", "10MiB"}), 2);
  EXPECT_EQ(exit_code(ModelPath(), {"--context-length", "1000000"}), 2);
  EXPECT_EQ(exit_code(ModelPath(), {"--no-such-flag"}), 2);
  EXPECT_EQ(exit_code(ModelPath(), {}, 10), 2);  // 9 query heads
}

// Time on a core of a process's main thread: what a figure is worth on a busy machine.
double CpuSeconds(pid_t pid) {
  std::ifstream file(StrCat("/proc/", pid, "/schedstat"));
  double ns = 0;
  file >> ns;
  return ns * 1e-9;
}

// Not a check of speed: the figures are for the log, by the clock and by rank 0's time on its core.
TEST(WorkerProcessTest, ReportSpeed) {
  REQUIRE_MODEL();
  for (uint32_t tp = 1; tp <= 2; ++tp) {
    auto replica = StartReady(tp, {"--kv-cache-memory", "400MiB"});
    ASSERT_TRUE(replica.ok()) << replica.status();
    const auto report = [&](const char* what, uint32_t prompt, uint32_t output, uint32_t count) {
      std::vector<DriverRequest> requests(count,
                                          Request(std::vector<int32_t>(prompt, 500), output));
      const double cpu_start = CpuSeconds((*replica)->pid(0));
      const auto start = std::chrono::steady_clock::now();
      DriverOf(replica->get(), {.at_once = count}).Run(&requests);
      const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
      const double cpu = CpuSeconds((*replica)->pid(0)) - cpu_start;
      EXPECT_EQ(requests[0].output.size(), output);
      const double tokens = (prompt > 1 ? prompt : output) * count;
      std::printf("tp %u: %-12s %7.1f tok/s (%7.1f a core-second of rank 0)\n", tp, what,
                  tokens / wall.count(), tokens / cpu);
    };
    report("warm", 16, 2, 1);
    report("prefill 1024", 1024, 1, 1);
    report("decode 1", 1, 33, 1);
    report("decode 8", 1, 33, 8);
    report("decode 32", 1, 17, 32);
  }
}

}  // namespace
}  // namespace flotilla
