#include "common/base/flags.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/base/flag_list.h"

namespace flotilla {
namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};
constexpr std::array<Unit, 11> kUnits = {{{"", 1},
                                          {"B", 1},
                                          {"K", 1ull << 10},
                                          {"KiB", 1ull << 10},
                                          {"KB", 1'000},
                                          {"M", 1ull << 20},
                                          {"MiB", 1ull << 20},
                                          {"MB", 1'000'000},
                                          {"G", 1ull << 30},
                                          {"GiB", 1ull << 30},
                                          {"GB", 1'000'000'000}}};

}  // namespace

StatusOr<uint64_t> ParseBytes(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (error == std::errc() && number >= 0) {
    for (const Unit& u : kUnits) {
      if (u.name != unit) continue;
      const double bytes = number * static_cast<double>(u.bytes);
      if (bytes > 9e18) break;
      return static_cast<uint64_t>(std::llround(bytes));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", std::string(text), "' is not a size; write for example 1536, 512MiB or 2GiB"));
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t i = 0;
  while (value >= 1024 && i + 1 < kNames.size()) {
    value /= 1024;
    ++i;
  }
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), i == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value,
                kNames[i]);
  return buffer;
}

CLI::Validator BytesFlag() {
  CLI::Validator validator(
      [](std::string& input) -> std::string {
        StatusOr<uint64_t> bytes = ParseBytes(input);
        if (!bytes.ok()) return std::string(bytes.status().message());
        input = std::to_string(*bytes);
        return {};
      },
      "SIZE");
  return validator;
}

CLI::Option* AddFlag(CLI::App* app, const SharedFlag& flag, uint32_t* value) {
  return app->add_option(flag.name, *value, flag.help)
      ->check(CLI::Range(flag.min, flag.max))
      ->capture_default_str();
}

CLI::Option* AddFlag(CLI::App* app, const SharedChoice& flag, std::string* value) {
  return app->add_option(flag.name, *value, flag.help)
      ->check(CLI::IsMember(std::vector<std::string>(flag.choices.begin(), flag.choices.end())))
      ->capture_default_str();
}

CLI::Option* AddFlag(CLI::App* app, const SharedTexts& flag, std::vector<std::string>* values) {
  return app->add_option(flag.name, *values, flag.help)->allow_extra_args(false);
}

CLI::Option* AddFlag(CLI::App* app, const SharedText& flag, std::string* value) {
  return app->add_option(flag.name, *value, flag.help)->capture_default_str();
}

CLI::Option* AddTraceSampleRatioFlag(CLI::App* app, double* value) {
  return app
      ->add_option(
          "--trace-sample-ratio", *value,
          "Share of the requests without a traceparent that are traced; a request with one "
          "is if that says so")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

CLI::Option* AddFlag(CLI::App* app, const SharedList& flag, std::vector<uint32_t>* values) {
  return app->add_option(flag.name, *values, flag.help)
      ->check(CLI::Range(flag.min, flag.max))
      ->delimiter(',');
}

CLI::Option* AddFlag(CLI::App* app, const SharedSwitch& flag, bool* value) {
  return app->add_flag(flag.name, *value, flag.help);
}

void AddGpuFlags(CLI::App* app, GpuFlags* flags) {
  app->add_option("--gpu-memory-utilization", flags->gpu_memory_utilization,
                  "Share of a GPU's memory for weights, steps and KV cache")
      ->check(CLI::Range(0.05, 1.0))
      ->capture_default_str();
  app->add_option(
         "--gpu-weights", flags->gpu_weights,
         "Matrices that the file has in 4 to 8 bits, on a GPU. expanded: to --dtype when "
         "they are loaded; packed: when they are multiplied, with the same tokens in a third of "
         "the memory; auto: packed where the others would take more than half of it")
      ->check(CLI::IsMember({"auto", "expanded", "packed"}))
      ->capture_default_str();
  app->add_option(
         "--graph-mode", flags->graph_mode,
         "On a GPU: what part of a step is replayed from CUDA graphs, which are captured at "
         "the start. auto: all of it (full), else what can be")
      ->check(CLI::IsMember(
          {"auto", "none", "piecewise", "full", "full_decode_only", "full_and_piecewise"}))
      ->capture_default_str();
  app->add_option(
         "--cuda-graph-sizes", flags->cuda_graph_sizes,
         "Tokens of the steps that get a graph, rising, comma-separated; none: 1, 2, 4, 8, "
         "12, 16, then 8 apart, from 256 on 16 apart")
      ->check(CLI::Range(1u, 65536u))
      ->delimiter(',');
  app->add_option("--cuda-graph-max-size", flags->cuda_graph_max_size,
                  "Steps of more tokens than this have no graph; 0: none has")
      ->check(CLI::Range(0u, 65536u))
      ->capture_default_str();
  app->add_flag("--disable-batch-invariance", flags->disable_batch_invariance,
                "On a GPU: choose the fastest matrix product for each number of tokens, so that a "
                "request's last bits depend on what runs beside it");
  app->add_flag("--disable-custom-all-reduce", flags->disable_custom_all_reduce,
                "GPUs exchange by NCCL alone, where it is installed, and do not reach into each "
                "other's memory: for boards on which that hangs or errs. Then no graphs");
}

void AddLogFlags(CLI::App* app, LogOptions* options) {
  app->add_option("--log-level", options->level, "How much to log")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}))
      ->capture_default_str();
  app->add_option("--log-format", options->format, "Lines for people or for machines")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void ParseOrExit(CLI::App* app, int argc, char** argv) {
  PrintFlagsIfAsked(app, argc, argv);
  try {
    app->parse(argc, argv);
  } catch (const CLI::Success& done) {
    std::exit(app->exit(done));
  } catch (const CLI::ParseError& error) {
    app->exit(error);
    std::exit(2);
  }
}

}  // namespace flotilla
