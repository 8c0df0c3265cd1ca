// `flotilla replay` and `flotilla trace`: looks at what a scheduler recorded before it died.
#include <cstdio>
#include <fstream>
#include <string>

#include "common/base/flags.h"
#include "scheduler_proc/flight/replay.h"
#include "shm/flight_ring.h"

namespace flotilla {
namespace {

constexpr int kDiffers = 1, kBadFile = 2;

int Fail(const Status& status) {
  std::fprintf(stderr, "flotilla: error: %s\n", std::string(status.message()).c_str());
  return kBadFile;
}

// One line for each step.
void PrintStep(const ReplayMoment& moment) {
  if (moment.record.kind != FlightKind::kPlan || !moment.record.ok) return;
  std::printf("step %llu: %zu rows, %zu tokens, %zu new, hash %016llx\n",
              static_cast<unsigned long long>(moment.record.step_id), moment.plan.rows.size(),
              moment.plan.input_ids.size(), moment.plan.opens.size(),
              static_cast<unsigned long long>(moment.record.plan_hash));
}

int RunReplay(const std::string& file, bool verbose) {
  const auto records = ReadFlightFile(file);
  if (!records.ok()) return Fail(records.status());
  const auto visit = [verbose](const ReplayMoment& moment) {
    if (verbose) PrintStep(moment);
  };
  // Told before: if the core dies in it again, nothing is told after.
  const auto unanswered = [](FlightKind call) {
    std::printf("the recording ends inside %s, which runs again now\n", CallName(call));
    std::fflush(stdout);
  };
  const auto report = Replay(*records, visit, unanswered);
  if (!report.ok()) return Fail(report.status());
  if (!report->ended_in.empty() && report->difference.empty())
    std::printf("%s came through this time%s\n", report->ended_in.c_str(),
                report->lacks_grammars ? ", without what grammars said in it" : "");
  std::printf("%llu calls, %llu requests, %llu steps\n",
              static_cast<unsigned long long>(report->records),
              static_cast<unsigned long long>(report->requests),
              static_cast<unsigned long long>(report->steps));
  if (report->from_key_frame) {
    std::printf("it begins at a key frame; the %llu calls before it are left out\n",
                static_cast<unsigned long long>(report->skipped));
  }
  if (report->difference.empty()) {
    std::printf("every decision is the same\n");
    return 0;
  }
  std::printf("DIFFERENT at call %llu: %s\n", static_cast<unsigned long long>(report->records),
              report->difference.c_str());
  return kDiffers;
}

int RunTrace(const std::string& file, const std::string& output) {
  const auto records = ReadFlightFile(file);
  if (!records.ok()) return Fail(records.status());
  const auto trace = TraceRecords(*records);
  if (!trace.ok()) return Fail(trace.status());
  if (output.empty()) {
    std::fwrite(trace->json.data(), 1, trace->json.size(), stdout);
  } else {
    std::ofstream out(output);
    out << trace->json;
    out.close();
    if (!out) return Fail(absl::UnavailableError(StrCat("can't write ", output)));
    std::printf("%s: open it at https://ui.perfetto.dev or chrome://tracing\n", output.c_str());
  }
  if (trace->error.empty()) return 0;
  Fail(absl::DataLossError(StrCat("the trace ends early: ", trace->error)));
  return kDiffers;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Looks at a scheduler's flight recording (--flight-recorder-dir says where they are)",
      "flotilla");
  app.require_subcommand(1);
  std::string file, output;
  bool verbose = false;
  CLI::App* replay = app.add_subcommand(
      "replay",
      "Leads the scheduler's core through the recorded calls again and compares each "
      "decision; the exit status is 1 if one differs");
  replay->add_option("FILE", file, "A .flight file")->required();
  replay->add_flag("--verbose", verbose, "A line for each step");
  CLI::App* trace = app.add_subcommand(
      "trace",
      "Writes Chrome's trace format: the workers' steps, the scheduler's plans, and each "
      "request's waiting, prefill and decoding; the exit status is 1 if a decision differs, where "
      "the trace ends");
  trace->add_option("FILE", file, "A .flight file")->required();
  trace->add_option("--output", output,
                    "A .json file; without it the trace goes to standard output");
  ParseOrExit(&app, argc, argv);
  return replay->parsed() ? RunReplay(file, verbose) : RunTrace(file, output);
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) { return flotilla::Main(argc, argv); }
