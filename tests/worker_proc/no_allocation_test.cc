// A worker's step allocates nothing in steady state: from the plan's frame to the result's, on
// every rank and compute thread, whatever its rows ask for.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "tests/worker_proc/model_setups.h"
#include "tests/worker_proc/plan_driver.h"
#include "tests/worker_proc/rank_threads.h"

namespace {

// Heap allocations of all threads of this program, C's and C++'s.
std::atomic<uint64_t> num_allocations{0};

}  // namespace

// In place of glibc's malloc, which does the work. A sanitizer has a malloc of its own: this
// program is not built with one.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): glibc's names
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) noexcept {
  num_allocations.fetch_add(1);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) noexcept {
  num_allocations.fetch_add(1);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) noexcept {
  num_allocations.fetch_add(1);
  return __libc_realloc(memory, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  num_allocations.fetch_add(1);
  return __libc_memalign(alignment, size);
}
// NOLINTEND(bugprone-reserved-identifier)
}

namespace flotilla {
namespace {

using testing::DriverRequest;
using testing::PlanDriver;
using testing::RankThreads;
using testing::RankThreadsOptions;

std::unique_ptr<Checkpoint> Open(const testing::TinyLlamaOptions& options) {
  const std::string path = StrCat(::testing::TempDir(), "no_allocation_test_", getpid(), ".gguf");
  testing::WriteTinyLlama(path, options);
  auto opened = OpenCheckpoint(path);
  CHECK_OK(opened.status());
  unlink(path.c_str());  // the mapping stays
  return std::move(*opened);
}

// More than may run at once: greedy and sampled in every way, with penalties, biases, logprobs and
// masks, and embeddings.
std::vector<DriverRequest> Requests(uint32_t vocab_size) {
  std::vector<DriverRequest> requests;
  std::mt19937 rng(3);
  for (uint32_t i = 0; i < 14; ++i) {
    DriverRequest& request = requests.emplace_back();
    for (uint32_t n = 0; n < 3 + i * 17 % 90; ++n) {
      request.prompt.push_back(static_cast<int32_t>(rng() % vocab_size));
    }
    request.max_new_tokens = 4 + i;
    SamplingParams& sampling = request.sampling;
    sampling.seed = i;
    sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    if (i % 4 == 1) sampling.top_k = 12;
    if (i % 4 != 0) sampling.top_p = 0.9f;
    if (i % 5 == 2) sampling.min_p = 0.05f;
    if (i % 2 == 0) sampling.frequency_penalty = 0.5f;
    if (i % 3 == 1) sampling.repetition_penalty = 1.3f;
    if (i % 3 != 2) sampling.num_logprobs = i;
    if (i % 5 == 0) sampling.num_prompt_logprobs = i;
    if (i % 4 == 2) request.logit_bias = {{3, 4}, {90, -2}};
    if (i % 7 == 3) request.masked_vocab = vocab_size;
    if (i % 6 != 5) continue;
    request.sampling = {};
    request.logit_bias.clear();
    request.max_new_tokens = 0;
    request.embed = true;
    request.mean = i == 5;
  }
  return requests;
}

// With drafts: all of it, and then again with drafts of what came.
std::vector<std::string> RecordFrames(const Checkpoint& checkpoint,
                                      const RankThreadsOptions& options,
                                      std::vector<DriverRequest> requests, bool drafts) {
  std::vector<std::string> frames;
  RankThreads ranks(&checkpoint, options);
  const auto execute = [&](const StepPlan& plan) {
    BuildStepPlan(plan, &frames.emplace_back());
    return ranks.Execute(plan);
  };
  const std::vector<DriverRequest> asked = requests;
  testing::DriverOptions drives = {
      .chunk_size = 40, .at_once = 6, .num_pages = ranks.num_pages(), .last_tokens = true};
  PlanDriver(drives, execute).Run(&requests);
  if (!drafts) return frames;
  std::vector<DriverRequest> drafting = asked;
  CHECK(testing::GiveDrafts(requests, static_cast<int32_t>(checkpoint.config().vocab_size),
                            &drafting) >= 2);
  drives.draft_tokens = 5;
  drives.chunk_size = 30;  // drafts are part of a chunk
  PlanDriver(drives, execute).Run(&drafting);
  return frames;
}

// What a rank's loop does with its frames.
struct RankLoop {
  ModelRunner* runner;
  StepPlan plan = {};
  StepResult result = {};
  std::string frame = {};

  void Run(const std::string& plan_frame) {
    CHECK_OK(ParseStepPlan(plan_frame, runner->limits(), &plan));
    CHECK_OK(runner->Execute(&plan, &result));
    BuildStepResult(result, &frame);
  }
};

struct Counted {
  std::map<ForwardMode, uint32_t> steps, allocating_steps;
  uint64_t first_pass = 0;
};

// All frames twice, in step on all ranks; the second time they are counted.
Counted CountSteps(RankThreads* ranks, uint32_t tp, const std::vector<std::string>& frames) {
  Counted counted;
  for (const ForwardMode mode : {ForwardMode::kExtend, ForwardMode::kDecode, ForwardMode::kMixed}) {
    counted.steps[mode] = counted.allocating_steps[mode] = 0;
  }
  std::barrier together(tp);
  const uint64_t before = num_allocations;
  const auto run = [&](uint32_t rank) {
    RankLoop loop{&ranks->runner(rank)};
    for (const std::string& frame : frames) loop.Run(frame);
    together.arrive_and_wait();
    if (rank == 0) counted.first_pass = num_allocations - before;
    for (const std::string& frame : frames) {
      together.arrive_and_wait();
      const uint64_t start = num_allocations;
      together.arrive_and_wait();
      loop.Run(frame);
      together.arrive_and_wait();
      if (rank != 0) continue;
      const ForwardMode mode = loop.runner->last_mode();
      ++counted.steps[mode];
      counted.allocating_steps[mode] += num_allocations != start;
    }
    together.arrive_and_wait();
  };
  std::vector<std::thread> threads;
  for (uint32_t rank = 1; rank < tp; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return counted;
}

TEST(CountAllocationsTest, SeesThoseOfEveryThread) {
  uint64_t before = num_allocations;
  std::vector<int> values(100);
  EXPECT_EQ(num_allocations - before, 1u);
  before = num_allocations;
  void* volatile memory = std::malloc(8);
  EXPECT_EQ(num_allocations - before, 1u);
  std::free(memory);
  cpu::ThreadPool pool({2, 0});
  before = num_allocations;
  pool.ParallelFor(64, 1, [](uint32_t, uint32_t, uint32_t) { std::string text(100, 'x'); });
  EXPECT_EQ(num_allocations - before, 64u);
}

struct Case {
  const char* name;
  uint32_t tp, threads;
  cpu::ComputeType dtype;
  testing::TinyLlamaOptions model;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> Cases() {
  testing::TinyLlamaOptions gemma;
  gemma.architecture = "gemma3";
  gemma.num_hidden_layers = 6;
  testing::TinyLlamaOptions straddling;  // attention's output is quantised from whole rows
  straddling.num_key_value_heads = 6;
  testing::TinyLlamaOptions experts;
  experts.architecture = "qwen3moe";
  experts.num_experts = 8;
  return {{"Int8", 1, 2, testing::kInt8, {}},
          {"Int8OfTwoRanks", 2, 2, testing::kInt8, {}},
          {"Float", 1, 1, testing::kFloat, {}},
          {"Gemma", 1, 2, testing::kInt8, gemma},
          {"Straddling", 2, 1, testing::kInt8, straddling},
          {"Experts", 1, 2, testing::kInt8, experts},
          {"FloatExpertsOfTwoRanks", 2, 1, testing::kFloat, experts}};
}

// Steps of one rank are counted alone.
std::vector<Case> SingleRankCases() {
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [](const Case& c) { return c.tp > 1; });
  return cases;
}

class NoAllocationTest : public ::testing::TestWithParam<Case> {};
class FirstStepTest : public ::testing::TestWithParam<Case> {};

TEST_P(NoAllocationTest, InSteadyState) {
  const Case& c = GetParam();
  const auto checkpoint = Open(c.model);
  RankThreadsOptions options;
  options.tp = c.tp;
  options.threads = c.threads;
  options.dtype = c.dtype;
  const std::vector<std::string> frames =
      RecordFrames(*checkpoint, options, Requests(checkpoint->config().vocab_size), true);
  RankThreads ranks(checkpoint.get(), options);
  const Counted counted = CountSteps(&ranks, c.tp, frames);
  EXPECT_GT(counted.first_pass, 0u);
  for (const auto& [mode, steps] : counted.steps) {
    EXPECT_GT(steps, 0u) << ForwardModeName(mode);
    EXPECT_EQ(counted.allocating_steps.at(mode), 0u) << ForwardModeName(mode) << " of " << steps;
  }
}

// Plain requests: what there is of penalties, biases, embeddings and drafts grows as it is used.
TEST_P(FirstStepTest, AllocatesNothingWithPreparedPlans) {
  const Case& c = GetParam();
  const auto checkpoint = Open(c.model);
  RankThreadsOptions options;
  options.threads = c.threads;
  options.dtype = c.dtype;
  std::vector<DriverRequest> requests = Requests(checkpoint->config().vocab_size);
  std::erase_if(requests, [](const DriverRequest& request) { return request.embed; });
  for (DriverRequest& request : requests) {
    request.sampling.frequency_penalty = 0;
    request.sampling.repetition_penalty = 1;
    request.sampling.num_prompt_logprobs = kNoLogprobs;
    request.logit_bias.clear();
  }
  const std::vector<std::string> frames = RecordFrames(*checkpoint, options, requests, false);
  for (const bool prepared : {true, false}) {
    options.disable_precompile = !prepared;
    RankThreads ranks(checkpoint.get(), options);
    StepResult result;
    result.rows.reserve(options.max_running_requests);
    uint64_t allocating = 0;
    std::set<size_t> buckets;
    const auto policy =
        PaddingPolicy::Create({options.chunked_prefill_size, options.max_running_requests});
    for (const std::string& frame : frames) {
      StepPlan plan;
      CHECK_OK(ParseStepPlan(frame, ranks.runner().limits(), &plan));
      const uint64_t before = num_allocations;
      CHECK_OK(ranks.runner().Execute(&plan, &result));
      allocating += num_allocations != before;
      buckets.insert(policy->BucketOf(
          ranks.runner().last_mode(),
          {static_cast<uint32_t>(plan.input_ids.size()), static_cast<uint32_t>(plan.rows.size())}));
    }
    EXPECT_GT(buckets.size(), 4u);
    EXPECT_EQ(ranks.runner().plan_misses(), prepared ? 0 : buckets.size());
    EXPECT_EQ(allocating > 0, !prepared) << allocating << " of " << frames.size();
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, NoAllocationTest, ::testing::ValuesIn(Cases()),
                         [](const auto& c) { return std::string(c.param.name); });

INSTANTIATE_TEST_SUITE_P(Setups, FirstStepTest, ::testing::ValuesIn(SingleRankCases()),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace flotilla
