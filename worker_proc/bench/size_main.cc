#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/flags.h"
#include "common/base/log.h"
#include "shm/replica_control.h"
#include "worker_proc/bench/size.h"

namespace flotilla::bench {
namespace {

constexpr uint32_t kMostTokens = 1 << 20;
constexpr uint32_t kMostHeads = 1024;

constexpr char kSizeLesson[] = R"(
How to read it: a request holds the KV cache of its prompt and its output until it ends, so memory
is requests at once times tokens times bytes a token, and the weights once a replica. How many
tokens a second a replica makes is not computed but measured, on your machine:
  flotilla bench offline --requests 64 --input-len 512 --output-len 128 --json > measured.json
Requests come all at once and are all alike here; for queues, bursts and policies there is
flotilla simulate. docs/sizing.md goes through an example.

Try:
  flotilla size --requests 32                                  memory of one replica, and its flags
  flotilla size --requests 200 --measured measured.json --inter-token-ms 50
  flotilla size --model my.gguf --requests 64 --replica-memory 16GiB
  flotilla size --num-hidden-layers 32 --num-attention-heads 32 --num-key-value-heads 8 \
    --head-dim 128 --weights 5GiB --context-length 8192 --requests 16
)";

struct SizeFlagValues {
  SizeModelOptions model;
  SizeLoad load;
  ReplicaRate rate;
  std::string weights = "0", replica_memory = "0";  // bytes, after BytesFlag
  std::string measured;
  bool json = false;
};

void AddModelFlags(CLI::App* app, SizeModelOptions* o, std::string* weights) {
  app->add_option("--model", o->model,
                  "Path of a .gguf file or a model folder, or 'default' (SmolLM2-135M-Instruct)")
      ->capture_default_str();
  ModelDimensions& d = o->dimensions;
  app->add_option("--num-hidden-layers", d.num_hidden_layers,
                  "Instead of a file: the model's layers, under config.json's names")
      ->check(CLI::Range(1u, kMostHeads))
      ->excludes("--model");
  for (const auto& [flag, value, help] :
       {std::tuple{"--num-attention-heads", &d.num_attention_heads, "Its query heads"},
        std::tuple{"--num-key-value-heads", &d.num_key_value_heads, "Its kv heads"},
        std::tuple{"--head-dim", &d.head_dim, "Elements of a head"}}) {
    app->add_option(flag, *value, help)
        ->check(CLI::Range(1u, kMostHeads))
        ->needs("--num-hidden-layers");
  }
  app->add_option("--weights", *weights,
                  "What its weights take in a replica, e.g. 5GiB; 0: they are not counted")
      ->transform(BytesFlag())
      ->capture_default_str()
      ->needs("--num-hidden-layers");
  app->add_option("--tp", o->tp, "Ranks a replica")
      ->check(CLI::Range(1u, kMaxRanks))
      ->capture_default_str();
  AddFlag(app, kDtypeFlag, &o->dtype);
  AddFlag(app, kKvCacheDtypeFlag, &o->kv_cache_dtype);
  AddFlag(app, kPageSizeFlag, &o->page_size);
  app->add_option("--context-length", o->context_length,
                  "Longest prompt and output together, tokens; 0: the model's")
      ->check(CLI::Range(0u, kMostTokens))
      ->capture_default_str();
}

void AddLoadFlags(CLI::App* app, SizeFlagValues* flags) {
  SizeLoad& load = flags->load;
  app->add_option("--requests", load.requests, "Requests at once, of all clients")
      ->check(CLI::Range(1u, kMostTokens))
      ->capture_default_str();
  app->add_option("--input-len", load.input_len, "Tokens of a typical prompt")
      ->check(CLI::Range(1u, kMostTokens))
      ->capture_default_str();
  app->add_option("--output-len", load.output_len, "Tokens of a typical answer")
      ->check(CLI::Range(1u, kMostTokens))
      ->capture_default_str();
  for (const auto& [flag, value, help] :
       {std::tuple{"--tokens-per-second", &load.tokens_per_second,
                   "Output of all clients together that is wanted; 0: whatever comes"},
        std::tuple{"--inter-token-ms", &load.inter_token_ms,
                   "Each request gets a token so often, in the mean; 0: whatever comes"},
        std::tuple{"--ttft-ms", &load.ttft_ms,
                   "A first token within this, even if all requests come at one moment; 0: "
                   "whatever comes"},
        std::tuple{"--measured-output-rate", &flags->rate.output,
                   "Output tokens a second of one replica; 0: not known"},
        std::tuple{"--measured-prompt-rate", &flags->rate.prompt,
                   "Prompt tokens a second of one replica; 0: not known"}}) {
    app->add_option(flag, *value, help)->check(CLI::Range(0.0, 1e9))->capture_default_str();
  }
  app->add_option("--measured", flags->measured,
                  "File with what 'flotilla bench offline --json' printed: the output rate")
      ->excludes("--measured-output-rate");
  app->add_option("--measured-cores", flags->rate.cores,
                  "Cores (or GPUs) of the replica that was measured: then all that are needed are "
                  "told; 0: not known")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--utilization", load.utilization,
                  "Share of a measured rate that is planned on; the rest is for bursts")
      ->check(CLI::Range(0.05, 1.0))
      ->capture_default_str();
  app->add_option("--replica-memory", flags->replica_memory,
                  "Most memory of one replica, e.g. 16GiB; 0: any")
      ->transform(BytesFlag())
      ->capture_default_str();
  app->add_flag("--json", flags->json, "Figures as JSON");
}

StatusOr<SizeReport> MakeReport(SizeFlagValues flags) {
  flags.model.dimensions.weight_bytes = std::stoull(flags.weights);
  flags.load.replica_memory = std::stoull(flags.replica_memory);
  if (!flags.measured.empty()) {
    ASSIGN_OR_RETURN(flags.rate.output, MeasuredOutputRate(flags.measured));
  }
  SizeReport report;
  ASSIGN_OR_RETURN(report.model, SizeModel(flags.model));
  report.options = flags.model;
  report.load = flags.load;
  report.rate = flags.rate;
  ASSIGN_OR_RETURN(report.plan, PlanSize(report.model.memory, flags.load, flags.rate));
  return report;
}

// Exact: a page's bytes are those of its tokens.
uint64_t BytesPerToken(const ModelMemory& memory) {
  return memory.ReplicaPageBytes() / memory.page_size;
}

boost::json::array Numbers(const std::vector<uint64_t>& values) {
  return boost::json::array(values.begin(), values.end());
}

}  // namespace

std::string SizeFlags(const SizeReport& report) {
  const SizeModelOptions& o = report.options;
  std::vector<std::string> flags;
  const auto add_if = [&](bool given, std::string flag) {
    if (given) flags.push_back(std::move(flag));
  };
  add_if(report.by_dimensions(), "--model FILE");
  add_if(!report.by_dimensions() && o.model != "default", StrCat("--model ", o.model));
  flags.push_back(StrCat("--tp ", o.tp));
  add_if(o.dtype != "auto", StrCat("--dtype ", o.dtype));
  add_if(o.kv_cache_dtype != "auto", StrCat("--kv-cache-dtype ", o.kv_cache_dtype));
  add_if(o.page_size != SizeModelOptions().page_size, StrCat("--page-size ", o.page_size));
  add_if(o.context_length != 0, StrCat("--context-length ", o.context_length));
  flags.push_back(StrCat("--kv-cache-memory ", report.plan.kv_cache_memory >> 20, "MiB"));
  flags.push_back(StrCat("--max-running-requests ", report.plan.requests));
  return absl::StrJoin(flags, " ");
}

std::string SizeText(const SizeReport& report) {
  const ModelConfig& config = report.model.config;
  const ModelMemory& memory = report.model.memory;
  const SizePlan& plan = report.plan;
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    absl::StrAppendFormat(&text, "%-18s%s\n", what, value);
  };
  line("model", StrCat(config.num_hidden_layers, " layers, ", config.num_attention_heads,
                       " query and ", config.num_key_value_heads, " kv heads of ", config.head_dim,
                       ", context ", memory.context_length));
  line("KV cache",
       StrCat(BytesPerToken(memory), " bytes a token, ", FormatBytes(memory.ReplicaPageBytes()),
              " a page of ", memory.page_size, " tokens"));
  line("replicas", StrCat(plan.replicas, ", because of ", plan.because));
  line("each runs", StrCat(plan.requests, " requests at once"));
  line("  weights", report.by_dimensions() && report.options.dimensions.weight_bytes == 0
                        ? "not counted: --weights"
                        : FormatBytes(memory.ReplicaWeightBytes()));
  line("  KV cache",
       StrCat(FormatBytes(plan.kv_cache_memory), ", ", plan.pages * memory.page_size, " tokens"));
  for (size_t rank = 0; rank < plan.rank_bytes.size(); ++rank) {
    line(StrCat("  rank ", rank).c_str(), FormatBytes(plan.rank_bytes[rank]));
  }
  line("  replica", StrCat(FormatBytes(plan.replica_bytes), ", with ",
                           FormatBytes(kReplicaOverheadBytes), " for processes and buffers"));
  line("all replicas", FormatBytes(plan.replica_bytes * plan.replicas));
  line("cores", report.rate.cores == 0
                    ? "not known: --measured-cores, of the replica that was measured"
                    : absl::StrFormat("%g, %g a replica", report.rate.cores * plan.replicas,
                                      report.rate.cores));
  line("output",
       plan.tokens_per_second == 0
           ? "not known: --measured, from flotilla bench offline --json"
           : absl::StrFormat("%.0f tokens a second, %.1f a request", plan.tokens_per_second,
                             plan.tokens_per_second / report.load.requests));
  const std::string flags = SizeFlags(report);
  if (plan.replicas == 1) return StrCat(text, "\nBegin with\n  flotilla serve ", flags, "\n");
  return StrCat(text, "\nBegin with ", plan.replicas, " of\n  flotilla engine --host 0.0.0.0 ",
                flags, "\nbehind\n  flotilla router --replica HOST:50051, for each of them\n");
}

boost::json::object SizeJson(const SizeReport& report) {
  const ModelMemory& memory = report.model.memory;
  const SizePlan& plan = report.plan;
  return {{"kv_bytes_per_token", BytesPerToken(memory)},
          {"page_bytes", Numbers(memory.page_bytes)},
          {"page_size", memory.page_size},
          {"context_length", memory.context_length},
          {"replicas", plan.replicas},
          {"because", plan.because},
          {"requests_per_replica", plan.requests},
          {"weight_bytes", memory.ReplicaWeightBytes()},
          {"pages", plan.pages},
          {"kv_cache_memory", plan.kv_cache_memory},
          {"rank_bytes", Numbers(plan.rank_bytes)},
          {"replica_bytes", plan.replica_bytes},
          {"cores", report.rate.cores * plan.replicas},
          {"output_tokens_per_second", plan.tokens_per_second},
          {"flags", SizeFlags(report)}};
}

int SizeMain(int argc, char** argv) {
  CLI::App app("How much memory, how many replicas and which flags a load needs", "flotilla size");
  app.footer(kSizeLesson);
  SizeFlagValues flags;
  AddModelFlags(&app, &flags.model, &flags.weights);
  AddLoadFlags(&app, &flags);
  ParseOrExit(&app, argc, argv);
  LogOptions log;
  log.level = "warn";
  InitLog(log);
  const StatusOr<SizeReport> report = MakeReport(flags);
  if (!report.ok()) {
    std::fprintf(stderr, "flotilla: error: %s\n", std::string(report.status().message()).c_str());
    return 2;
  }
  const std::string text =
      flags.json ? StrCat(boost::json::serialize(SizeJson(*report)), "\n") : SizeText(*report);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace flotilla::bench
