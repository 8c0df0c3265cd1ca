// What a benchmark prints: a line a figure with its target beside it, and the same as JSON.
//
// Units are in the figure. Threads: one. Errors: WriteJson says what it could not write.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

struct Target {
  bool at_most = true;  // else at least
  double value = 0;
};
inline Target AtMost(double value) { return {true, value}; }
inline Target AtLeast(double value) { return {false, value}; }

struct Figure {
  std::string name;
  double value = 0;
  std::string unit;              // "us", "x", "%"
  std::optional<Target> target;  // none: for comparison only
  std::string note;              // p99, the limit, what it is compared with

  bool met() const {
    return !target || (target->at_most ? value <= target->value : value >= target->value);
  }
};

class Report {
 public:
  // Begins a section and prints its heading.
  void Section(const std::string& heading);
  // Prints the figure.
  void Add(Figure figure);
  // A remark between figures: printed, and kept for the JSON.
  void Note(const std::string& text);

  bool AllMet() const;
  void PrintSummary() const;
  // {"machine": {…}, "notes": […], "figures": [{"section", "name", "value", "unit", "target", …}]}
  Status WriteJson(const std::string& path) const;

 private:
  struct Entry {
    std::string section;
    Figure figure;
  };
  std::string section_;
  std::vector<Entry> entries_;
  std::vector<std::string> notes_;
};

// "AMD EPYC …, avx512, 2 cores, load 0.35": what a figure must stand beside.
std::string DescribeMachine();

// The value below which `share` (0 … 1) of the samples lie; 0 if there are none.
int64_t Percentile(std::vector<int64_t> samples, double share);

// Several rounds of one measurement: the median round's percentiles, in µs.
class Rounds {
 public:
  void Add(const std::vector<int64_t>& samples_ns);
  double P50Us() const { return Percentile(p50_, 0.5) * 1e-3; }
  double P99Us() const { return Percentile(p99_, 0.5) * 1e-3; }
  double BestUs() const { return Percentile(p50_, 0) * 1e-3; }  // the best round's p50
  // "p99 0.79 us, best round 0.51 us"
  std::string Note() const;

 private:
  std::vector<int64_t> p50_, p99_;
};

}  // namespace flotilla
