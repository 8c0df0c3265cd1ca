// Logits of a model as a worker runs it.
#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/memory_info.h"
#include "worker_proc/bench/bench_batches.h"
#include "worker_proc/bench/logits_source.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/runner/model_runner.h"

namespace flotilla::bench {
namespace {

class OwnSource final : public LogitsSource {
 public:
  explicit OwnSource(const OwnSourceOptions& options)
      : collective_(MakeSingleRankCollective()), backend_(MakeCpuBackend(options.cpu)) {}

  Status Load(const OwnSourceOptions& options) {
    vocab_size_ = options.checkpoint->config().vocab_size;
    ASSIGN_OR_RETURN(const SamplerKernels* sampler, cpu::SelectSamplerKernels(options.isa));
    ModelRunnerOptions runner;
    runner.page_size = kPageSize;
    runner.context_length = options.max_window;
    runner.max_running_requests = 1;
    runner.chunked_prefill_size = options.max_chunk;
    runner.available_memory = [] { return AvailableMemoryBytes(); };
    runner.on_logits = [this](uint32_t, uint32_t, std::span<const float> logits) {
      logits_.insert(logits_.end(), logits.begin(), logits.end());
      return OkStatus();
    };
    ASSIGN_OR_RETURN(runner_,
                     ModelRunner::Create({options.checkpoint, backend_.get(), collective_.get(),
                                          &heartbeat_, &clock_, sampler},
                                         runner));
    RETURN_IF_ERROR(runner_->AllocateKvCache(PagesOf(options.max_window)));
    return runner_->Reset().status();
  }

  Status Read(const Chunk& chunk, std::vector<float>* logits) override {
    StepPlan plan = PlanOf(chunk);
    StepResult result;
    logits_.clear();
    RETURN_IF_ERROR(runner_->Execute(&plan, &result));
    if (logits_.size() != uint64_t{chunk.count} * vocab_size_) {
      return absl::InternalError("a chunk has other logits than its positions'");
    }
    std::swap(*logits, logits_);
    return OkStatus();
  }

 private:
  static uint32_t PagesOf(uint32_t tokens) { return (tokens + kPageSize - 1) / kPageSize; }

  static StepPlan PlanOf(const Chunk& chunk) {
    const uint32_t end = chunk.begin + chunk.count;
    StepPlan plan;
    if (chunk.begin == 0) {
      plan.opens.push_back({});
      plan.opens[0].output_start = static_cast<uint32_t>(chunk.window->size());
    }
    PlanRow row;
    row.start_pos = chunk.begin;
    row.num_tokens = chunk.count;
    row.flags = kRowPromptLogprobs;
    for (uint32_t page = PagesOf(chunk.begin); page < PagesOf(end); ++page) {
      plan.new_pages.push_back(page);
    }
    row.num_new_pages = static_cast<uint32_t>(plan.new_pages.size());
    plan.rows.push_back(row);
    plan.input_ids.assign(chunk.window->begin() + chunk.begin, chunk.window->begin() + end);
    if (end == chunk.window->size()) plan.closes.push_back(0);
    return plan;
  }

  const RealClock clock_;
  const Heartbeat heartbeat_;
  const std::unique_ptr<Collective> collective_;
  const std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelRunner> runner_;
  uint32_t vocab_size_ = 0;
  std::vector<float> logits_;
};

}  // namespace

StatusOr<std::unique_ptr<LogitsSource>> MakeOwnSource(const OwnSourceOptions& options) {
  auto source = std::make_unique<OwnSource>(options);
  RETURN_IF_ERROR(source->Load(options));
  return std::unique_ptr<LogitsSource>(std::move(source));
}

}  // namespace flotilla::bench
