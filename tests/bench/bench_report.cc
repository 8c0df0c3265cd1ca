#include "tests/bench/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "common/base/cpu_features.h"
#include "tests/bench/bench_process.h"

namespace flotilla {
namespace {

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), std::fabs(value) < 9.995 ? "%.2f" : "%.1f", value);
  return text;
}

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + "\"";
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}

std::string Isa() {
  const std::vector<std::string> names = SupportedIsaNames();
  return names.empty() ? "baseline" : names.front();
}

std::string TargetText(const Figure& figure) {
  if (!figure.target) return "";
  return StrCat(figure.target->at_most ? "<= " : ">= ", Number(figure.target->value), " ",
                figure.unit);
}

const char* Verdict(const Figure& figure) {
  if (!figure.target) return "-";
  return figure.met() ? "met" : "MISSED";
}

}  // namespace

void Report::Section(const std::string& heading) {
  section_ = heading;
  std::printf("\n%s\n", heading.c_str());
}

void Report::Add(Figure figure) {
  std::printf("  %-58s %8s %-3s %-12s %-6s  %s\n", figure.name.c_str(),
              Number(figure.value).c_str(), figure.unit.c_str(), TargetText(figure).c_str(),
              Verdict(figure), figure.note.c_str());
  std::fflush(stdout);
  entries_.push_back({section_, std::move(figure)});
}

void Report::Note(const std::string& text) {
  std::printf("  note: %s\n", text.c_str());
  notes_.push_back(text);
}

bool Report::AllMet() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.figure.met(); });
}

void Report::PrintSummary() const {
  int judged = 0, met = 0;
  for (const Entry& entry : entries_) {
    if (!entry.figure.target) continue;
    ++judged;
    met += entry.figure.met();
  }
  std::printf("\n%d of %d targets met\n", met, judged);
}

Status Report::WriteJson(const std::string& path) const {
  std::string json = StrCat("{\"machine\": ", Quote(DescribeMachine()), ",\n \"notes\": [");
  for (size_t i = 0; i < notes_.size(); ++i) StrAppend(&json, i ? ", " : "", Quote(notes_[i]));
  StrAppend(&json, "],\n \"figures\": [");
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Figure& figure = entries_[i].figure;
    StrAppend(&json, i ? ",\n  " : "\n  ", "{\"section\": ", Quote(entries_[i].section),
              ", \"name\": ", Quote(figure.name), ", \"value\": ", figure.value,
              ", \"unit\": ", Quote(figure.unit));
    if (figure.target)
      StrAppend(&json, ", \"target\": ", Quote(TargetText(figure)),
                ", \"met\": ", figure.met() ? "true" : "false");
    StrAppend(&json, ", \"note\": ", Quote(figure.note), "}");
  }
  json += "\n ]}\n";
  std::ofstream file(path);
  file << json;
  file.close();
  return file ? OkStatus() : absl::UnavailableError(StrCat("cannot write ", path));
}

std::string DescribeMachine() {
  double load[1] = {0};
  if (getloadavg(load, 1) != 1) load[0] = 0;
  return StrCat(CpuModel(), ", ", Isa(), ", ", AllowedCores().size(), " cores, load ",
                Number(load[0]));
}

int64_t Percentile(std::vector<int64_t> samples, double share) {
  if (samples.empty()) return 0;
  const auto at = static_cast<ptrdiff_t>(share * static_cast<double>(samples.size() - 1));
  std::nth_element(samples.begin(), samples.begin() + at, samples.end());
  return samples[static_cast<size_t>(at)];
}

void Rounds::Add(const std::vector<int64_t>& samples_ns) {
  p50_.push_back(Percentile(samples_ns, 0.5));
  p99_.push_back(Percentile(samples_ns, 0.99));
}

std::string Rounds::Note() const {
  return StrCat("p99 ", Number(P99Us()), " us; best round ", Number(BestUs()), " us");
}

}  // namespace flotilla
