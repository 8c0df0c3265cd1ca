// Merges the metrics pages of several processes (text exposition format 0.0.4) into one valid page:
// HELP and TYPE once a family, all samples of a family together, no sample twice.
//
// Threads: one an object, which isn't copied: it points into itself. Errors: lines that are not of
// the format are dropped and counted; a family whose type differs from the first page's is dropped
// likewise. Source: https://prometheus.io/docs/instrumenting/exposition_formats/
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace flotilla {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class MetricsMerger {
 public:
  MetricsMerger() = default;
  MetricsMerger(const MetricsMerger&) = delete;
  // Adds a page. Each of `labels` is given to every sample that has no label of that name.
  void Add(std::string_view page, const MetricLabels& labels);
  std::string Render() const;
  uint64_t dropped_lines() const { return dropped_lines_; }

 private:
  struct Family {
    std::string help;
    std::string type = "untyped";
    std::vector<std::string_view> samples;  // lines_
  };
  using Families = std::map<std::string, Family, std::less<>>;
  // What is added, as far as it goes.
  struct Page {
    std::set<std::string, std::less<>> refused = {};  // families that clash with an earlier page's
    std::string_view name = {};  // of the last sample, and its family; null: refused
    Family* family = nullptr;
    Families::value_type* described = nullptr;  // by the last comment
  };
  bool AddComment(std::string_view line, Page* page);
  bool AddSample(std::string_view line, const MetricLabels& labels, Page* page);
  // The family a sample belongs to: its name without _bucket, _sum, _count of a declared histogram
  // or summary.
  std::string_view FamilyOf(std::string_view sample_name) const;
  // Where `bytes` more can be appended to lines_ without moving what is there.
  std::string* Room(size_t bytes);

  Families families_;
  std::deque<std::string> lines_;               // of all samples, many a string, which never grows
  absl::flat_hash_set<std::string_view> seen_;  // name and labels of each line
  size_t bytes_ = 0;                            // of the pages
  uint64_t dropped_lines_ = 0;
};

}  // namespace flotilla
