// A model on N ranks that are threads of the test over one ShmCollective. No processes and no
// rings: the model runner alone.
//
// Threads: the caller's; each call runs all ranks in parallel and joins them. Errors: CHECK.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/memory_info.h"
#include "shm/collective.h"
#include "worker_proc/cpu/cpu_backend.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/runner/model_runner.h"

namespace flotilla::testing {

struct RankThreadsOptions {
  uint32_t tp = 1;
  uint32_t threads = 1;  // of each rank
  cpu::ComputeType dtype = cpu::ComputeType::kFloat32;
  cpu::KvType kv_cache_dtype = cpu::KvType::kFloat32;
  std::string isa = "auto";
  const cpu::QuantKernelTable* quant_kernels = nullptr;  // null: those of `isa`
  std::string logits_dump = {};
  uint32_t page_size = 16;
  uint32_t chunked_prefill_size = 512;
  uint32_t context_length = 0;
  uint32_t max_running_requests = 8;
  std::vector<int32_t> eos_ids = {};
  cpu::PackCacheOptions pack_cache = {};
  bool disable_precompile = false;
  std::vector<uint32_t> precompile_token_paddings = {}, precompile_bs_paddings = {};
  // Of each rank; none: the CPU's, as the options above say.
  std::function<std::unique_ptr<Backend>()> make_backend = {};
};

class RankThreads {
 public:
  RankThreads(const Checkpoint* checkpoint, const RankThreadsOptions& options)
      : checkpoint_(checkpoint), options_(options), ranks_(options.tp) {
    if (options.tp > 1) {
      segment_ = std::make_unique<Segment>(
          *Segment::Create("ranks", CollectiveSegmentBytes(options.tp, 1 << 16)));
      CHECK_OK(InitCollective(*segment_, options.tp, 1 << 16));
    }
    OnAllRanks([this](uint32_t r) { Start(r); });
    BeginEpoch(1);
  }

  // The rank's process has died, and its successor is there; all of them begin the next epoch.
  void Respawn(uint32_t rank, uint32_t epoch) {
    ranks_[rank].runner.reset();  // before the backend, whose weights it has
    ranks_[rank].backend.reset();
    Start(rank);
    BeginEpoch(epoch);
  }

  StepResult Execute(const StepPlan& plan) {
    std::vector<StepResult> results(ranks_.size());
    std::vector<StepPlan> plans(ranks_.size(), plan);
    OnAllRanks([&](uint32_t r) { CHECK_OK(ranks_[r].runner->Execute(&plans[r], &results[r])); });
    return results[0];
  }
  ModelRunner& runner(uint32_t rank = 0) { return *ranks_[rank].runner; }
  Backend& backend(uint32_t rank = 0) { return *ranks_[rank].backend; }
  uint64_t probe_hash() const { return probe_hash_; }
  uint32_t num_pages() { return ranks_[0].runner->limits().num_pages; }

 private:
  struct Rank {
    std::unique_ptr<Collective> collective;
    std::unique_ptr<Backend> backend;
    std::unique_ptr<ModelRunner> runner;
  };

  void Start(uint32_t r) {
    ModelRunnerOptions runner;
    runner.page_size = options_.page_size;
    runner.context_length = options_.context_length;
    runner.max_running_requests = options_.max_running_requests;
    runner.chunked_prefill_size = options_.chunked_prefill_size;
    runner.kv_cache_memory = 64 << 20;
    runner.available_memory = [] { return AvailableMemoryBytes(); };
    runner.logits_dump = options_.logits_dump;
    runner.eos_ids = options_.eos_ids;
    runner.disable_precompile = options_.disable_precompile;
    runner.precompile_token_paddings = options_.precompile_token_paddings;
    runner.precompile_bs_paddings = options_.precompile_bs_paddings;
    Rank& rank = ranks_[r];
    rank.collective = options_.tp == 1 ? MakeSingleRankCollective() : Attach(r);
    CpuBackendOptions cpu_options;
    cpu_options.kernels = *cpu::SelectKernels(options_.isa);
    cpu_options.quant_kernels = options_.quant_kernels != nullptr
                                    ? options_.quant_kernels
                                    : *cpu::SelectQuantKernels(options_.isa);
    cpu_options.dtype = options_.dtype;
    cpu_options.kv_cache_dtype = options_.kv_cache_dtype;
    cpu_options.threads.threads = options_.threads;
    cpu_options.pack_cache = options_.pack_cache;
    cpu_options.pack_cache.rank = r;
    cpu_options.pack_cache.ranks = options_.tp;
    rank.backend = options_.make_backend ? options_.make_backend() : MakeCpuBackend(cpu_options);
    auto created =
        ModelRunner::Create({checkpoint_, rank.backend.get(), rank.collective.get(), &heartbeat_,
                             &clock_, *cpu::SelectSamplerKernels(options_.isa)},
                            runner);
    CHECK_OK(created.status());
    rank.runner = std::move(*created);
  }
  void BeginEpoch(uint32_t epoch) {
    const auto pages = static_cast<uint32_t>(ranks_[0].runner->max_kv_pages());
    OnAllRanks([&](uint32_t r) {
      CHECK_OK(ranks_[r].runner->AllocateKvCache(pages));
      CHECK_OK(ranks_[r].collective->Reset(epoch));
      const StatusOr<uint64_t> hash = ranks_[r].runner->Reset();
      CHECK_OK(hash.status());
      if (r == 0) probe_hash_ = *hash;
    });
  }
  std::unique_ptr<Collective> Attach(uint32_t rank) {
    ShmCollectiveOptions options;
    options.rank = rank;
    auto collective = AttachShmCollective(segment_.get(), options);
    CHECK_OK(collective.status());
    return std::move(*collective);
  }
  void OnAllRanks(const std::function<void(uint32_t)>& run) {
    std::vector<std::thread> threads;
    for (uint32_t r = 1; r < ranks_.size(); ++r) threads.emplace_back(run, r);
    run(0);
    for (std::thread& thread : threads) thread.join();
  }

  const Checkpoint* const checkpoint_;
  const RankThreadsOptions options_;
  const RealClock clock_;
  const Heartbeat heartbeat_;
  std::unique_ptr<Segment> segment_;
  std::vector<Rank> ranks_;
  uint64_t probe_hash_ = 0;
};

}  // namespace flotilla::testing
