#include "worker_proc/bench/roofline_report.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_format.h"
#include "boost/json.hpp"
#include "common/base/build_revision.h"
#include "common/base/cpus.h"
#include "common/base/status.h"

namespace flotilla::bench {
namespace {

namespace json = boost::json;

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

std::string PeaksLine(const char* who, const Peaks& peaks) {
  std::string line = absl::StrFormat(
      "  %-12s reads %5.1f GB/s; int8 %5.0f GOPS with 4-bit, %5.0f with 8-bit weights; fp32 %4.0f "
      "GFLOPS",
      who, peaks.read_bytes * 1e-9, peaks.int4_macs * 2e-9, peaks.int8_macs * 2e-9,
      peaks.fp32_macs * 2e-9);
  if (peaks.bf16_macs > 0) line += absl::StrFormat("; bf16 %4.0f", peaks.bf16_macs * 2e-9);
  return line + "\n";
}

json::object PeaksJson(const Peaks& peaks) {
  return {{"read_gb_s", peaks.read_bytes * 1e-9},
          {"int8_4bit_gops", peaks.int4_macs * 2e-9},
          {"int8_8bit_gops", peaks.int8_macs * 2e-9},
          {"bf16_gflops", peaks.bf16_macs * 2e-9},
          {"fp32_gflops", peaks.fp32_macs * 2e-9}};
}

json::object RowJson(const RooflineRow& row) {
  json::object object{{"kernel", row.kernel},
                      {"name", row.name},
                      {"tokens", row.tokens},
                      {"best_us", row.seconds.best * 1e6},
                      {"median_us", row.seconds.median * 1e6},
                      {"limit_us", row.limit.seconds * 1e6},
                      {"limit_beside_us", row.limit_beside.seconds * 1e6},
                      {"bound", row.limit.bound},
                      {"share", row.share()}};
  if (row.tokens_per_second > 0) object["tokens_per_second"] = row.tokens_per_second;
  if (row.ops.empty()) return object;
  json::object& ops = object["ops"].emplace_object();
  for (const auto& [name, share] : row.ops) ops[name] = share;
  return object;
}

}  // namespace

double LoadAverage() {
  double load[1] = {0};
  return getloadavg(load, 1) == 1 ? load[0] : 0;
}

MachineInfo DescribeMachine(const std::string& model_path) {
  MachineInfo machine;
  machine.cpu = CpuModel();
  machine.commit = BuildRevision();
  machine.model = std::filesystem::path(model_path).filename().string();
  machine.cores = AllowedCores();
  machine.load_before = LoadAverage();
  return machine;
}

std::string RooflineTable(const RooflineReport& report) {
  std::string text =
      StrCat(report.isa, ", ", report.backend, ", ", report.threads, " threads\n",
             PeaksLine("one thread", report.one), PeaksLine("all threads", report.all),
             absl::StrFormat("  %-13s %-38s %6s %10s %10s %10s %-5s %6s\n", "kernel", "", "tokens",
                             "best us", "median us", "limit us", "bound", "share"));
  for (const RooflineRow& row : report.rows) {
    text += absl::StrFormat("  %-13s %-38s %6d %10.1f %10.1f %10.1f %-5s %4.0f %%", row.kernel,
                            row.name, row.tokens, row.seconds.best * 1e6, row.seconds.median * 1e6,
                            row.limit.seconds * 1e6, row.limit.bound, 100 * row.share());
    if (row.tokens_per_second > 0) text += absl::StrFormat("  %7.1f tok/s", row.tokens_per_second);
    text += "\n";
    if (row.ops.empty()) continue;
    text += "   ";
    double rest = 1;
    for (const auto& [name, share] : row.ops) {
      text += absl::StrFormat(" %s %.1f %%,", name, 100 * share);
      rest -= share;
    }
    text += absl::StrFormat(" sampling and the rest %.1f %%\n", 100 * rest);
  }
  return text;
}

json::object RooflineJson(const MachineInfo& machine, std::span<const RooflineReport> reports) {
  json::array runs;
  for (const RooflineReport& report : reports) {
    json::array rows;
    for (const RooflineRow& row : report.rows) rows.push_back(RowJson(row));
    runs.push_back(json::object{
        {"isa", report.isa},
        {"backend", report.backend},
        {"threads", report.threads},
        {"limits", {{"one_thread", PeaksJson(report.one)}, {"all_threads", PeaksJson(report.all)}}},
        {"rows", std::move(rows)}});
  }
  return {{"machine",
           {{"cpu", machine.cpu},
            {"commit", machine.commit},
            {"model", machine.model},
            {"cores", machine.cores},
            {"load_before", machine.load_before},
            {"load_after", machine.load_after}}},
          {"runs", std::move(runs)}};
}

}  // namespace flotilla::bench
