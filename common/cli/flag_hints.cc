#include "common/cli/flag_hints.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace flotilla {
namespace {

struct ForeignFlag {
  std::string_view name;  // in vLLM, SGLang or llama.cpp
  std::string_view ours;  // means the same
};
constexpr ForeignFlag kForeignFlags[] = {
    {"--max-model-len", "--context-length"},
    {"--ctx-size", "--context-length"},
    {"-c", "--context-length"},
    {"--model-path", "--model"},
    {"-m", "--model"},
    {"--served-model-name", "--model-name"},
    {"--alias", "--model-name"},
    {"-a", "--model-name"},
    {"--tensor-parallel-size", "--tp"},
    {"--tp-size", "--tp"},
    {"-tp", "--tp"},
    {"--data-parallel-size", "--replicas"},
    {"--dp-size", "--replicas"},
    {"-dp", "--replicas"},
    {"--max-num-seqs", "--max-running-requests"},
    {"--parallel", "--max-running-requests"},
    {"-np", "--max-running-requests"},
    {"--block-size", "--page-size"},
    {"--api-key", "--api-keys-file"},
    {"--allowed-origins", "--cors-allow-origin"},
    {"--max-num-batched-tokens", "--chunked-prefill-size"},
    {"--speculative-config", "--speculative-num-draft-tokens"},
    {"--speculative-algorithm", "--speculative-num-draft-tokens"},
    {"--draft-max", "--speculative-num-draft-tokens"},
    {"--draft", "--speculative-num-draft-tokens"},
    {"--chat-template-kwargs", "--default-chat-template-kwargs"},
    {"--mem-fraction-static", "--gpu-memory-utilization"},
    {"--cache-type-k", "--kv-cache-dtype"},
    {"--cache-type-v", "--kv-cache-dtype"},
    {"-ctk", "--kv-cache-dtype"},
    {"-ctv", "--kv-cache-dtype"},
    {"--batch-size", "--chunked-prefill-size"},
    {"--ubatch-size", "--chunked-prefill-size"},
    {"-b", "--chunked-prefill-size"},
    {"-ub", "--chunked-prefill-size"},
    {"--enforce-eager", "--graph-mode none"},
    {"--disable-cuda-graph", "--graph-mode none"},
    {"--uvicorn-log-level", "--log-level"},
    {"--generation-config", "--sampling-defaults"},
    {"--hf-repo", "--model"},
    {"-hf", "--model"},
    {"--num-prompts", "--requests"},
    {"--random-input-len", "--input-len"},
    {"--random-output-len", "--output-len"},
    {"--base-url", "--url"},
    {"--n-gpu-layers", "--device cuda"},
    {"--gpu-layers", "--device cuda"},
    {"-ngl", "--device cuda"},
    {"-t", "--threads"},
    {"--no-enable-prefix-caching", "--disable-radix-cache"},
    {"--ssl-certfile", "--tls-cert-file"},
    {"--ssl-cert-file", "--tls-cert-file"},
    {"--ssl-keyfile", "--tls-key-file"},
    {"--ssl-key-file", "--tls-key-file"},
};

struct ForeignFlagNote {
  std::string_view name;  // in vLLM, SGLang or llama.cpp
  std::string_view note;
};
constexpr ForeignFlagNote kNotes[] = {
    {"--enable-prefix-caching", "leave it out: prefixes are cached anyway"},
    {"--enable-chunked-prefill", "leave it out: prompts are cut into chunks anyway"},
    {"--enable-auto-tool-choice", "leave it out: the chat template says how tools are called"},
    {"--disable-log-requests", "leave it out: requests are not logged"},
    {"--log-requests", "there is --log-level debug, and --log-slow-ms"},
    {"--trust-remote-code", "leave it out: no code that comes with a model is run"},
    {"--jinja", "leave it out: the model's chat template is used anyway"},
    {"--metrics", "leave it out: they are on --metrics-port anyway"},
    {"--enable-metrics", "leave it out: they are on --metrics-port anyway"},
    {"--load-format", "leave it out: files say what they are"},
    {"--quantization", "leave it out: files say how they are quantised"},
    {"--flash-attn", "leave it out: attention never writes its scores to memory"},
    {"-fa", "leave it out: attention never writes its scores to memory"},
    {"--cont-batching", "leave it out: requests join at every step"},
    {"-cb", "leave it out: requests join at every step"},
    {"--no-mmap", "leave it out: weights are copied when they are packed"},
    {"--swap-space", "leave it out: what must make room is computed again"},
    {"--seed", "a request says its 'seed'"},
    {"--max-logprobs", "leave it out: up to 20 may be asked for"},
    {"--enable-lora", "adapters (LoRA) are not built"},
    {"--lora", "adapters (LoRA) are not built"},
    {"--lora-modules", "adapters (LoRA) are not built"},
    {"--lora-paths", "adapters (LoRA) are not built"},
    {"--mmproj", "models take no images"},
    {"--pipeline-parallel-size", "layers are not spread; --tp spreads each"},
    {"--root-path", "a proxy in front has to take the prefix off"},
};

// Letters to insert, remove or replace, and neighbours to swap (optimal string alignment).
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

bool Has(const CLI::App& command, std::string_view flag) {
  return command.get_option_no_throw(std::string(flag.substr(0, flag.find(' ')))) != nullptr;
}

std::string ExplainFlag(const CLI::App& command, const std::string& written) {
  const std::string what = absl::StrCat(command.get_name(), " has no flag ", written);
  const std::string flag = absl::StrReplaceAll(written, {{"_", "-"}});  // vLLM takes both
  const std::string_view ours = OurNameOf(command, flag);
  if (!ours.empty()) return absl::StrCat(what, "; here it is ", std::string(ours));
  for (const ForeignFlagNote& note : kNotes) {
    if (note.name == flag && IsServer(command))
      return absl::StrCat(what, "; ", std::string(note.note));
  }
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back(absl::StrCat("--", name));
  }
  const std::string nearest = NearestOf(flag, flags);
  if (!nearest.empty()) return absl::StrCat(what, "; did you mean ", nearest, "?");
  constexpr char kRouterFlag[] = "--router-flag";
  const std::string& name = command.get_name();
  const std::string more =
      Has(command, kRouterFlag) && Has(command, "--policy")  // an engine has no router
          ? absl::StrCat(", and 'flotilla router --help' for those to give as ", kRouterFlag,
                         "=FLAG")
          : "";
  return absl::StrCat(what, "; see '", name.starts_with("flotilla") ? "" : "flotilla ", name,
                      " --help'", more);
}

}  // namespace

bool IsServer(const CLI::App& command) { return Has(command, "--kv-cache-memory"); }

std::string_view OurNameOf(const CLI::App& command, std::string_view foreign) {
  for (const ForeignFlag& each : kForeignFlags) {
    if (each.name == foreign && Has(command, each.ours)) return each.ours;
  }
  return {};
}

std::string NearestOf(std::string_view word, const std::vector<std::string>& candidates) {
  std::string nearest;
  const size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  size_t least = std::max<size_t>(1, letters / 5) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(word, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string ExplainExtras(const CLI::App& command, const std::vector<std::string>& extras) {
  const std::string& first = extras.front();
  if (first.starts_with('-') && first != "-" && first != "--")
    return ExplainFlag(command, first.substr(0, first.find('=')));
  return absl::StrCat(command.get_name(), " does not take '", first, "'",
                      Has(command, "--model") ? absl::StrCat("; a model is --model ", first) : "");
}

}  // namespace flotilla
