// Whole steps of the worker's model on the real file, without a cluster around it: decoding at
// several batch sizes and prefill, with the share of each op and the memory traffic beside the read
// bandwidth that the same threads reach in the same run.
//
//   build/release/bench/forward_bench [--threads N] [--tp N] [--dtype float32] [--case decode-8] …
//
// Ranks are threads of this program over a ShmCollective, each with its own pool. A step's time is
// that of rank 0; the median and the best of many steps are shown, as others may use the machine,
// and the ops' shares of the faster half.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/flags.h"
#include "common/base/log.h"
#include "tests/bench/cpu_limits.h"
#include "tests/bench/timed_backend.h"
#include "tests/worker_proc/plan_driver.h"
#include "worker_proc/cpu/cpu_options.h"
#include "worker_proc/runner/memory_info.h"
#include "worker_proc/runner/model_runner.h"

namespace flotilla::bench {
namespace {

constexpr uint32_t kPageSize = 16;
constexpr size_t kReadBytes = size_t{64} << 20;  // a pass of each thread: more than the caches hold
constexpr size_t kCollectiveBytes = 1 << 20;

struct Case {
  const char* name;
  uint32_t requests, prompt, output;
};
// Decoding: the steps after the prompts; prefill: a single step.
constexpr Case kCases[] = {{"decode-1", 1, 128, 65},
                           {"decode-8", 8, 128, 65},
                           {"decode-32", 32, 128, 65},
                           {"prefill-512", 1, 512, 1}};

struct Options {
  std::string model;
  CpuFlags cpu = {.spin_us = 50};
  std::vector<std::string> cases;
  uint32_t repeat = 3;
};

// The plans of a case; what is sampled is replaced by a fixed token, so that they can be made
// before.
std::vector<StepPlan> Plans(const Case& c, uint32_t num_pages) {
  std::vector<StepPlan> plans;
  testing::PlanDriver driver({.chunk_size = c.prompt,
                              .at_once = c.requests,
                              .page_size = kPageSize,
                              .num_pages = num_pages},
                             [&](const StepPlan& plan) {
                               plans.push_back(plan);
                               StepResult result;
                               for (const PlanRow& row : plan.rows) {
                                 result.rows.emplace_back();
                                 result.rows.back().slot = row.slot;
                                 result.rows.back().token = 1000;
                               }
                               return result;
                             });
  std::vector<testing::DriverRequest> requests(c.requests);
  for (uint32_t r = 0; r < c.requests; ++r) {
    for (uint32_t i = 0; i < c.prompt; ++i) {
      requests[r].prompt.push_back(static_cast<int32_t>((17 + i * i * 31 + r * 101) % 40000));
    }
    requests[r].max_new_tokens = c.output;
    requests[r].sampling.temperature = 0;
  }
  driver.Run(&requests);
  return plans;
}

// All steps of one kind.
struct Figures {
  struct Step {
    double seconds = 0;
    std::array<double, kOpNames.size()> ops{};
  };
  std::vector<Step> steps;
  uint32_t tokens = 0;     // a step
  uint64_t kv_tokens = 0;  // whose K and V the steps read, all together
};

class Rank {
 public:
  void Start(const Options& options, const Checkpoint& checkpoint, const Segment* collective,
             uint32_t rank) {
    rank_ = rank;
    Set(&cpu_, ResolveCpuOptions(options.cpu, checkpoint, AllowedCores()));
    collective_ = MakeSingleRankCollective();
    if (options.cpu.ranks > 1) {
      ShmCollectiveOptions shm;
      shm.rank = rank;
      shm.wait.spin_ns = cpu_.threads.spin_ns;
      Set(&collective_, AttachShmCollective(collective, shm));
    }
    inner_ = MakeCpuBackend(cpu_);
    backend_ = std::make_unique<TimedBackend>(inner_.get());
    ModelRunnerOptions runner;
    runner.page_size = kPageSize;
    runner.available_memory = [] { return AvailableMemoryBytes(); };
    Set(&runner_,
        ModelRunner::Create({&checkpoint, backend_.get(), collective_.get(), &heartbeat_, &clock_},
                            runner));
  }
  // All ranks together.
  void Reset(uint32_t num_pages) {
    CHECK_OK(collective_->Reset(1));
    CHECK_OK(runner_->Reset(num_pages).status());
  }

  void Run(const Case& c, const std::vector<StepPlan>& plans, Figures* figures) {
    for (StepPlan plan : plans) {
      StepResult result;
      backend_->TakeSeconds();
      const int64_t start_ns = clock_.NowNs();
      CHECK_OK(runner_->Execute(&plan, &result));
      const double seconds = static_cast<double>(clock_.NowNs() - start_ns) * 1e-9;
      const bool decode = plan.input_ids.size() == plan.rows.size();
      if (rank_ != 0 || decode != (c.output > 1) || plan.rows.size() != c.requests) continue;
      figures->steps.push_back({seconds, backend_->TakeSeconds()});
      figures->tokens = static_cast<uint32_t>(plan.input_ids.size());
      for (const PlanRow& row : plan.rows) figures->kv_tokens += row.start_pos + row.num_tokens;
    }
  }

  ModelRunner& runner() { return *runner_; }
  const Backend& backend() const { return *inner_; }
  const CpuBackendOptions& cpu() const { return cpu_; }
  uint64_t kv_token_bytes() const { return runner_->kv_page_bytes() / kPageSize; }

 private:
  template <typename T>
  static void Set(T* to, StatusOr<T> from) {
    CHECK_OK(from.status());
    *to = std::move(*from);
  }

  const RealClock clock_{};
  const Heartbeat heartbeat_{};
  uint32_t rank_ = 0;
  CpuBackendOptions cpu_;
  std::unique_ptr<Collective> collective_;
  std::unique_ptr<Backend> inner_;
  std::unique_ptr<TimedBackend> backend_;
  std::unique_ptr<ModelRunner> runner_;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), ranks_(options.cpu.ranks) {
    auto checkpoint = OpenCheckpoint(options.model);
    CHECK_OK(checkpoint.status());
    checkpoint_ = std::move(*checkpoint);
    auto segment =
        Segment::Create("ranks", CollectiveSegmentBytes(options.cpu.ranks, kCollectiveBytes));
    CHECK_OK(segment.status());
    segment_ = std::make_unique<Segment>(std::move(*segment));
    CHECK_OK(InitCollective(*segment_, options.cpu.ranks, kCollectiveBytes));
    OnAllRanks([&](uint32_t r) { ranks_[r].Start(options_, *checkpoint_, segment_.get(), r); });
    num_pages_ = static_cast<uint32_t>(ranks_[0].runner().max_kv_pages());
    OnAllRanks([&](uint32_t r) { ranks_[r].Reset(num_pages_); });
    threads_ = ranks_[0].cpu().threads.threads * options.cpu.ranks;
    memory_.resize(threads_, std::vector<uint8_t>(kReadBytes, 1));
  }

  void Run() {
    std::printf("%s, %s, %u ranks x %u threads\n", ranks_[0].backend().name(),
                ranks_[0].cpu().kernels->name, options_.cpu.ranks, ranks_[0].cpu().threads.threads);
    for (const Case& c : kCases) {
      const auto& wanted = options_.cases;
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), c.name) == wanted.end()) {
        continue;
      }
      const std::vector<StepPlan> plans = Plans(c, num_pages_);
      Figures figures;
      double bandwidth = 0;
      for (uint32_t i = 0; i < options_.repeat; ++i) {
        OnAllRanks([&](uint32_t r) { ranks_[r].Run(c, plans, &figures); });
        bandwidth = std::max(bandwidth, ReadBandwidth());
      }
      Report(c, &figures, bandwidth);
    }
  }

 private:
  void OnAllRanks(const std::function<void(uint32_t)>& run) {
    std::vector<std::thread> threads;
    for (uint32_t r = 1; r < ranks_.size(); ++r) threads.emplace_back(run, r);
    run(0);
    for (std::thread& thread : threads) thread.join();
  }

  // Bytes a second that as many threads as compute read together.
  double ReadBandwidth() {
    std::vector<std::thread> threads;
    const int64_t start_ns = RealClock::Now();
    for (uint32_t t = 0; t < threads_; ++t) {
      threads.emplace_back([&, t] { ReadSeconds(memory_[t].data(), kReadBytes); });
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = static_cast<double>(RealClock::Now() - start_ns) * 1e-9;
    return static_cast<double>(kReadBytes) * threads_ / seconds;
  }

  // Of all ranks: the matrices once, and K and V of all keys.
  double BytesAStep(const Figures& figures) {
    double bytes = 0;
    for (Rank& rank : ranks_) {
      bytes += static_cast<double>(rank.backend().memory().step_weights);
      bytes += static_cast<double>(rank.kv_token_bytes() * figures.kv_tokens) /
               static_cast<double>(figures.steps.size());
    }
    return bytes;
  }

  void Report(const Case& c, Figures* figures, double bandwidth) {
    std::vector<Figures::Step>& steps = figures->steps;
    std::sort(steps.begin(), steps.end(),
              [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    const double median = steps[steps.size() / 2].seconds;
    const double best = steps.front().seconds;
    const double bytes = BytesAStep(*figures);
    std::printf("%-12s %7.1f tok/s, %7.3f ms a step (best: %7.1f, %7.3f)\n", c.name,
                figures->tokens / median, median * 1e3, figures->tokens / best, best * 1e3);
    std::printf("    reads %.1f MB a step: %.1f GB/s (best: %.1f) of %.1f that reading reaches\n",
                bytes * 1e-6, bytes / median * 1e-9, bytes / best * 1e-9, bandwidth * 1e-9);
    Figures::Step sum;
    for (size_t s = 0; s <= steps.size() / 2; ++s) {
      sum.seconds += steps[s].seconds;
      for (size_t i = 0; i < kOpNames.size(); ++i) sum.ops[i] += steps[s].ops[i];
    }
    double rest = sum.seconds;
    std::printf("   ");
    for (size_t i = 0; i < kOpNames.size(); ++i) {
      rest -= sum.ops[i];
      if (sum.ops[i] > 0) std::printf(" %s %.1f %%,", kOpNames[i], 100 * sum.ops[i] / sum.seconds);
    }
    std::printf(" sampling and the rest %.1f %%\n", 100 * rest / sum.seconds);
  }

  const Options options_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Segment> segment_;
  std::vector<Rank> ranks_;
  uint32_t num_pages_ = 0;
  uint32_t threads_ = 1;
  std::vector<std::vector<uint8_t>> memory_;
};

std::string DefaultModel() {
  if (const char* path = std::getenv("FLOTILLA_TEST_MODEL")) return path;
  const char* home = std::getenv("HOME");
  return StrCat(home ? home : "", "/.cache/flotilla/SmolLM2-135M-Instruct.Q4_1.gguf");
}

}  // namespace
}  // namespace flotilla::bench

int main(int argc, char** argv) {
  using namespace flotilla;
  bench::Options options;
  options.model = bench::DefaultModel();
  CLI::App app("Whole steps of the model, op by op", "forward_bench");
  app.add_option("--model", options.model)->capture_default_str();
  app.add_option("--threads", options.cpu.threads, "Of each rank; 0: its share of the cores");
  app.add_option("--tp", options.cpu.ranks, "Ranks")->capture_default_str();
  app.add_option("--isa", options.cpu.isa)->capture_default_str();
  app.add_option("--dtype", options.cpu.dtype)->capture_default_str();
  app.add_option("--kv-cache-dtype", options.cpu.kv_cache_dtype)->capture_default_str();
  app.add_option("--spin-us", options.cpu.spin_us)->capture_default_str();
  app.add_option("--case", options.cases,
                 "decode-1, decode-8, decode-32, prefill-512; default: all");
  app.add_option("--repeat", options.repeat, "Runs of each case")->capture_default_str();
  ParseOrExit(&app, argc, argv);
  LogOptions log;
  log.level = "warn";
  InitLog(log);
  bench::Bench(options).Run();
}
