// GraphRunner over a device whose work runs late and in a drawn order: replayed steps give what
// eager ones give, whatever is in flight; the order of calls; what is captured, counted and freed.
#include "worker_proc/cuda/graph/graph_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "common/base/check.h"
#include "tests/fakes/fake_graph_api.h"
#include "worker_proc/cuda/graph/device_arena.h"
#include "worker_proc/cuda/plan/graph_sizes.h"

namespace flotilla::cuda {
namespace {

using ::flotilla::testing::FakeGraphApi;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kPages = 4;  // a sequence, at most
constexpr size_t kCacheSlots = 1024;

// A model of one layer: a token's state is hashed, stored at its slot, then mixed with all keys of
// its sequence. Tokens of no sequence have no attention.
class ToyModel {
 public:
  explicit ToyModel(FakeGraphApi* api) : api_(api), cache_(kCacheSlots), out_(kCacheSlots) {}

  GraphForward forward() {
    return [this](const AttentionContext& context, PieceBreaker* pieces) -> Status {
      shapes_.push_back(context.num_tokens);
      api_->Enqueue([this, context] { Embed(context); });
      const Status attended = pieces->Eager([this](const AttentionContext& step) {
        api_->Enqueue([this, step] { Attend(step); });
        return attention;
      });
      if (on_exchange) on_exchange();
      api_->Enqueue([this, context] {
        for (uint32_t i = 0; i < context.num_tokens; ++i) state_[i] = state_[i] * 31 + 7;
      });
      api_->Enqueue([this, context] {  // what a copy stream would take away: steps, one by one
        std::copy_n(state_.begin(), context.num_tokens, out_.begin());
        if (on_result) on_result(out_);
      });
      return attended;
    };
  }
  std::function<void(const std::vector<uint64_t>&)> on_result;
  std::function<void()> on_exchange;  // where ranks would put their columns together
  Status attention = OkStatus();      // what it says
  const std::vector<uint64_t>& cache() const { return cache_; }
  // Tokens of each call, oldest first.
  const std::vector<uint32_t>& shapes() const { return shapes_; }

 private:
  void Embed(const AttentionContext& context) {
    state_.assign(context.num_tokens, 0);
    for (uint32_t i = 0; i < context.num_tokens; ++i) {
      const auto id = static_cast<uint64_t>(context.input_ids[i]);
      state_[i] = id * 0x9e3779b97f4a7c15 + context.positions[i];
      if (context.slot_mapping[i] >= 0) {
        cache_[static_cast<size_t>(context.slot_mapping[i])] = state_[i];
      }
    }
  }
  void Attend(const AttentionContext& context) {
    for (uint32_t s = 0; s < context.num_seqs; ++s) {
      for (uint32_t i = context.cu_q_lens[s]; i < context.cu_q_lens[s + 1]; ++i) {
        for (uint32_t key = 0; key <= context.positions[i] && key < context.kv_lens[s]; ++key) {
          const uint32_t page = context.page_indices[s * context.pages_per_seq + key / 16];
          state_[i] = state_[i] * 1099511628211u + cache_[page * 16 + key % 16];
        }
      }
    }
  }

  FakeGraphApi* const api_;
  std::vector<uint32_t> shapes_;
  std::vector<uint64_t> state_, cache_, out_;
};

struct Bench {
  explicit Bench(GraphMode mode, uint32_t seed = 1) : api(seed), model(&api) {
    options.mode = mode;
    options.buckets = *GraphBuckets({.max_running_requests = 16});
    options.largest_step = {48, 20};
    options.pages_per_seq = kPages;
  }
  // With one allocation of the device, which is all there is.
  Status Start() {
    const size_t metadata = arena.Plan("metadata", GraphRunner::MetadataBytes(options));
    RETURN_IF_ERROR(arena.Allocate());
    const GraphRunner::Deps deps = {.api = &api,
                                    .clock = &clock,
                                    .forward = model.forward(),
                                    .metadata = arena.at(metadata),
                                    .alone = [this](bool now) { alone = now; }};
    ASSIGN_OR_RETURN(runner, GraphRunner::Create(deps, options));
    return OkStatus();
  }
  FakeGraphApi api;
  FakeClock clock;
  ToyModel model;
  GraphRunnerOptions options;
  DeviceArena arena{&api};
  bool alone = false;
  std::unique_ptr<GraphRunner> runner;
};

// A step over the first `seqs` sequences, each of whose pages are its own; some after cached ones.
ForwardBatch DrawStep(std::mt19937* random, bool decode) {
  const auto draw = [&](uint32_t n) { return static_cast<uint32_t>((*random)() % n); };
  ForwardBatch batch;
  batch.mode = decode ? ForwardMode::kDecode : ForwardMode::kMixed;
  batch.num_seqs = 1 + draw(16);
  batch.pages_per_seq = kPages;  // the toy model has no plan that says where tables begin
  batch.cu_q_lens = {0};
  for (uint32_t s = 0; s < batch.num_seqs; ++s) {
    const uint32_t tokens = decode ? 1 : 1 + draw(3);
    const uint32_t before = draw(16 * batch.pages_per_seq - tokens);
    for (uint32_t page = 0; page < batch.pages_per_seq; ++page) {
      batch.page_indices.push_back(s * kPages + page);
    }
    for (uint32_t i = 0; i < tokens; ++i) {
      batch.input_ids.push_back(static_cast<int32_t>(draw(50000)));
      batch.positions.push_back(before + i);
      batch.out_cache_loc.push_back((s * kPages + (before + i) / 16) * 16 + (before + i) % 16);
    }
    batch.kv_lens.push_back(before + tokens);
    batch.num_tokens += tokens;
    batch.cu_q_lens.push_back(batch.num_tokens);
  }
  return batch;
}

using Results = std::vector<std::vector<uint64_t>>;

// The results of steps that are all in flight together, and the cache in the end.
Results RunSteps(GraphMode mode, uint32_t seed) {
  Bench bench(mode, seed);
  CHECK_OK(bench.Start());
  std::mt19937 random(seed);
  Results results;
  std::vector<uint32_t> tokens;
  bench.model.on_result = [&](const std::vector<uint64_t>& out) {
    results.emplace_back(out.begin(), out.begin() + tokens[results.size()]);
  };
  const int device_allocations = bench.api.device_allocations;
  for (int step = 0; step < 40; ++step) {
    const ForwardBatch batch = DrawStep(&random, random() % 3 != 0);
    tokens.push_back(batch.num_tokens);
    EXPECT_TRUE(bench.runner->Run(batch).ok());
  }
  bench.api.Drain();
  EXPECT_EQ(bench.api.device_allocations, device_allocations);
  EXPECT_EQ(device_allocations, 1);
  results.push_back(bench.model.cache());
  return results;
}

TEST(GraphRunnerTest, ReplayEqualsEagerInEveryModeWhateverIsInFlight) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    const Results eager = RunSteps(GraphMode::kNone, seed);
    ASSERT_EQ(eager.size(), 41u);
    for (const GraphMode mode : {GraphMode::kFull, GraphMode::kPiecewise,
                                 GraphMode::kFullDecodeOnly, GraphMode::kFullAndPiecewise}) {
      EXPECT_EQ(RunSteps(mode, seed), eager) << GraphModeName(mode) << " seed " << seed;
    }
  }
}

TEST(GraphRunnerTest, OneCopyThenOneLaunch) {
  Bench bench(GraphMode::kFull);
  ASSERT_TRUE(bench.Start().ok());
  std::mt19937 random(5);
  const auto shapes = bench.model.shapes();
  bench.api.Drain();
  bench.api.calls.clear();
  EXPECT_EQ(*bench.runner->Run(DrawStep(&random, true)), GraphKind::kFull);
  EXPECT_THAT(bench.api.calls,
              ElementsAre("copy to device on compute", "record on compute", "launch"));
  EXPECT_EQ(bench.model.shapes(), shapes) << "the forward ran on the host";
}

TEST(GraphRunnerTest, PiecewiseLaunchesAroundAttention) {
  Bench bench(GraphMode::kPiecewise);
  ASSERT_TRUE(bench.Start().ok());
  std::mt19937 random(5);
  bench.api.Drain();
  bench.api.calls.clear();
  EXPECT_EQ(*bench.runner->Run(DrawStep(&random, true)), GraphKind::kPiecewise);
  EXPECT_THAT(bench.api.calls,
              ElementsAre("copy to device on compute", "record on compute", "launch", "launch"));
}

TEST(GraphRunnerTest, ASlotIsNotWrittenBeforeItsCopyIsDone) {
  Bench bench(GraphMode::kFull);
  ASSERT_TRUE(bench.Start().ok());
  std::mt19937 random(5);
  bench.api.Drain();
  bench.api.calls.clear();
  const auto synchronized = [&] {
    return std::count(bench.api.calls.begin(), bench.api.calls.end(), "synchronize compute");
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(bench.runner->Run(DrawStep(&random, true)).ok());
  EXPECT_EQ(synchronized(), 0) << "three steps in flight need no wait";
  ASSERT_TRUE(bench.runner->Run(DrawStep(&random, true)).ok());
  EXPECT_EQ(synchronized(), 1);
}

TEST(GraphRunnerTest, CapturesTheLargestFirstAndCountsPadding) {
  Bench bench(GraphMode::kFullDecodeOnly);
  ASSERT_TRUE(bench.Start().ok());
  // An eager run of the largest step, then one run and one capture of each bucket.
  EXPECT_THAT(bench.model.shapes(), ElementsAre(48, 16, 16, 12, 12, 8, 8, 4, 4, 2, 2, 1, 1));
  EXPECT_EQ(bench.api.graphs_alive, 6);
  const auto decode = [&](uint32_t seqs) {
    ForwardBatch step;
    step.mode = ForwardMode::kDecode;
    step.num_tokens = step.num_seqs = seqs;
    step.input_ids.assign(seqs, 1);
    step.positions.assign(seqs, 0);
    step.out_cache_loc.assign(seqs, 0);
    step.kv_lens.assign(seqs, 1);
    for (uint32_t s = 0; s <= seqs; ++s) step.cu_q_lens.push_back(s);
    step.pages_per_seq = 1;
    step.page_indices.assign(seqs, 0);
    return step;
  };
  for (const uint32_t seqs : {1u, 3u, 9u, 15u}) {
    EXPECT_EQ(*bench.runner->Run(decode(seqs)), GraphKind::kFull);
  }
  ForwardBatch mixed = decode(4);
  mixed.mode = ForwardMode::kMixed;
  EXPECT_EQ(*bench.runner->Run(mixed), GraphKind::kEager);
  EXPECT_EQ(*bench.runner->Run(decode(17)), GraphKind::kEager) << "above the largest bucket";
  const GraphStats& stats = bench.runner->stats();
  EXPECT_THAT(stats.steps, ElementsAre(2, 0, 4));
  EXPECT_EQ(stats.tokens, 28u);
  EXPECT_EQ(stats.padding_tokens, 1u + 3u + 1u);
  bench.runner.reset();
  EXPECT_EQ(bench.api.graphs_alive, 0);
  EXPECT_EQ(bench.api.events_alive, 0);
}

TEST(GraphRunnerTest, TheCountBoundsTheGraphs) {
  Bench bench(GraphMode::kFull);
  bench.options.limits.max_graphs = 5;
  ASSERT_TRUE(bench.Start().ok());
  std::vector<uint32_t> sizes;
  for (const PlanShape& bucket : bench.runner->buckets()) sizes.push_back(bucket.num_seqs);
  EXPECT_THAT(sizes, ElementsAre(1, 2, 4, 8, 16));
  EXPECT_EQ(bench.api.graphs_alive, 5);
}

TEST(GraphRunnerTest, BytesAndTimeBoundTheGraphs) {
  for (const bool by_time : {false, true}) {
    Bench bench(GraphMode::kFull);
    bench.options.buckets = *GraphBuckets({.max_running_requests = 64});
    bench.options.largest_step = {64, 64};
    bench.api.graph_bytes = 1000;
    bench.api.on_capture = [&] { bench.clock.AdvanceNs(kNsPerSecond); };
    if (by_time) {
      bench.options.limits.max_ns = 7 * kNsPerSecond;
    } else {
      bench.options.limits.max_bytes = 7000;
    }
    ASSERT_TRUE(bench.Start().ok());
    std::vector<uint32_t> sizes;
    for (const PlanShape& bucket : bench.runner->buckets()) sizes.push_back(bucket.num_seqs);
    EXPECT_THAT(sizes, ElementsAre(1, 2, 4, 8, 24, 56, 64)) << by_time;
    EXPECT_EQ(bench.runner->costs().bytes, 7000u);
    EXPECT_EQ(bench.runner->costs().ns, 7 * kNsPerSecond);
    std::mt19937 random(3);
    EXPECT_EQ(*bench.runner->Run(DrawStep(&random, true)), GraphKind::kFull);
  }
}

TEST(GraphRunnerTest, WithoutMemoryForMoreThoseThatAreThereReplay) {
  // Of a bucket of both kinds the first is its full graph, the others are pieces.
  for (const auto& [mode, fails] :
       {std::pair{GraphMode::kFull, 6}, std::pair{GraphMode::kFullAndPiecewise, 4},
        std::pair{GraphMode::kFullAndPiecewise, 5}, std::pair{GraphMode::kFullAndPiecewise, 6}}) {
    Bench bench(mode);
    int captures = 0;
    bench.api.on_capture = [&, at = fails] {
      if (++captures == at) bench.api.fail_capture = absl::ResourceExhaustedError("out of memory");
    };
    ASSERT_TRUE(bench.Start().ok());
    ASSERT_FALSE(bench.runner->buckets().empty());
    EXPECT_EQ(bench.runner->buckets().back().num_seqs, 16u);
    EXPECT_LT(bench.runner->buckets().size(), 6u);
    std::mt19937 random(3);
    std::set<GraphKind> kinds;
    for (int i = 0; i < 40; ++i) {
      kinds.insert(*bench.runner->Run(DrawStep(&random, true)));
      bench.api.Drain();
    }
    EXPECT_TRUE(kinds.contains(GraphKind::kFull));
    bench.runner.reset();
    EXPECT_EQ(bench.api.graphs_alive, 0);
  }
}

TEST(GraphRunnerTest, AFailedCaptureFailsTheStartAndLeavesNothing) {
  Bench bench(GraphMode::kFull);
  bench.api.fail_capture = absl::InternalError("an op that can't be captured");
  const Status status = bench.Start();
  EXPECT_THAT(std::string(status.message()), HasSubstr("graphs: an op that can't be captured"));
  EXPECT_EQ(bench.api.graphs_alive, 0);
  EXPECT_EQ(bench.api.events_alive, 0);
}

// As the other ranks do: who leaves out an exchange of a step lets them wait.
TEST(GraphRunnerTest, NoExchangeOfAStepIsLeftOutAndAllOthersAre) {
  Bench bench(GraphMode::kPiecewise);
  std::vector<bool> alone;
  bench.model.on_exchange = [&] { alone.push_back(bench.alone); };
  bench.api.fail_capture = absl::ResourceExhaustedError("out of memory");
  ASSERT_TRUE(bench.Start().ok());
  EXPECT_THAT(alone, ElementsAre(true, true, true))
      << "the largest step, that of a graph, and what follows on the piece that failed";
  std::mt19937 random(3);
  ASSERT_EQ(*bench.runner->Run(DrawStep(&random, true)), GraphKind::kEager);
  bench.model.attention = absl::InternalError("no plan");
  EXPECT_FALSE(bench.runner->Run(DrawStep(&random, true)).ok());
  EXPECT_THAT(alone, ElementsAre(true, true, true, false, false));

  Bench captured(GraphMode::kPiecewise);
  captured.options.buckets.resize(1);
  captured.model.on_exchange = [&] { alone.push_back(captured.alone); };
  alone.clear();
  ASSERT_TRUE(captured.Start().ok());
  EXPECT_THAT(alone, ElementsAre(true, true, false)) << "a capture is what steps will run";
}

TEST(DeviceArenaTest, PlacesBuffersApartInOneAllocation) {
  FakeGraphApi api;
  {
    DeviceArena arena(&api);
    const size_t a = arena.Plan("a", 100), b = arena.Plan("b", 257), c = arena.Plan("c", 1);
    ASSERT_TRUE(arena.Allocate().ok());
    EXPECT_EQ(arena.at(b) - arena.at(a), 256);
    EXPECT_EQ(arena.at(c) - arena.at(b), 512);
    EXPECT_EQ(arena.bytes(), 1024u);
    EXPECT_EQ(api.device_allocations, 1);
  }
  EXPECT_EQ(api.frees, 1);
  DeviceArena large(&api);
  large.Plan("small", 10);
  large.Plan("activations", uint64_t{1} << 31);
  EXPECT_THAT(std::string(large.Allocate().message()),
              HasSubstr("2.0 GiB for steps, 2.0 GiB of them for activations"));
}

}  // namespace
}  // namespace flotilla::cuda
