#include "common/cli/flag_hints.h"

#include <algorithm>
#include <numeric>

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

struct NeedlessFlag {
  std::string_view name;  // in vLLM or llama.cpp
  std::string_view why;
};
constexpr NeedlessFlag kNeedlessFlags[] = {
    {"--enable-prefix-caching", "prefixes are cached anyway"},
    {"--enable-chunked-prefill", "prompts are cut into chunks anyway"},
    {"--enable-auto-tool-choice", "the model's chat template says how it calls tools"},
    {"--disable-log-requests", "requests are not logged"},
    {"--trust-remote-code", "no code that comes with a model is run"},
    {"--jinja", "the model's chat template is used anyway"},
    {"--metrics", "they are on --metrics-port anyway"},
    {"--load-format", "files say what they are"},
    {"--quantization", "files say how they are quantised"},
};

// Letters to insert, remove or replace (Levenshtein).
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
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
  for (const NeedlessFlag& needless : kNeedlessFlags) {
    if (needless.name == flag && IsServer(command))
      return absl::StrCat(what, "; it needs none: ", std::string(needless.why));
  }
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back(absl::StrCat("--", name));
  }
  const std::string nearest = NearestOf(flag, flags);
  if (!nearest.empty()) return absl::StrCat(what, "; did you mean ", nearest, "?");
  constexpr char kRouterFlag[] = "--router-flag";
  return Has(command, kRouterFlag) && Has(command, "--policy")  // an engine has no router
             ? absl::StrCat(what, "; flags of flotilla-router are given as ", kRouterFlag, "=FLAG")
             : what;
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
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
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
