#include "worker_proc/runner/model_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "worker_proc/runner/prepare_batch.h"
#include "worker_proc/runner/scratch.h"
#include "worker_proc/runner/startup_step.h"

namespace flotilla {
namespace {

// Rows of the head at once, [rows, vocabulary] floats: as many as may sample, within these.
constexpr uint32_t kLeastLogitsTile = 8;
constexpr uint32_t kMostLogitsTile = 32;
constexpr uint32_t kMostDeviceLogitsTile = 256;  // where they are not brought to the host
constexpr uint32_t kProbeTokens = 8;

uint32_t ContextLength(const ModelConfig& config, uint32_t wanted) {
  return wanted == 0 ? config.max_position_embeddings : wanted;
}

Status CheckOptions(const ModelConfig& config, const ModelRunnerOptions& options) {
  if (options.context_length > config.max_position_embeddings) {
    return absl::InvalidArgumentError(StrCat("--context-length ", options.context_length,
                                             " is more than the model's ",
                                             config.max_position_embeddings));
  }
  if (options.page_size == 0 || options.max_running_requests == 0 ||
      options.chunked_prefill_size == 0) {
    return absl::InvalidArgumentError(
        "--page-size, --max-running-requests and --chunked-prefill-size must be at least 1");
  }
  return OkStatus();
}

// FNV-1a over the bits.
uint64_t HashBits(std::span<const float> values, uint64_t hash) {
  for (float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 0x100000001b3;
  }
  return hash;
}

}  // namespace

ModelRunner::ModelRunner(const Deps& deps, const ModelRunnerOptions& options, TpPartition partition,
                         PaddingPolicy padding)
    : deps_(deps),
      options_(options),
      partition_(std::move(partition)),
      padding_(std::move(padding)),
      config_(deps.checkpoint->config()),
      context_length_(ContextLength(config_, options.context_length)),
      model_collective_(deps.collective),
      slots_(options.max_running_requests, options.page_size, context_length_),
      sampler_(deps.sampler_kernels, options.eos_ids),
      results_(limits().max_slots, limits().max_tokens),
      prepared_(padding_.buckets().size()) {}

StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(const Deps& deps,
                                                           const ModelRunnerOptions& options) {
  const ModelConfig& config = deps.checkpoint->config();
  RETURN_IF_ERROR(CheckOptions(config, options));
  ASSIGN_OR_RETURN(TpPartition partition,
                   MakeTpPartition(config, deps.collective->rank(), deps.collective->size()));
  ASSIGN_OR_RETURN(
      PaddingPolicy padding,
      PaddingPolicy::Create({options.chunked_prefill_size, options.max_running_requests,
                             options.precompile_token_paddings, options.precompile_bs_paddings}));
  std::unique_ptr<ModelRunner> runner(
      new ModelRunner(deps, options, std::move(partition), std::move(padding)));
  RETURN_IF_ERROR(runner->LoadModel());
  RETURN_IF_ERROR(runner->SizeKvCache());
  if (runner->is_root() && !options.logits_dump.empty()) {
    ASSIGN_OR_RETURN(runner->dump_, LogitsDump::Open(options.logits_dump));
  }
  return runner;
}

StepPlanLimits ModelRunner::limits() const {
  // Those that run have no more tokens than their contexts take.
  const uint64_t most = uint64_t{options_.max_running_requests} * context_length_;
  const uint64_t planned = uint64_t{options_.chunked_prefill_size} + options_.max_running_requests;
  return {options_.max_running_requests, static_cast<uint32_t>(std::min(planned, most)), num_pages_,
          config_.vocab_size, context_length_};
}

uint32_t ModelRunner::logits_tile() const {
  return std::clamp(options_.max_running_requests, kLeastLogitsTile,
                    options_.device_memory ? kMostDeviceLogitsTile : kMostLogitsTile);
}

uint64_t ModelRunner::kv_page_bytes() const {
  return deps_.backend->KvPageBytes(model_->kv_shape(partition_.rank));
}

Status ModelRunner::AllocateKvCache(uint32_t num_pages) {
  if (num_pages == 0 || num_pages == num_pages_) return OkStatus();
  if (num_pages > max_kv_pages_) {
    return absl::UnavailableError(StrCat("too little memory now: the KV cache has ", num_pages,
                                         " pages, ", max_kv_pages_, " fit this rank"));
  }
  StartupStep step(deps_.clock, "kv-cache");
  RETURN_IF_ERROR(deps_.backend->AllocateKvCache(model_->kv_shape(partition_.rank), num_pages));
  num_pages_ = num_pages;
  step.bytes = deps_.backend->memory().kv_cache;
  return OkStatus();
}

StatusOr<uint64_t> ModelRunner::Reset() {
  slots_.Clear();
  if (num_pages_ == 0) return absl::InvalidArgumentError("reset without a number of KV pages");
  RETURN_IF_ERROR(deps_.backend->ConnectRanks(*deps_.collective));
  RETURN_IF_ERROR(AgreeWhetherStepsBegin());
  StatusOr<uint64_t> hash;
  {
    StartupStep step(deps_.clock, "probe");
    hash = Probe();
  }
  slots_.Clear();
  RETURN_IF_ERROR(hash.status());
  const bool precompile = !options_.disable_precompile;
  if (precompile) PrepareAllPlans();
  RETURN_IF_ERROR(deps_.backend->PrepareGraphs(*deps_.collective, precompile));
  return hash;
}

void ModelRunner::PrepareAllPlans() {
  if (std::all_of(prepared_.begin(), prepared_.end(), std::identity())) return;  // a later epoch
  StartupStep step(deps_.clock, "plans");
  for (size_t bucket = 0; bucket < prepared_.size(); ++bucket) PreparePlan(bucket);
  Log().info("plans prepared {} {} {}", Kv("prefill", padding_.num_prefill()),
             Kv("decode", prepared_.size() - padding_.num_prefill()),
             Kv("tokens", limits().max_tokens));
}

void ModelRunner::PreparePlan(size_t bucket) {
  const PlanShape& shape = padding_.buckets()[bucket];
  MakeRoom(shape, slots_, &batch_);
  deps_.backend->PreparePlan(shape);
  MakeRoom(logits_tile(), &tile_rows_);
  MakeRoom(shape.num_seqs, &row_masks_);
  MakeRoom(shape.num_seqs, &sampled_);
  if (is_root()) sampler_.MakeRoomFor(config_.vocab_size);
  prepared_[bucket] = true;
}

// A fixed short prompt through the real path. Its pages are free again afterwards.
StatusOr<uint64_t> ModelRunner::Probe() {
  const uint32_t tokens = std::min({kProbeTokens, context_length_, options_.chunked_prefill_size});
  StepPlan plan;
  plan.opens.push_back({});
  PlanRow row;
  row.num_tokens = tokens;
  row.num_new_pages = (tokens + options_.page_size - 1) / options_.page_size;
  row.flags = kRowPromptLogprobs;
  plan.rows.push_back(row);
  for (uint32_t i = 0; i < tokens; ++i) {
    plan.input_ids.push_back(static_cast<int32_t>((1 + i * 613) % config_.vocab_size));
  }
  for (uint32_t page = 0; page < row.num_new_pages; ++page) plan.new_pages.push_back(page);
  RETURN_IF_ERROR(slots_.Apply(plan));
  PrepareBatch(plan, slots_, &batch_);
  uint64_t hash = is_root() ? 0xcbf29ce484222325 : 0;
  RETURN_IF_ERROR(RunOnHost([&](const LogitsRow&, std::span<const float> logits) {
    hash = HashBits(logits, hash);
    const bool finite =
        std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
    return finite ? OkStatus()
                  : absl::FailedPreconditionError(
                        "the model's logits of a fixed prompt are not finite: its weights are "
                        "damaged, or too large for this type (--dtype float32)");
  }));
  return hash;
}

StatusOr<Tensor> ModelRunner::RunForward() {
  return deps_.backend->RunForward(
      batch_, [this](const AttentionContext& context) { return model_->Forward(context); });
}

Status ModelRunner::Run(VisitTile visit) {
  if (batch_.num_tokens == 0) return OkStatus();
  ASSIGN_OR_RETURN(const Tensor hidden, RunForward());
  Status first_error = OkStatus();  // kept until the ranks have met for the last time
  for (size_t begin = 0; begin < batch_.logits_rows.size(); begin += logits_tile()) {
    const size_t end = std::min(batch_.logits_rows.size(), begin + logits_tile());
    tile_rows_.clear();
    for (size_t i = begin; i < end; ++i) tile_rows_.push_back(batch_.logits_rows[i].token_index);
    ASSIGN_OR_RETURN(const Tensor tensor, model_->ComputeLogits(hidden, tile_rows_));
    // Before what waits without looking whether the other ranks still live.
    if (partition_.size > 1) RETURN_IF_ERROR(deps_.backend->Finish());
    if (is_root() && first_error.ok()) {
      first_error = visit(std::span(batch_.logits_rows).subspan(begin, end - begin), tensor);
    }
  }
  RETURN_IF_ERROR(deps_.backend->Finish());
  return first_error;
}

Status ModelRunner::RunOnHost(VisitRow visit) {
  return Run([&](std::span<const LogitsRow> rows, Tensor tensor) -> Status {
    ASSIGN_OR_RETURN(const std::span<float> logits, deps_.backend->ReadLogits(tensor));
    for (size_t i = 0; i < rows.size(); ++i) {
      RETURN_IF_ERROR(visit(rows[i], logits.subspan(i * config_.vocab_size, config_.vocab_size)));
    }
    return OkStatus();
  });
}

Status ModelRunner::PrepareStep(StepPlan* plan, StepResult* result) {
  results_.Renew(plan->rows.size(), result);
  RETURN_IF_ERROR(slots_.FillLastTokens(plan));
  RETURN_IF_ERROR(slots_.Apply(*plan));
  PrepareBatch(*plan, slots_, &batch_);
  if (batch_.num_tokens > 0) {
    const size_t bucket = padding_.BucketOf(batch_.mode, {batch_.num_tokens, batch_.num_seqs});
    if (!prepared_[bucket]) {
      ++plan_misses_;
      PreparePlan(bucket);
    }
  }
  for (size_t i = 0; i < plan->rows.size(); ++i) result->rows[i].slot = plan->rows[i].slot;
  FindMasks(*plan);
  return OkStatus();
}

Status ModelRunner::Finished(const Status& status, std::optional<uint32_t> bad_slot,
                             StepResult* result) {
  if (status.ok()) return status;
  result->rows.clear();
  if (bad_slot.has_value()) result->rows.emplace_back().slot = *bad_slot;
  return status;
}

Status ModelRunner::Execute(StepPlan* plan, StepResult* result) {
  CHECK(num_begun() == 0);
  RETURN_IF_ERROR(PrepareStep(plan, result));
  last_mode_ = StepMode(*plan);
  std::optional<uint32_t> bad_slot;
  const auto on_host = [&](const LogitsRow& row, std::span<float> logits) {
    Status used = UseLogits(*plan, row, logits, result);
    if (!used.ok()) bad_slot = plan->rows[row.row].slot;
    return used;
  };
  const auto on_device = [&](std::span<const LogitsRow> rows, Tensor logits) {
    AskFor(*plan, rows, result, &draws_);
    const Status sampled = device_sampler_->Sample(logits, draws_.queries, draws_.tokens);
    return UseDraws(*plan, &draws_, sampled, result, &bad_slot);
  };
  Status status = device_sampler_ == nullptr ? RunOnHost(on_host) : Run(on_device);
  if (status.ok() && is_root()) status = Pool(*plan, result, &bad_slot);
  // Only rank 0 sees bad logits; the others wait for its tokens.
  if (status.ok() || absl::IsDataLoss(status)) RETURN_IF_ERROR(ShareTokens(*plan, *result));
  slots_.Close(*plan);
  return Finished(status, bad_slot, result);
}

}  // namespace flotilla
