// flotilla-worker-bench: `flotilla bench roofline`; its commands `inspect` and `size`: `flotilla
// inspect`, `flotilla size`.
//
// Exit codes: 0; 2 for a bad flag or model, or too little memory; 1 for anything else.
#include <cstdio>
#include <string_view>

#include "common/base/default_model.h"
#include "common/base/flags.h"
#include "common/base/log.h"
#include "worker_proc/bench/inspect.h"
#include "worker_proc/bench/json_file.h"
#include "worker_proc/bench/roofline.h"
#include "worker_proc/bench/roofline_report.h"
#include "worker_proc/bench/size.h"

namespace flotilla::bench {
namespace {

constexpr char kLesson[] = R"(
How to read it: "limit" is the time that the work takes at least on this machine: all bytes of
weights and KV at the bandwidth, or all operations at the peak, whichever is longer ("bound" says
which). "share" is that limit over the best time; the limits are measured again between the passes
of each kernel. Others on the machine make the median worse before the best. docs/performance.md
has more.

Try:
  flotilla bench roofline                            every instruction set of this machine
  flotilla bench roofline --isa avx2 --threads 1
  flotilla bench roofline --model my.gguf --json roofline.json
  flotilla bench roofline --formats Q4_0,Q8_0        besides, matrices of these types
  flotilla bench roofline --steps                    prefills and decodes only: minutes less
)";

struct Flags {
  RooflineOptions roofline;
  std::string json;
};

void AddFlags(CLI::App* app, Flags* flags) {
  RooflineOptions& o = flags->roofline;
  app->add_option("--model", o.model, "Path of a .gguf file, or 'default' (SmolLM2-135M-Instruct)")
      ->default_val("default");
  app->add_option("--isa", o.isa, "Instruction set; auto: each that this machine has")
      ->check(CLI::IsMember({"auto", "avx2", "avx512", "amx"}))
      ->capture_default_str();
  app->add_option("--threads", o.threads, "Compute threads; 0: the cores that this process may use")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
  AddFlag(app, kDtypeFlag, &o.dtype);
  AddFlag(app, kKvCacheDtypeFlag, &o.kv_cache_dtype);
  app->add_option("--formats", o.formats,
                  "GGUF types of synthetic matrices of the model's shapes, measured besides; "
                  "comma-separated")
      ->delimiter(',');
  app->add_flag("--steps", o.only_steps, "Whole steps only, no kernel alone");
  app->add_option("--json", flags->json, "File for the same figures as JSON");
  app->add_flag("--quick", o.quick, "Few passes: to see that it runs, not for figures");
}

Status Run(Flags flags) {
  if (flags.roofline.model == "default") {
    ASSIGN_OR_RETURN(flags.roofline.model, DefaultModelPath());
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> isas, RooflineIsas(flags.roofline.isa));
  MachineInfo machine = DescribeMachine(flags.roofline.model);
  std::printf("%s, %u cores, load %.2f, commit %s, %s\n", machine.cpu.c_str(), machine.cores,
              machine.load_before, machine.commit.c_str(), machine.model.c_str());
  std::fflush(stdout);
  std::vector<RooflineReport> reports;
  for (const std::string& isa : isas) {
    ASSIGN_OR_RETURN(reports.emplace_back(), RunRoofline(flags.roofline, isa));
    std::printf("\n%s", RooflineTable(reports.back()).c_str());
    std::fflush(stdout);
  }
  machine.load_after = LoadAverage();
  std::printf("\nload afterwards %.2f\n", machine.load_after);
  return WriteJsonFile(flags.json, RooflineJson(machine, reports));
}

}  // namespace
}  // namespace flotilla::bench

int main(int argc, char** argv) {
  using namespace flotilla;
  if (argc > 1 && std::string_view(argv[1]) == "inspect") {
    return bench::InspectMain(argc - 1, argv + 1);
  }
  if (argc > 1 && std::string_view(argv[1]) == "size") return bench::SizeMain(argc - 1, argv + 1);
  bench::Flags flags;
  CLI::App app("The model's kernels and steps, each beside what this machine could do at most",
               "flotilla bench roofline");
  app.footer(bench::kLesson);
  bench::AddFlags(&app, &flags);
  ParseOrExit(&app, argc, argv);
  LogOptions log;
  log.level = "warn";
  InitLog(log);
  const Status status = bench::Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "flotilla: error: %s\n", std::string(status.message()).c_str());
  return absl::IsInternal(status) ? 1 : 2;
}
