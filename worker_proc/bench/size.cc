#include "worker_proc/bench/size.h"

#include <fstream>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "common/base/default_model.h"
#include "worker_proc/cpu/cpu_options.h"
#include "worker_proc/model/registry.h"
#include "worker_proc/runner/weight_bytes.h"

namespace flotilla::bench {
namespace {

// Heads and layers that no file has.
class DimensionsOnly final : public Checkpoint {
 public:
  explicit DimensionsOnly(const SizeModelOptions& options) {
    const ModelDimensions& d = options.dimensions;
    config_.architecture = "LlamaForCausalLM";
    config_.num_hidden_layers = d.num_hidden_layers;
    config_.num_attention_heads = d.num_attention_heads;
    config_.num_key_value_heads = d.num_key_value_heads;
    config_.head_dim = d.head_dim;
    config_.hidden_size = d.num_attention_heads * d.head_dim;
    config_.max_position_embeddings = options.context_length;
  }
  const ModelConfig& config() const override { return config_; }
  const TensorView* Find(std::string_view) const override { return nullptr; }
  const std::vector<TensorView>& tensors() const override { return tensors_; }
  const std::string& Digest(const std::function<void()>&) const override { return digest_; }

 private:
  ModelConfig config_;
  const std::vector<TensorView> tensors_;
  const std::string digest_;
};

Status CheckDimensions(const SizeModelOptions& options) {
  const ModelDimensions& d = options.dimensions;
  for (const auto& [value, flag] : {std::pair{d.num_attention_heads, "--num-attention-heads"},
                                    std::pair{d.num_key_value_heads, "--num-key-value-heads"},
                                    std::pair{d.head_dim, "--head-dim"},
                                    std::pair{options.context_length, "--context-length"}}) {
    if (value > 0) continue;
    return absl::InvalidArgumentError(
        StrCat(flag, " is needed beside --num-hidden-layers: there is no file that says it"));
  }
  return OkStatus();
}

StatusOr<std::unique_ptr<Checkpoint>> OpenSized(const SizeModelOptions& options) {
  if (options.dimensions.given()) {
    RETURN_IF_ERROR(CheckDimensions(options));
    return std::make_unique<DimensionsOnly>(options);
  }
  std::string path = options.model;
  if (path == "default") {
    ASSIGN_OR_RETURN(path, DefaultModelPath());
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(path));
  const uint32_t most = checkpoint->config().max_position_embeddings;
  if (options.context_length > most) {
    return absl::InvalidArgumentError(
        StrCat("--context-length ", options.context_length, " is more than the model's ", most));
  }
  return checkpoint;
}

StatusOr<std::unique_ptr<Backend>> BackendOf(const SizeModelOptions& options,
                                             const Checkpoint& checkpoint) {
  CpuFlags flags;
  flags.dtype = options.dtype;
  flags.kv_cache_dtype = options.kv_cache_dtype;
  if (options.dimensions.given()) {
    flags.dtype = "float32";  // there is no weight to look at; it decides nothing but this:
    if (flags.kv_cache_dtype == "auto" && options.dtype != "float32")
      flags.kv_cache_dtype = "bfloat16";
  }
  flags.threads = 1;
  ASSIGN_OR_RETURN(const CpuBackendOptions cpu, ResolveCpuOptions(flags, checkpoint, 1));
  return MakeCpuBackend(cpu);
}

}  // namespace

StatusOr<SizedModel> SizeModel(const SizeModelOptions& options) {
  SizedModel sized;
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenSized(options));
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, BackendOf(options, *checkpoint));
  sized.config = checkpoint->config();
  ASSIGN_OR_RETURN(TpPartition partition, MakeTpPartition(sized.config, 0, options.tp));
  const std::unique_ptr<Collective> collective = MakeSingleRankCollective();
  const Heartbeat heartbeat;
  ModelMemory& memory = sized.memory;
  memory.page_size = options.page_size;
  memory.context_length =
      options.context_length > 0 ? options.context_length : sized.config.max_position_embeddings;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Model> model,
      CreateModel({&sized.config, backend.get(), collective.get(), &heartbeat, std::move(partition),
                   1, 1, memory.context_length, options.page_size}));
  const uint64_t weights = options.dimensions.given()
                               ? options.dimensions.weight_bytes / options.tp
                               : WeightBytesOfRank(*checkpoint, *backend, options.tp);
  memory.weight_bytes.assign(options.tp, weights);
  for (uint32_t rank = 0; rank < options.tp; ++rank) {
    memory.page_bytes.push_back(backend->KvPageBytes(model->kv_shape(rank)));
  }
  return sized;
}

StatusOr<double> MeasuredOutputRate(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return absl::NotFoundError(StrCat("--measured: can't read ", path));
  boost::system::error_code error;
  const boost::json::value json = boost::json::parse(text.str(), error);
  const boost::json::value* rate =
      error ? nullptr : json.find_pointer("/output_tokens_per_second", error);
  if (rate == nullptr || !rate->is_number() || rate->to_number<double>() <= 0) {
    return absl::InvalidArgumentError(
        StrCat("--measured: ", path,
               " has no output_tokens_per_second above 0; it must be what "
               "'flotilla bench offline --json' printed"));
  }
  return rate->to_number<double>();
}

}  // namespace flotilla::bench
