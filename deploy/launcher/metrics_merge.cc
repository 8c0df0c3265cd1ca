#include "deploy/launcher/metrics_merge.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

constexpr size_t kLineBytes = 64;  // of a page's lines, as a rule
constexpr size_t kRoomBytes = 64 << 10;
// Of a histogram's or summary's samples, after the family's name.
constexpr std::string_view kSuffixes[] = {"_bucket", "_sum", "_count"};

bool HasSuffixes(std::string_view type) { return type == "histogram" || type == "summary"; }

bool IsName(std::string_view name) {
  if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':';
  });
}

// The next word of `text`, which is shortened by it and one space.
std::string_view TakeWord(std::string_view* text) {
  const size_t end = std::min(text->find(' '), text->size());
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return word;
}

// A sample line taken apart: name{labels} value. The name may be none.
struct Sample {
  std::string_view name;
  std::string_view labels;  // inside of the braces
  std::string_view value;   // and a timestamp, if any
};

// Past the value whose opening quote is at `at`; the end of `text` if nothing closes it.
size_t SkipValue(std::string_view text, size_t at) {
  for (++at;; ++at) {
    at = text.find('"', at);
    if (at == std::string_view::npos) return text.size();
    size_t backslashes = 0;
    while (text[at - 1 - backslashes] == '\\') ++backslashes;
    if (backslashes % 2 == 0) return at + 1;
  }
}

// Where the '}' is that closes labels begun before `at`; quotes may hold one.
size_t FindLabelsEnd(std::string_view line, size_t at) {
  while (at < line.size() && line[at] != '}') at = line[at] == '"' ? SkipValue(line, at) : at + 1;
  return at < line.size() ? at : std::string_view::npos;
}

std::optional<Sample> ParseSample(std::string_view line) {
  Sample sample;
  size_t name_end = 0;
  while (name_end < line.size() && line[name_end] != '{' && line[name_end] != ' ') ++name_end;
  if (name_end == line.size()) return std::nullopt;
  sample.name = line.substr(0, name_end);
  size_t rest = name_end;
  if (line[name_end] == '{') {
    const size_t close = FindLabelsEnd(line, name_end + 1);
    if (close == std::string_view::npos) return std::nullopt;
    sample.labels = line.substr(name_end + 1, close - name_end - 1);
    if (sample.labels.ends_with(',')) sample.labels.remove_suffix(1);
    rest = close + 1;
  }
  if (rest >= line.size() || line[rest] != ' ') return std::nullopt;
  sample.value = line.substr(rest + 1);
  if (sample.value.empty()) return std::nullopt;
  return sample;
}

// Names before a '=' outside quotes.
bool HasLabel(std::string_view labels, std::string_view name) {
  size_t begin = 0;
  for (size_t i = 0; i < labels.size();) {
    if (labels[i] == '"') {
      i = SkipValue(labels, i);
      continue;
    }
    if (labels[i] == '=' && labels.substr(begin, i - begin) == name) return true;
    if (labels[i] == ',') begin = i + 1;
    ++i;
  }
  return false;
}

}  // namespace

void MetricsMerger::Add(std::string_view page, const MetricLabels& labels) {
  Page state;
  bytes_ += page.size();
  seen_.reserve(bytes_ / kLineBytes);
  while (!page.empty()) {
    const size_t end = std::min(page.find('\n'), page.size());
    const std::string_view line = page.substr(0, end);
    page.remove_prefix(std::min(end + 1, page.size()));
    if (line.empty()) continue;
    const bool taken = line[0] == '#' ? AddComment(line, &state) : AddSample(line, labels, &state);
    if (!taken) ++dropped_lines_;
  }
}

bool MetricsMerger::AddComment(std::string_view line, Page* page) {
  TakeWord(&line);  // "#"
  const std::string_view kind = TakeWord(&line);
  if (kind != "HELP" && kind != "TYPE") return true;  // a plain comment: dropped on purpose
  const std::string_view name = TakeWord(&line);
  if (page->described == nullptr || page->described->first != name) {
    if (!IsName(name)) return false;
    page->described = &*families_.try_emplace(std::string(name)).first;
  }
  page->name = {};  // it may be another family's now
  Family& family = page->described->second;
  if (kind == "HELP") {
    if (family.help.empty()) family.help = line;
    return true;
  }
  if (family.type == "untyped" && family.samples.empty()) family.type = line;
  if (family.type == line) return true;
  page->refused.emplace(name);
  return false;
}

std::string_view MetricsMerger::FamilyOf(std::string_view sample_name) const {
  for (const std::string_view suffix : kSuffixes) {
    if (!sample_name.ends_with(suffix)) continue;
    const auto base = families_.find(sample_name.substr(0, sample_name.size() - suffix.size()));
    if (base == families_.end()) continue;
    if (HasSuffixes(base->second.type)) return base->first;
  }
  return sample_name;
}

std::string* MetricsMerger::Room(size_t bytes) {
  if (lines_.empty() || lines_.back().capacity() - lines_.back().size() < bytes)
    lines_.emplace_back().reserve(std::max(bytes, kRoomBytes));
  return &lines_.back();
}

bool MetricsMerger::AddSample(std::string_view line, const MetricLabels& labels, Page* page) {
  const std::optional<Sample> sample = ParseSample(line);
  if (!sample) return false;
  if (page->name.empty() || sample->name != page->name) {
    if (!IsName(sample->name)) return false;
    const std::string_view family = FamilyOf(sample->name);
    page->name = sample->name;
    page->family = page->refused.contains(family) ? nullptr : &families_[std::string(family)];
  }
  if (page->family == nullptr) return false;
  size_t bytes = line.size() + 3;  // braces and a line's end
  for (const auto& [name, value] : labels) bytes += name.size() + value.size() + 4;
  std::string* const text = Room(bytes);
  const size_t begin = text->size();
  text->append(sample->name).append("{").append(sample->labels);
  bool labelled = !sample->labels.empty();
  for (const auto& [name, value] : labels) {
    if (HasLabel(sample->labels, name)) continue;
    text->append(std::exchange(labelled, true) ? "," : "").append(name).append("=\"");
    text->append(value).append("\"");
  }
  if (labelled) {
    text->push_back('}');
  } else {
    text->pop_back();
  }
  const std::string_view key = std::string_view(*text).substr(begin);
  if (!seen_.insert(key).second) {
    text->resize(begin);
    return false;
  }
  text->append(" ").append(sample->value).append("\n");
  page->family->samples.push_back(std::string_view(*text).substr(begin));
  return true;
}

std::string MetricsMerger::Render() const {
  std::string page;
  size_t bytes = bytes_;  // more than the comments have
  for (const std::string& each : lines_) bytes += each.size();
  page.reserve(bytes);
  for (const auto& [name, family] : families_) {
    if (family.samples.empty()) continue;
    if (!family.help.empty()) absl::StrAppend(&page, "# HELP ", name, " ", family.help, "\n");
    absl::StrAppend(&page, "# TYPE ", name, " ", family.type, "\n");
    for (const std::string_view sample : family.samples) page.append(sample);
  }
  return page;
}

}  // namespace flotilla
