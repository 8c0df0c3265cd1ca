#include "deploy/launcher/programs.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace flotilla {
namespace {

constexpr OtherProgram kOtherPrograms[] = {
    {"router", "flotilla-router", nullptr, "Only a router, HTTP and gRPC, for engines elsewhere"},
    {"replay", "flotilla-flight", "replay",
     "Runs a scheduler's flight recording again: does it decide the same?"},
    {"inspect", "flotilla-worker-bench", "inspect",
     "What a model's file holds and takes in memory; what a worker prepares, with its cost here"},
    {"size", "flotilla-worker-bench", "size",
     "How much memory, how many replicas and which flags a load needs"},
    {"trace", "flotilla-flight", "trace",
     "Turns a flight recording into a trace for Perfetto or chrome://tracing"},
    {"simulate", "flotilla-simulate", "simulate",
     "How long requests would take: the real scheduler under virtual time"},
    {"simulate fleet", "flotilla-fleet", nullptr,
     "What the router's policies do to many replicas, under virtual time"},
    {"bench roofline", "flotilla-worker-bench", nullptr,
     "The model's kernels and steps, each beside what this machine could do at most"},
    {"bench serve", "flotilla-served", nullptr,
     "How a server that runs answers a load: throughput, latencies, goodput"},
    {"bench offline", "flotilla-offline", nullptr,
     "Throughput of one replica with all requests at once, without HTTP"},
    {"bench quality", "flotilla-quality", nullptr,
     "What the fast arithmetics cost in precision: KL, top-1 and perplexity"},
    {"bench fit", "flotilla-simulate", "fit",
     "Learns from flight recordings what a step costs on this machine"},
};

// "bench roofline" of {"bench", "roofline", "--json"}.
bool Begins(std::span<const char* const> words, std::string_view command) {
  for (const char* word : words) {
    if (!command.starts_with(word)) return false;
    command.remove_prefix(std::strlen(word));
    if (command.empty()) return true;
    if (!command.starts_with(' ')) return false;
    command.remove_prefix(1);
  }
  return false;
}

}  // namespace

std::span<const OtherProgram> OtherPrograms() { return kOtherPrograms; }

const OtherProgram* FindProgram(std::span<const char* const> words) {
  const OtherProgram* best = nullptr;
  for (const OtherProgram& program : kOtherPrograms) {
    if (Begins(words, program.command) && (best == nullptr || NumWords(program) > NumWords(*best)))
      best = &program;
  }
  return best;
}

size_t NumWords(const OtherProgram& program) {
  const std::string_view command = program.command;
  return 1 + static_cast<size_t>(std::count(command.begin(), command.end(), ' '));
}

std::string OwnBinDir() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

Status ExecProgram(const OtherProgram& program, char** args) {
  const std::string path = StrCat(OwnBinDir(), "/", program.program);
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  if (program.first != nullptr) argv.push_back(const_cast<char*>(program.first));
  for (; *args != nullptr; ++args) argv.push_back(*args);
  argv.push_back(nullptr);
  execv(path.c_str(), argv.data());
  return absl::NotFoundError(absl::StrCat("can't run ", path, ": ", std::strerror(errno)));
}

}  // namespace flotilla
