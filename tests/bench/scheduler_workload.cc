#include "tests/bench/scheduler_workload.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <new>

#include "common/base/check.h"

namespace {
uint64_t num_allocations = 0;  // the benchmark has one thread

void* CountedAlloc(size_t size, size_t alignment) {
  ++num_allocations;
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(size_t size) { return CountedAlloc(size, 1); }
void* operator new(size_t size, std::align_val_t alignment) {
  return CountedAlloc(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace flotilla {
namespace {

constexpr uint32_t kVocabSize = 150000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// How often the kernel gave the core to someone else.
int64_t Interruptions() {
  rusage usage;
  CHECK(getrusage(RUSAGE_THREAD, &usage) == 0);
  return usage.ru_nivcsw;
}

}  // namespace

uint64_t NumAllocations() { return num_allocations; }

SchedulerWorkload::SchedulerWorkload(const SchedulerWorkloadOptions& options)
    : options_(options), random_(options.seed) {
  SchedulerConfig config;
  config.schedule_policy = options.policy;
  config.page_size = options.page_size;
  config.max_running_requests = options.num_running;
  config.max_queued_requests = options.num_waiting + options.num_running;
  config.chunked_prefill_size = options.chunked_prefill_size;
  config.context_length = options.prompt_tokens + 2 * options.mean_output;
  config.vocab_size = kVocabSize;
  // Half as much again as those who run can need: the rest is cache, and is evicted.
  config.num_pages = static_cast<uint32_t>(uint64_t{options.num_running} * config.context_length *
                                           3 / 2 / options.page_size) +
                     options.num_prefixes * options.shared_tokens / options.page_size;
  scheduler_ = std::make_unique<Scheduler>(config);
  scheduler_->BeginEpoch(1, config.num_pages);
  for (uint32_t i = 0; i < options.num_prefixes; ++i) {
    std::vector<int32_t>& prefix = prefixes_.emplace_back(options.shared_tokens);
    for (int32_t& token : prefix) token = static_cast<int32_t>(random_() % kVocabSize);
  }
  // Else they grow at the rare step that admits more than any before.
  outputs_.reserve(options.num_running);
  plan_.opens.reserve(options.num_running);
  plan_.closes.reserve(options.num_running);
  plan_.input_ids.reserve(options.num_running + options.chunked_prefill_size);
  plan_.new_pages.reserve(size_t{options.num_running} * config.context_length / options.page_size);
  while (stats().running < options.num_running) Run(16, nullptr);
}

ReqSpec SchedulerWorkload::NewSpec() {
  ReqSpec spec;
  spec.id = next_id_++;
  const uint64_t group = random_() % prefixes_.size();
  spec.prompt_ids.reserve(options_.prompt_tokens);
  spec.prompt_ids = prefixes_[group];
  while (spec.prompt_ids.size() < options_.prompt_tokens) {
    spec.prompt_ids.push_back(static_cast<int32_t>(random_() % kVocabSize));
  }
  spec.max_new_tokens =
      options_.mean_output / 2 + static_cast<uint32_t>(random_() % options_.mean_output);
  spec.ignore_eos = true;
  spec.cache_salt = std::to_string(group % options_.num_tenants);
  spec.priority = static_cast<int32_t>(random_() % 201) - 100;
  return spec;
}

void SchedulerWorkload::Refill(StepCosts* costs) {
  while (stats().waiting < options_.num_waiting) {
    ReqSpec spec = NewSpec();
    const uint64_t before = NumAllocations();
    CHECK_OK(scheduler_->Add(std::move(spec), now_ns_));
    if (costs == nullptr) continue;
    costs->add_allocations += NumAllocations() - before;
    ++costs->added;
  }
}

void SchedulerWorkload::Answer() {
  result_.step_id = plan_.step_id;
  result_.epoch = plan_.epoch;
  result_.rows.resize(plan_.rows.size());
  for (size_t i = 0; i < plan_.rows.size(); ++i) {
    result_.rows[i].slot = plan_.rows[i].slot;
    result_.rows[i].token = plan_.rows[i].flags & kRowSample
                                ? static_cast<int32_t>((plan_.step_id * 31 + i) % kVocabSize)
                                : -1;
  }
}

void SchedulerWorkload::Run(uint32_t steps, StepCosts* costs) {
  if (costs != nullptr) {
    costs->plan_ns.reserve(costs->plan_ns.size() + steps);
    costs->result_ns.reserve(costs->result_ns.size() + steps);
  }
  for (uint32_t step = 0; step < steps; ++step) {
    Refill(costs);
    now_ns_ += 10'000'000;
    outputs_.clear();
    const int64_t interruptions = Interruptions();
    const uint64_t start_allocations = NumAllocations();
    const int64_t start_ns = NowNs();
    CHECK(scheduler_->PlanStep(now_ns_, &plan_));
    const int64_t planned_ns = NowNs();
    const uint64_t planned_allocations = NumAllocations();
    Answer();
    const uint64_t answered_allocations = NumAllocations();
    const int64_t answered_ns = NowNs();
    scheduler_->OnResult(result_, now_ns_, &outputs_);
    const int64_t end_ns = NowNs();
    if (costs == nullptr) continue;
    ++costs->steps;
    costs->admitted += plan_.opens.size();
    costs->plan_allocations += planned_allocations - start_allocations;
    costs->result_allocations += NumAllocations() - answered_allocations;
    if (Interruptions() != interruptions) {
      ++costs->interrupted;
      continue;
    }
    costs->plan_ns.push_back(planned_ns - start_ns);
    costs->result_ns.push_back(end_ns - answered_ns);
  }
}

}  // namespace flotilla
