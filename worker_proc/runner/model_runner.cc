#include "worker_proc/runner/model_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "common/base/flags.h"
#include "common/base/log.h"
#include "worker_proc/model/registry.h"
#include "worker_proc/runner/kv_cache.h"
#include "worker_proc/runner/prepare_batch.h"
#include "worker_proc/runner/scratch.h"
#include "worker_proc/runner/weight_bytes.h"

namespace flotilla {
namespace {

// Rows of the head at once, [rows, vocabulary] floats: as many as may sample, within these.
constexpr uint32_t kLeastLogitsTile = 8;
constexpr uint32_t kMostLogitsTile = 32;
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

// Logs what a start-up step cost when it goes out of scope.
class StartupStep {
 public:
  StartupStep(const Clock* clock, const char* step)
      : clock_(clock), step_(step), start_ns_(clock->NowNs()) {}
  ~StartupStep() {
    Log().info("startup {} {} {}", Kv("step", step_),
               Kv("seconds", static_cast<double>(clock_->NowNs() - start_ns_) * 1e-9),
               Kv("bytes", bytes));
  }
  uint64_t bytes = 0;

 private:
  const Clock* const clock_;
  const char* const step_;
  const int64_t start_ns_;
};

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

ModelRunner::ModelRunner(const Deps& deps, const ModelRunnerOptions& options, TpPartition partition,
                         PaddingPolicy padding)
    : deps_(deps),
      options_(options),
      partition_(std::move(partition)),
      padding_(std::move(padding)),
      config_(deps.checkpoint->config()),
      context_length_(ContextLength(config_, options.context_length)),
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
  return {options_.max_running_requests,
          options_.chunked_prefill_size + options_.max_running_requests, num_pages_,
          config_.vocab_size, context_length_};
}

uint32_t ModelRunner::logits_tile() const {
  return std::clamp(options_.max_running_requests, kLeastLogitsTile, kMostLogitsTile);
}

uint64_t ModelRunner::kv_page_bytes() const {
  return deps_.backend->KvPageBytes(model_->kv_shape(partition_.rank));
}

Status ModelRunner::LoadModel() {
  const uint32_t max_tokens = limits().max_tokens;
  {
    StartupStep step(deps_.clock, "model");
    ASSIGN_OR_RETURN(
        model_, CreateModel({&config_, deps_.backend, deps_.collective, deps_.heartbeat, partition_,
                             max_tokens, std::min(logits_tile(), max_tokens), context_length_,
                             options_.page_size}));
  }
  {
    StartupStep step(deps_.clock, "weights");
    RETURN_IF_ERROR(CheckWeightsFit());
    WeightLoader loader(deps_.checkpoint, deps_.backend, model_->packed_modules_mapping(),
                        ProgressLine(deps_.clock, deps_.heartbeat));
    RETURN_IF_ERROR(model_->LoadWeights(&loader));
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
  step.bytes = deps_.backend->memory().activations;
  return OkStatus();
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

Status ModelRunner::SizeKvCache() {
  HostKvRequest request;
  request.kv_cache_memory = options_.kv_cache_memory;
  request.available_bytes = options_.available_memory();
  request.page_size = options_.page_size;
  request.context_length = context_length_;
  request.first_local_rank = options_.first_local_rank;
  request.local_ranks = options_.local_ranks;
  for (uint32_t rank = 0; rank < partition_.size; ++rank) {
    request.page_bytes.push_back(deps_.backend->KvPageBytes(model_->kv_shape(rank)));
  }
  if (options_.kv_pages_chosen) {
    max_kv_pages_ = request.available_bytes / request.page_bytes[partition_.rank];
  } else {
    ASSIGN_OR_RETURN(max_kv_pages_, HostKvPages(request));
  }
  Log().info("kv cache fits {} {} {}", Kv("pages", max_kv_pages_),
             Kv("tokens", max_kv_pages_ * options_.page_size),
             Kv("page_bytes", request.page_bytes[partition_.rank]));
  return OkStatus();
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
  StatusOr<uint64_t> hash;
  {
    StartupStep step(deps_.clock, "probe");
    hash = Probe();
  }
  slots_.Clear();
  if (hash.ok() && !options_.disable_precompile) PrepareAllPlans();
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
  RETURN_IF_ERROR(Run([&](const LogitsRow&, std::span<const float> logits) {
    hash = HashBits(logits, hash);
    return OkStatus();
  }));
  return hash;
}

template <typename Visit>
Status ModelRunner::Run(Visit visit) {
  if (batch_.num_tokens == 0) return OkStatus();
  ASSIGN_OR_RETURN(const Tensor hidden, model_->Forward(deps_.backend->BeginStep(batch_)));
  Status first_error = OkStatus();  // kept until the ranks have met for the last time
  for (size_t begin = 0; begin < batch_.logits_rows.size(); begin += logits_tile()) {
    const size_t end = std::min(batch_.logits_rows.size(), begin + logits_tile());
    tile_rows_.clear();
    for (size_t i = begin; i < end; ++i) tile_rows_.push_back(batch_.logits_rows[i].token_index);
    ASSIGN_OR_RETURN(const Tensor tensor, model_->ComputeLogits(hidden, tile_rows_));
    if (!is_root()) continue;
    ASSIGN_OR_RETURN(const std::span<float> logits, deps_.backend->ReadLogits(tensor));
    for (size_t i = begin; i < end && first_error.ok(); ++i) {
      first_error = visit(batch_.logits_rows[i],
                          logits.subspan((i - begin) * config_.vocab_size, config_.vocab_size));
    }
  }
  RETURN_IF_ERROR(deps_.backend->Finish());
  return first_error;
}

Status ModelRunner::UseLogits(const StepPlan& plan, const LogitsRow& row, std::span<float> logits,
                              StepResult* result) {
  RowResult& out = result->rows[row.row];
  const Slot& slot = slots_.slot(plan.rows[row.row].slot);
  const SamplingParams& params = slot.sampling;
  if (dump_) RETURN_IF_ERROR(dump_->Append(out.slot, row.position, logits));
  if (options_.on_logits) RETURN_IF_ERROR(options_.on_logits(out.slot, row.position, logits));
  if (row.prompt_logprobs && row.target >= 0) {
    const uint32_t n = params.num_prompt_logprobs == kNoLogprobs ? 0 : params.num_prompt_logprobs;
    if (out.prompt_logprobs.empty()) out.prompt_start = row.position + 1;
    RETURN_IF_ERROR(sampler_.Logprobs(logits, row.target, n, results_.AddPromptPosition(&out)));
  }
  if (!row.sample) return OkStatus();
  out.has_logprobs = params.num_logprobs != kNoLogprobs;
  ASSIGN_OR_RETURN(out.token, sampler_.Sample(logits,
                                              {.params = params,
                                               .position = row.position + 1,
                                               .logit_bias = slot.logit_bias,
                                               .counts = slot.history.counts(),
                                               .mask = row_masks_[row.row]},
                                              out.has_logprobs ? &out.logprobs : nullptr));
  return OkStatus();
}

Status ModelRunner::Pool(const StepPlan& plan, StepResult* result,
                         std::optional<uint32_t>* bad_slot) {
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    if ((row.flags & (kRowPoolMean | kRowEmbed)) == 0) continue;
    const Status pooled = PoolRow(row, batch_.cu_q_lens[i], &result->rows[i]);
    if (absl::IsDataLoss(pooled)) *bad_slot = row.slot;
    RETURN_IF_ERROR(pooled);
  }
  return OkStatus();
}

// Without kRowPoolMean the last position is all there is to pool.
Status ModelRunner::PoolRow(const PlanRow& row, uint32_t first_token, RowResult* out) {
  const bool mean = (row.flags & kRowPoolMean) != 0;
  const uint32_t end = first_token + row.num_tokens;
  std::vector<float>& sum = *slots_.pooled_sum(row.slot);
  sum.resize(config_.hidden_size);
  for (uint32_t begin = mean ? first_token : end - 1; begin < end;
       begin += std::min(logits_tile(), end - begin)) {
    tile_rows_.resize(std::min(logits_tile(), end - begin));
    std::iota(tile_rows_.begin(), tile_rows_.end(), begin);
    ASSIGN_OR_RETURN(const Tensor tensor, model_->HiddenStates(tile_rows_));
    RETURN_IF_ERROR(deps_.backend->Finish());
    ASSIGN_OR_RETURN(const std::span<const float> states, deps_.backend->ReadLogits(tensor));
    for (size_t i = 0; i < states.size(); ++i) sum[i % sum.size()] += states[i];
  }
  if ((row.flags & kRowEmbed) == 0) return OkStatus();
  const auto count = static_cast<float>(mean ? row.start_pos + row.num_tokens : 1);
  out->embedding = sum;
  for (float& value : out->embedding) {
    value /= count;
    if (!std::isfinite(value)) return absl::DataLossError("a hidden state is not finite");
  }
  return OkStatus();
}

Status ModelRunner::ShareTokens(const StepPlan& plan, const StepResult& result) {
  sampled_.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (plan.rows[i].flags & kRowSample) sampled_.push_back(result.rows[i].token);
  }
  if (sampled_.empty()) return OkStatus();
  RETURN_IF_ERROR(deps_.collective->Broadcast(std::as_writable_bytes(std::span(sampled_)), 0));
  const int32_t* token = sampled_.data();
  for (const PlanRow& row : plan.rows) {
    if (row.flags & kRowSample) slots_.SetLastToken(row.slot, *token++);
  }
  return OkStatus();
}

void ModelRunner::FindMasks(const StepPlan& plan) {
  const size_t words = MaskWords(config_.vocab_size);
  std::span<const uint32_t> rest = plan.masks;
  row_masks_.assign(plan.rows.size(), {});
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if ((plan.rows[i].flags & kRowMask) == 0) continue;
    row_masks_[i] = rest.first(words);
    rest = rest.subspan(words);
  }
}

Status ModelRunner::Execute(StepPlan* plan, StepResult* result) {
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
  std::optional<uint32_t> bad_slot;
  Status status = Run([&](const LogitsRow& row, std::span<float> logits) {
    Status used = UseLogits(*plan, row, logits, result);
    if (!used.ok()) bad_slot = plan->rows[row.row].slot;
    return used;
  });
  if (status.ok() && is_root()) status = Pool(*plan, result, &bad_slot);
  // Only rank 0 sees bad logits; the others wait for its tokens.
  if (status.ok() || absl::IsDataLoss(status)) RETURN_IF_ERROR(ShareTokens(*plan, *result));
  slots_.Close(*plan);
  if (status.ok()) return status;
  result->rows.clear();
  if (bad_slot.has_value()) result->rows.emplace_back().slot = *bad_slot;
  return status;
}

}  // namespace flotilla
