#include "worker_proc/bench/inspect.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/cpu_features.h"
#include "common/base/cpus.h"
#include "common/base/default_model.h"
#include "common/base/flags.h"
#include "common/base/log.h"
#include "shm/replica_control.h"
#include "worker_proc/bench/bench_batches.h"
#include "worker_proc/bench/inspect_model.h"
#include "worker_proc/cpu/cpu_options.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/model/registry.h"
#include "worker_proc/runner/heartbeat.h"
#include "worker_proc/runner/sampler.h"

namespace flotilla::bench {
namespace {

constexpr uint32_t kLogitsRows[] = {1, 8, 32};
constexpr int kRuns = 3;

using Sequences = std::vector<SequenceSize>;

// A model on its backend, without a runner: its executables can be called one by one.
class Inspector {
 public:
  Status Load(const InspectOptions& options);
  StatusOr<std::vector<Executable>> List();

 private:
  uint32_t context() const { return checkpoint_->config().max_position_embeddings; }
  Sequences SequencesOf(size_t bucket) const;
  // `run` once before, then the best of some.
  template <typename Run>
  StatusOr<double> Best(const Run& run) const;
  Status AddForward(size_t bucket, std::vector<Executable>* list);
  Status AddLogits(uint32_t rows, std::vector<Executable>* list);
  Status AddSampler(std::vector<Executable>* list);

  const RealClock clock_{};
  const Heartbeat heartbeat_{};
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Collective> collective_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<PaddingPolicy> policy_;
  const SamplerKernels* sampler_kernels_ = nullptr;
};

Status Inspector::Load(const InspectOptions& options) {
  ASSIGN_OR_RETURN(PaddingPolicy policy, PaddingPolicy::Create(options.padding));
  policy_ = std::make_unique<PaddingPolicy>(std::move(policy));
  ASSIGN_OR_RETURN(checkpoint_, OpenCheckpoint(options.model));
  CpuFlags flags;
  flags.isa = options.isa;
  flags.dtype = options.dtype;
  flags.kv_cache_dtype = options.kv_cache_dtype;
  flags.threads = options.threads;
  flags.spin_us = kSpinUs;
  ASSIGN_OR_RETURN(const CpuBackendOptions cpu,
                   ResolveCpuOptions(flags, *checkpoint_, AllowedCores()));
  ASSIGN_OR_RETURN(sampler_kernels_, cpu::SelectSamplerKernels(options.isa));
  backend_ = MakeCpuBackend(cpu);
  collective_ = MakeSingleRankCollective();
  const ModelConfig& config = checkpoint_->config();
  ASSIGN_OR_RETURN(TpPartition partition, MakeTpPartition(config, 0, 1));
  const PlanShape most = GetMaxPaddedSize(options.padding);
  const uint32_t logits_rows = *std::max_element(std::begin(kLogitsRows), std::end(kLogitsRows));
  ASSIGN_OR_RETURN(
      model_,
      CreateModel({&config, backend_.get(), collective_.get(), &heartbeat_, std::move(partition),
                   std::max(most.num_tokens, logits_rows), logits_rows, context(), kPageSize}));
  WeightLoader loader(checkpoint_.get(), backend_.get(), model_->packed_modules_mapping(), nullptr);
  RETURN_IF_ERROR(model_->LoadWeights(&loader));
  RETURN_IF_ERROR(model_->AllocateBuffers());
  RETURN_IF_ERROR(backend_->Warmup({std::max(most.num_tokens, logits_rows),
                                    std::max(most.num_seqs, logits_rows), context(), kPageSize}));
  uint32_t pages = logits_rows;
  for (size_t i = 0; i < policy_->buckets().size(); ++i) {
    pages = std::max(pages, PagesOf(SequencesOf(i)));
  }
  return backend_->AllocateKvCache(model_->kv_shape(0), pages);
}

// Prefill: one sequence, or as many as the context makes of it; decode: a token after a page.
Sequences Inspector::SequencesOf(size_t bucket) const {
  const PlanShape& shape = policy_->buckets()[bucket];
  if (bucket >= policy_->num_prefill()) {
    const uint32_t kv_tokens = std::min(kPageSize, context());
    return Sequences(shape.num_seqs, {1, kv_tokens});
  }
  Sequences sequences;
  for (uint32_t rest = shape.num_tokens; rest > 0; rest -= sequences.back().q_tokens) {
    const uint32_t tokens = std::min(rest, context());
    sequences.push_back({tokens, tokens});
  }
  return sequences;
}

template <typename Run>
StatusOr<double> Inspector::Best(const Run& run) const {
  RETURN_IF_ERROR(run());
  int64_t best_ns = INT64_MAX;
  for (int i = 0; i < kRuns; ++i) {
    const int64_t start_ns = clock_.NowNs();
    RETURN_IF_ERROR(run());
    best_ns = std::min(best_ns, clock_.NowNs() - start_ns);
  }
  return static_cast<double>(best_ns) * 1e-9;
}

Status Inspector::AddForward(size_t bucket, std::vector<Executable>* list) {
  const ForwardBatch batch = MakeBatch(SequencesOf(bucket));
  ASSIGN_OR_RETURN(const double seconds, Best([&]() -> Status {
                     RETURN_IF_ERROR(model_->Forward(backend_->BeginStep(batch)).status());
                     return backend_->Finish();
                   }));
  const PlanShape& shape = policy_->buckets()[bucket];
  const char* const mode = bucket < policy_->num_prefill() ? "prefill" : "decode";
  list->push_back(
      {"forward", StrCat(mode, ", bs ", shape.num_seqs, ", tokens ", shape.num_tokens), seconds});
  return OkStatus();
}

Status Inspector::AddLogits(uint32_t rows, std::vector<Executable>* list) {
  const ForwardBatch batch = MakeBatch(Sequences(rows, {1, 1}));
  ASSIGN_OR_RETURN(const Tensor hidden, model_->Forward(backend_->BeginStep(batch)));
  std::vector<uint32_t> all(rows);
  std::iota(all.begin(), all.end(), 0u);
  ASSIGN_OR_RETURN(const double seconds, Best([&]() -> Status {
                     RETURN_IF_ERROR(model_->ComputeLogits(hidden, all).status());
                     return backend_->Finish();
                   }));
  list->push_back({"logits", StrCat("rows ", rows), seconds});
  return OkStatus();
}

Status Inspector::AddSampler(std::vector<Executable>* list) {
  std::vector<float> logits(checkpoint_->config().vocab_size);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  for (float& logit : logits) logit = normal(random);
  Sampler sampler(sampler_kernels_, {});
  sampler.MakeRoomFor(static_cast<uint32_t>(logits.size()));
  SamplingParams params;
  params.temperature = 0;
  ASSIGN_OR_RETURN(const double seconds, Best([&]() -> Status {
                     return sampler.Sample(logits, {.params = params}, nullptr).status();
                   }));
  list->push_back({"sampler", StrCat("row of ", logits.size()), seconds});
  return OkStatus();
}

StatusOr<std::vector<Executable>> Inspector::List() {
  std::vector<Executable> list;
  for (size_t i = 0; i < policy_->buckets().size(); ++i) RETURN_IF_ERROR(AddForward(i, &list));
  for (const uint32_t rows : kLogitsRows) RETURN_IF_ERROR(AddLogits(rows, &list));
  RETURN_IF_ERROR(AddSampler(&list));
  return list;
}

}  // namespace

StatusOr<std::vector<Executable>> ListExecutables(const InspectOptions& options) {
  Inspector inspector;
  RETURN_IF_ERROR(inspector.Load(options));
  return inspector.List();
}

std::string ExecutablesTable(const std::vector<Executable>& executables) {
  std::string text = absl::StrFormat("%-11s%-31s%12s\n", "executable", "bucket", "cost, us");
  for (const Executable& e : executables) {
    absl::StrAppendFormat(&text, "%-11s%-31s%12.1f\n", e.kind, e.bucket, e.seconds * 1e6);
  }
  return text;
}

namespace {

struct InspectFlags {
  InspectOptions executables_of;
  SizeModelOptions model;
  std::string kv_cache_memory = "536870912";  // bytes, after BytesFlag
  bool executables = false, json = false;
};

void AddInspectFlags(CLI::App* app, InspectFlags* flags) {
  InspectOptions& o = flags->executables_of;
  app->add_option("--model", flags->model.model,
                  "Path of a .gguf file or a model folder, or 'default' (SmolLM2-135M-Instruct)")
      ->capture_default_str();
  app->add_option("--tp", flags->model.tp, "Ranks a replica")
      ->check(CLI::Range(1u, kMaxRanks))
      ->capture_default_str();
  AddFlag(app, kDtypeFlag, &flags->model.dtype);
  AddFlag(app, kKvCacheDtypeFlag, &flags->model.kv_cache_dtype);
  app->add_option("--kv-cache-memory", flags->kv_cache_memory, "Says how many tokens it holds")
      ->transform(BytesFlag())
      ->default_str("512MiB");
  app->add_flag("--json", flags->json, "The model as JSON");
  app->add_flag("--executables", flags->executables,
                "Instead: forward, logits and sampler by bucket, with what one run of each takes "
                "here. The flags below are for it");
  app->get_option("--json")->excludes("--executables");
  app->add_option("--isa", o.isa, "Instruction set of the CPU backend")
      ->check(CLI::IsMember(IsaChoices()))
      ->capture_default_str();
  AddFlag(app, kThreadsFlag, &o.threads);
  AddFlag(app, kChunkedPrefillSizeFlag, &o.padding.chunked_prefill_size);
  AddFlag(app, kMaxRunningRequestsFlag, &o.padding.max_running_requests);
  AddFlag(app, kTokenPaddingsFlag, &o.padding.precompile_token_paddings);
  AddFlag(app, kBsPaddingsFlag, &o.padding.precompile_bs_paddings);
}

// What is printed.
StatusOr<std::string> Inspect(InspectFlags flags) {
  if (flags.model.model == "default") {
    ASSIGN_OR_RETURN(flags.model.model, DefaultModelPath());
  }
  if (!flags.executables) {
    ASSIGN_OR_RETURN(const ModelReport report, InspectModelFile(flags.model));
    return flags.json ? StrCat(boost::json::serialize(ModelReportJson(report)), "\n")
                      : ModelReportText(report, std::stoull(flags.kv_cache_memory));
  }
  flags.executables_of.model = flags.model.model;
  flags.executables_of.dtype = flags.model.dtype;
  flags.executables_of.kv_cache_dtype = flags.model.kv_cache_dtype;
  ASSIGN_OR_RETURN(const std::vector<Executable> list, ListExecutables(flags.executables_of));
  return ExecutablesTable(list);
}

}  // namespace

int InspectMain(int argc, char** argv) {
  CLI::App app("What a model's file holds and takes in memory, and what a worker prepares",
               "flotilla inspect");
  InspectFlags flags;
  AddInspectFlags(&app, &flags);
  ParseOrExit(&app, argc, argv);
  LogOptions log;
  log.level = "warn";
  InitLog(log);
  const StatusOr<std::string> text = Inspect(flags);
  if (!text.ok()) {
    std::fprintf(stderr, "flotilla: error: %s\n", std::string(text.status().message()).c_str());
    return absl::IsInternal(text.status()) ? 1 : 2;
  }
  std::fputs(text->c_str(), stdout);
  return 0;
}

}  // namespace flotilla::bench
