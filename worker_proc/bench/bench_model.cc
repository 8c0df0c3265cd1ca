#include "worker_proc/bench/bench_model.h"

#include <algorithm>

#include "common/base/cpus.h"
#include "common/base/memory_info.h"
#include "worker_proc/bench/bench_batches.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/isa.h"

namespace flotilla::bench {
namespace {

constexpr uint32_t kWakeRows = 64;
constexpr uint32_t kMaxSequences = 64;
constexpr uint32_t kStepPages = 512;  // of the largest step that is measured
constexpr uint32_t kMinPasses = 5, kQuickPasses = 2;
constexpr double kMinSeconds = 0.4;

}  // namespace

StatusOr<std::unique_ptr<BenchModel>> BenchModel::Create(const RooflineOptions& options,
                                                         const std::string& isa) {
  std::unique_ptr<BenchModel> model(new BenchModel());
  RETURN_IF_ERROR(model->Load(options, isa));
  RETURN_IF_ERROR(model->RecordOps());
  return model;
}

Status BenchModel::Load(const RooflineOptions& options, const std::string& isa) {
  min_passes_ = options.quick ? kQuickPasses : kMinPasses;
  min_seconds_ = options.quick ? 0 : kMinSeconds;
  ASSIGN_OR_RETURN(checkpoint_, OpenCheckpoint(options.model));
  CpuFlags flags;
  flags.isa = isa;
  flags.dtype = options.dtype;
  flags.kv_cache_dtype = options.kv_cache_dtype;
  flags.threads = options.threads;
  flags.spin_us = kSpinUs;
  ASSIGN_OR_RETURN(cpu_, ResolveCpuOptions(flags, *checkpoint_, AllowedCores()));
  ASSIGN_OR_RETURN(sampler_kernels_, cpu::SelectSamplerKernels(isa));
  ASSIGN_OR_RETURN(LimitMeter meter, LimitMeter::Create(isa, cpu_.threads, options.quick));
  meter_ = std::make_unique<LimitMeter>(std::move(meter));
  collective_ = MakeSingleRankCollective();
  backend_ = MakeCpuBackend(cpu_);
  recorder_ = std::make_unique<RecordingBackend>(backend_.get());
  context_ = std::min(kMaxContext, config().max_position_embeddings);
  ModelRunnerOptions runner;
  runner.page_size = kPageSize;
  runner.context_length = context_;
  runner.max_running_requests = kMaxSequences;
  runner.chunked_prefill_size = kMaxChunk;
  runner.available_memory = [] { return AvailableMemoryBytes(); };
  ASSIGN_OR_RETURN(runner_,
                   ModelRunner::Create({checkpoint_.get(), recorder_.get(), collective_.get(),
                                        &heartbeat_, &clock_, sampler_kernels_},
                                       runner));
  ASSIGN_OR_RETURN(wake_in_,
                   backend_->NewTensor(TensorUse::kHidden, kWakeRows, config().hidden_size));
  ASSIGN_OR_RETURN(wake_out_,
                   backend_->NewTensor(TensorUse::kLinearInput, kWakeRows, config().hidden_size));
  num_pages_ = static_cast<uint32_t>(std::min<uint64_t>(kStepPages, runner_->max_kv_pages()));
  RETURN_IF_ERROR(runner_->AllocateKvCache(num_pages_));
  return runner_->Reset().status();
}

Status BenchModel::RecordOps() {
  const uint32_t tokens = std::min(kMaxChunk, context_);
  const SequenceSize prompt[] = {{tokens, tokens}};
  recorder_->Record();
  RETURN_IF_ERROR(StepSeconds(MakePlan(prompt, config().vocab_size)).status());
  ops_ = recorder_->TakeOps();
  // Numbers that a model has computed, all over the cache: the steps that are measured read them.
  for (uint32_t begin = 0; begin < num_pages_ * kPageSize; begin += tokens) {
    const ForwardBatch batch =
        MakeFillBatch(begin, std::min(tokens, num_pages_ * kPageSize - begin), context_);
    const AttentionContext context = backend_->BeginStep(batch);
    for (const RecordedOp& op : ops_) {
      if (op.op != Op::kRope || !op.layer.writes_kv) continue;
      backend_->RopeAndWriteKv({*op.rope, op.layer}, context, op.x.First(batch.num_tokens));
    }
  }
  return OkStatus();
}

StatusOr<double> BenchModel::StepSeconds(const StepPlan& plan) {
  if (plan.new_pages.size() > num_pages_) {
    return absl::ResourceExhaustedError(StrCat("too little memory: the KV cache has ", num_pages_,
                                               " pages, the largest step needs ",
                                               plan.new_pages.size()));
  }
  StepPlan copy = plan;
  StepResult result;
  Status status;
  recorder_->TakeSeconds();
  const double seconds = SecondsOf([&] { status = runner_->Execute(&copy, &result); });
  RETURN_IF_ERROR(status);
  return seconds;
}

Status BenchModel::Measure(RooflineRow row, const Pass& pass, std::vector<RooflineRow>* rows) {
  uint32_t passes = 0;
  std::vector<double> seconds;
  meter_->Begin();
  const int64_t start_ns = clock_.NowNs();
  do {
    meter_->Pass();
    WakeThreads();
    RETURN_IF_ERROR(pass(&seconds));
  } while (++passes < min_passes_ ||
           static_cast<double>(clock_.NowNs() - start_ns) * 1e-9 < min_seconds_);
  best_one_.RaiseTo(meter_->one());
  best_all_.RaiseTo(meter_->all());
  row.seconds = TimesOf(std::move(seconds));
  row.limit_beside = LimitOf(row.works, row.one_thread ? meter_->one() : meter_->all());
  rows->push_back(std::move(row));
  return OkStatus();
}

void BenchModel::WakeThreads() {
  const auto norm = std::find_if(ops_.begin(), ops_.end(),
                                 [](const RecordedOp& op) { return op.op == Op::kNorm; });
  if (norm == ops_.end()) return;
  for (int i = 0; i < 50; ++i) backend_->RmsNorm(wake_in_, *norm->norm, norm->eps, wake_out_);
}

Work BenchModel::TokenWork(const LinearWeight& weight) const {
  Work work;
  for (const cpu::LinearPart& part : static_cast<const cpu::CpuLinear&>(weight).parts) {
    const double macs = double{1} * part.rows * weight.in_features;
    (part.quant == nullptr   ? work.fp32_macs
     : part.format.bits == 4 ? work.int4_macs
                             : work.int8_macs) += macs;
  }
  return work;
}

AttentionShape BenchModel::ShapeOf(const AttentionLayer& layer) const {
  const cpu::KvType type = cpu_.kv_cache_dtype;
  return {layer.num_heads,
          layer.num_kv_heads,
          layer.qk_dim,
          layer.v_dim,
          cpu::KvRowBytes(type, layer.qk_dim) + cpu::KvRowBytes(type, layer.v_dim),
          layer.window};
}

}  // namespace flotilla::bench
