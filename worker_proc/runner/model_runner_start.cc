// ModelRunner's start: the model, its weights, the largest step, and how large the KV cache may be.
#include <algorithm>
#include <utility>

#include "common/base/flags.h"
#include "common/base/log.h"
#include "worker_proc/model/registry.h"
#include "worker_proc/runner/model_runner.h"
#include "worker_proc/runner/prepare_batch.h"
#include "worker_proc/runner/startup_step.h"
#include "worker_proc/runner/weight_bytes.h"

namespace flotilla {
namespace {

// Says how far the weights are, at most every half second.
WeightLoader::Progress ProgressLine(const Clock* clock, const Heartbeat* heartbeat) {
  return [clock, heartbeat, next_ns = clock->NowNs() + kNsPerSecond / 2](uint64_t done,
                                                                         uint64_t total) mutable {
    heartbeat->Beat();
    if (clock->NowNs() < next_ns) return;
    next_ns = clock->NowNs() + kNsPerSecond / 2;
    Log().info("loading weights {} {}", Kv("read", FormatBytes(done)),
               Kv("file", FormatBytes(total)));
  };
}

}  // namespace

Status ModelRunner::LoadModel() {
  const uint32_t max_tokens = limits().max_tokens;
  {
    StartupStep step(deps_.clock, "model");
    ASSIGN_OR_RETURN(model_,
                     CreateModel({&config_, deps_.backend, &model_collective_, deps_.heartbeat,
                                  partition_, max_tokens, std::min(logits_tile(), max_tokens),
                                  context_length_, options_.page_size}));
  }
  {
    StartupStep step(deps_.clock, "weights");
    RETURN_IF_ERROR(CheckWeightsFit());
    RETURN_IF_ERROR(CheckContextFits());
    WeightLoader loader(deps_.checkpoint, deps_.backend, model_->packed_modules_mapping(),
                        ProgressLine(deps_.clock, deps_.heartbeat));
    RETURN_IF_ERROR(model_->LoadWeights(&loader));
    deps_.checkpoint->ReleaseAllPages();
    weight_bytes_read_ = loader.bytes_read();
    step.bytes = deps_.backend->memory().weights;
    const BackendMemory memory = deps_.backend->memory();
    Log().info("weights {} {} {} {}", Kv("read", FormatBytes(loader.bytes_read())),
               Kv("in_memory", FormatBytes(step.bytes)),
               Kv("read_a_step", FormatBytes(memory.step_weights)),
               Kv("packed_now", FormatBytes(memory.packed)));
  }
  StartupStep step(deps_.clock, "warmup-profile");
  RETURN_IF_ERROR(model_->AllocateBuffers());
  RETURN_IF_ERROR(deps_.backend->Warmup(
      {max_tokens, options_.max_running_requests, context_length_, options_.page_size}));
  const uint32_t num_slots = options_.max_running_requests;
  if (!is_root()) {
    ASSIGN_OR_RETURN(device_sampler_, deps_.backend->FollowSampler(num_slots));
  } else if (options_.logits_dump.empty() && !options_.on_logits) {
    // Otherwise what is to be seen of every row must come to the host anyway.
    ASSIGN_OR_RETURN(device_sampler_,
                     deps_.backend->MakeSampler({std::min(logits_tile(), max_tokens), num_slots,
                                                 config_.vocab_size, sampler_.eos_ids()}));
  }
  if (options_.device_memory) RETURN_IF_ERROR(RunLargestStep());
  step.bytes = deps_.backend->memory().activations;
  return OkStatus();
}

// The largest step, then, so that none is the first of its kind when it serves, one of each other
// bucket. On a KV cache that is given back; the other ranks are not waited for. What ops and
// libraries take for it they keep.
Status ModelRunner::RunLargestStep() {
  const StepPlan plan =
      StepOfShape({limits().max_tokens, options_.max_running_requests}, /*decodes=*/false);
  const KvCacheShape shape = model_->kv_shape(partition_.rank);
  const auto pages = static_cast<uint32_t>(plan.new_pages.size());
  RETURN_IF_ERROR(deps_.backend->AllocateKvCache(shape, pages));
  model_collective_.set_out(true);
  Status ran = RunForNothing(plan);
  if (ran.ok() && !options_.disable_precompile) {
    const StatusOr<uint64_t> graph_bytes = deps_.backend->GraphBytes();
    ran = graph_bytes.status();
    if (ran.ok()) graph_bytes_ = *graph_bytes;
    const std::vector<PlanShape>& buckets = padding_.buckets();
    for (size_t bucket = 0; ran.ok() && bucket < buckets.size(); ++bucket) {
      if (bucket + 1 == padding_.num_prefill()) continue;
      ran = RunForNothing(StepOfShape(buckets[bucket], bucket >= padding_.num_prefill()));
      deps_.heartbeat->Beat();
    }
  }
  model_collective_.set_out(false);
  RETURN_IF_ERROR(ran);
  return deps_.backend->AllocateKvCache(shape, 0);
}

// Prompts, or tokens that each follow one, all in the same pages.
StepPlan ModelRunner::StepOfShape(const PlanShape& shape, bool decodes) const {
  const uint32_t tokens = shape.num_tokens;
  const uint32_t seqs = std::min(shape.num_seqs, tokens);
  StepPlan plan;
  for (uint32_t s = 0; s < seqs; ++s) {
    plan.opens.emplace_back().slot = s;
    PlanRow& row = plan.rows.emplace_back();
    row.slot = s;
    row.start_pos = decodes && context_length_ > 1 ? 1 : 0;
    row.num_tokens = std::min(context_length_, tokens / seqs + (s < tokens % seqs ? 1 : 0));
    row.num_new_pages =
        (row.start_pos + row.num_tokens + options_.page_size - 1) / options_.page_size;
    row.flags = kRowSample;
    plan.input_ids.resize(plan.input_ids.size() + row.num_tokens);
    for (uint32_t page = 0; page < row.num_new_pages; ++page) {
      plan.new_pages.push_back(decodes ? page : static_cast<uint32_t>(plan.new_pages.size()));
    }
  }
  return plan;
}

Status ModelRunner::RunForNothing(const StepPlan& plan) {
  RETURN_IF_ERROR(slots_.Apply(plan));
  PrepareBatch(plan, slots_, &batch_);
  const Status ran = Run([](std::span<const LogitsRow>, Tensor) { return OkStatus(); });
  slots_.Clear();
  return ran;
}

// Better a clear refusal than to be killed while loading.
Status ModelRunner::CheckWeightsFit() const {
  const uint64_t needed = WeightBytesOfRank(*deps_.checkpoint, *deps_.backend, partition_.size);
  const uint64_t available = options_.available_memory();
  if (needed <= available) return OkStatus();
  return absl::ResourceExhaustedError(StrCat(
      "too little memory: the weights need ", FormatBytes(needed), ", ", FormatBytes(available),
      " are available; free some, raise the container's limit or use "
      "a smaller model"));
}

// If it does not fit without weights, neither will it beside them, and before that the rotary
// table, which is as long as the context, could take all that is there.
Status ModelRunner::CheckContextFits() const {
  if (options_.device_memory) return OkStatus();
  return KvPagesThatFit(KvPageBytes()).status();
}

std::vector<uint64_t> ModelRunner::KvPageBytes() const {
  std::vector<uint64_t> bytes;
  for (uint32_t rank = 0; rank < partition_.size; ++rank) {
    bytes.push_back(deps_.backend->KvPageBytes(model_->kv_shape(rank)));
  }
  return bytes;
}

StatusOr<uint64_t> ModelRunner::KvPagesThatFit(std::vector<uint64_t> page_bytes) const {
  if (options_.kv_pages_chosen) return options_.available_memory() / page_bytes[partition_.rank];
  if (options_.device_memory) {
    DeviceKvRequest request;
    request.memory = options_.device_memory();
    request.graph_bytes = graph_bytes_;
    request.kv_cache_memory = options_.kv_cache_memory;
    request.page_bytes = std::move(page_bytes);
    request.rank = partition_.rank;
    request.page_size = options_.page_size;
    request.context_length = context_length_;
    return DeviceKvPages(request);
  }
  HostKvRequest request;
  request.kv_cache_memory = options_.kv_cache_memory;
  request.available_bytes = options_.available_memory();
  request.page_bytes = std::move(page_bytes);
  request.page_size = options_.page_size;
  request.context_length = context_length_;
  request.first_local_rank = options_.first_local_rank;
  request.local_ranks = options_.local_ranks;
  return HostKvPages(request);
}

Status ModelRunner::SizeKvCache() {
  const std::vector<uint64_t> page_bytes = KvPageBytes();
  ASSIGN_OR_RETURN(max_kv_pages_, KvPagesThatFit(page_bytes));
  Log().info("kv cache fits {} {} {}", Kv("pages", max_kv_pages_),
             Kv("tokens", max_kv_pages_ * options_.page_size),
             Kv("page_bytes", page_bytes[partition_.rank]));
  return OkStatus();
}

}  // namespace flotilla
