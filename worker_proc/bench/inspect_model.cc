#include "worker_proc/bench/inspect_model.h"

#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/flags.h"
#include "common/checkpoint/checkpoint.h"

namespace flotilla::bench {

TensorKind ModelReport::all() const {
  TensorKind sum;
  for (const auto& [name, kind] : kinds) {
    sum.tensors += kind.tensors;
    sum.parameters += kind.parameters;
    sum.bytes += kind.bytes;
  }
  return sum;
}

StatusOr<ModelReport> InspectModelFile(const SizeModelOptions& options) {
  ModelReport report;
  report.path = options.model;
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(options.model));
  report.digest = checkpoint->Digest();
  for (const TensorView& view : checkpoint->tensors()) {
    TensorKind& kind = report.kinds[Traits(view.dtype).name];
    ++kind.tensors;
    kind.parameters += view.rows * view.cols;
    kind.bytes += view.data.size();
  }
  ASSIGN_OR_RETURN(SizedModel sized, SizeModel(options));
  report.config = std::move(sized.config);
  report.memory = std::move(sized.memory);
  return report;
}

std::string ModelReportText(const ModelReport& report, uint64_t kv_cache_memory) {
  const ModelConfig& config = report.config;
  const ModelMemory& memory = report.memory;
  std::string text;
  const auto line = [&](const std::string& what, const std::string& value) {
    absl::StrAppendFormat(&text, "%-14s%s\n", what, value);
  };
  const TensorKind all = report.all();
  line("file", StrCat(report.path, ", ", FormatBytes(all.bytes), " of weights"));
  line("sha256", report.digest);
  line("model", StrCat(config.architecture, config.name.empty() ? "" : ", ", config.name));
  line("parameters", absl::StrFormat("%.1f million", static_cast<double>(all.parameters) * 1e-6));
  line("layers", StrCat(config.num_hidden_layers, ", hidden size ", config.hidden_size,
                        ", intermediate size ", config.intermediate_size));
  if (config.num_experts > 0) {
    line("experts",
         StrCat(config.num_experts, " a layer, ", config.num_experts_per_tok, " for each token"));
  }
  line("attention", StrCat(config.num_attention_heads, " query and ", config.num_key_value_heads,
                           " kv heads of ", config.head_dim));
  line("vocabulary",
       StrCat(config.vocab_size,
              config.tie_word_embeddings ? ", the head is the embedding" : ", a head of its own"));
  line("context", StrCat(config.max_position_embeddings, " tokens"));
  for (const auto& [name, kind] : report.kinds)
    line("  " + name, StrCat(kind.tensors, kind.tensors == 1 ? " tensor, " : " tensors, ",
                             FormatBytes(kind.bytes)));
  text += "\nIn memory, as a replica with these flags has it\n";
  for (size_t rank = 0; rank < memory.weight_bytes.size(); ++rank)
    line(StrCat("  rank ", rank), StrCat(FormatBytes(memory.weight_bytes[rank]), " of weights"));
  const uint64_t page_bytes = memory.ReplicaPageBytes();
  line("  KV cache", StrCat(page_bytes / memory.page_size, " bytes a token, ",
                            FormatBytes(page_bytes), " a page of ", memory.page_size, " tokens"));
  line("",
       StrCat(FormatBytes(kv_cache_memory), " hold ",
              kv_cache_memory / page_bytes * memory.page_size, " tokens, a whole context takes ",
              FormatBytes((memory.context_length + memory.page_size - 1) / memory.page_size *
                          page_bytes)));
  line("  the rest", StrCat("about ", FormatBytes(kReplicaOverheadBytes),
                            " for processes and buffers; flotilla size plans with a load"));
  return text;
}

boost::json::object ModelReportJson(const ModelReport& report) {
  const ModelConfig& config = report.config;
  const ModelMemory& memory = report.memory;
  boost::json::object tensors;
  for (const auto& [name, kind] : report.kinds)
    tensors[name] = {
        {"tensors", kind.tensors}, {"parameters", kind.parameters}, {"bytes", kind.bytes}};
  return {
      {"path", report.path},
      {"sha256", report.digest},
      {"architecture", config.architecture},
      {"name", config.name},
      {"num_hidden_layers", config.num_hidden_layers},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_experts", config.num_experts},
      {"num_experts_per_tok", config.num_experts_per_tok},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"tensors", std::move(tensors)},
      {"weight_bytes", boost::json::array(memory.weight_bytes.begin(), memory.weight_bytes.end())},
      {"page_bytes", boost::json::array(memory.page_bytes.begin(), memory.page_bytes.end())},
      {"page_size", memory.page_size}};
}

}  // namespace flotilla::bench
