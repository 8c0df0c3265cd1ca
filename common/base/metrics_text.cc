#include "common/base/metrics_text.h"

#include <prometheus/text_serializer.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace flotilla {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr size_t kPageBytes = 64 << 10;  // of a process, as a rule
constexpr double kMostExact = 1e15;      // whole numbers below are written without an exponent

void AppendNumber(double value, std::string* out) {
  if (std::isnan(value)) {
    out->append("Nan");
  } else if (std::isinf(value)) {
    out->append(value < 0 ? "-Inf" : "+Inf");
  } else if (std::abs(value) < kMostExact && value == std::trunc(value) && !std::signbit(value)) {
    absl::StrAppend(out, static_cast<int64_t>(value));
  } else {
    char text[32];
    const auto end =
        std::to_chars(text, text + sizeof(text), value, std::chars_format::general, 16);
    out->append(text, end.ptr);
  }
}

void AppendEscaped(const std::string& text, std::string* out) {
  for (const char c : text) {
    if (c == '\n') {
      out->append("\\n");
      continue;
    }
    if (c == '\\' || c == '"') out->push_back('\\');
    out->push_back(c);
  }
}

// What FamilyText can write, by its name; null: something else, and none of ours.
const char* TypeName(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Histogram:
      return "histogram";
    default:
      return nullptr;
  }
}

// A family's lines.
class FamilyText {
 public:
  FamilyText(const MetricFamily& family, std::string* out) : family_(family), out_(out) {}

  void Append(const char* type) {
    if (!family_.help.empty())
      absl::StrAppend(out_, "# HELP ", family_.name, " ", family_.help, "\n");
    absl::StrAppend(out_, "# TYPE ", family_.name, " ", type, "\n");
    for (const ClientMetric& metric : family_.metric) {
      SetLabels(metric);
      if (family_.type == MetricType::Counter) {
        Line("", metric.counter.value);
      } else if (family_.type == MetricType::Gauge) {
        Line("", metric.gauge.value);
      } else {
        AppendHistogram(metric.histogram);
      }
    }
  }

 private:
  void SetLabels(const ClientMetric& metric) {
    labels_.clear();
    for (const ClientMetric::Label& label : metric.label) {
      absl::StrAppend(&labels_, labels_.empty() ? "" : ",", label.name, "=\"");
      AppendEscaped(label.value, &labels_);
      labels_.push_back('"');
    }
  }

  template <typename Value>
  void Line(absl::string_view suffix, Value value) {
    absl::StrAppend(out_, family_.name, suffix);
    if (!labels_.empty()) absl::StrAppend(out_, "{", labels_, "}");
    End(value);
  }
  void End(double value) {
    out_->push_back(' ');
    AppendNumber(value, out_);
    out_->push_back('\n');
  }
  void End(uint64_t value) { absl::StrAppend(out_, " ", value, "\n"); }

  void Bucket(double bound, uint64_t count) {
    absl::StrAppend(out_, family_.name, "_bucket{", labels_, labels_.empty() ? "" : ",", "le=\"");
    AppendNumber(bound, out_);
    out_->append("\"}");
    End(count);
  }

  void AppendHistogram(const ClientMetric::Histogram& histogram) {
    Line("_count", histogram.sample_count);
    Line("_sum", histogram.sample_sum);
    double last = -INFINITY;
    for (const ClientMetric::Bucket& bucket : histogram.bucket) {
      Bucket(bucket.upper_bound, bucket.cumulative_count);
      last = bucket.upper_bound;
    }
    if (last != INFINITY) Bucket(INFINITY, histogram.sample_count);
  }

  const MetricFamily& family_;
  std::string* const out_;
  std::string labels_;  // of the metric, inside of the braces
};

}  // namespace

std::string MetricsText(const std::vector<MetricFamily>& families) {
  std::string out;
  out.reserve(kPageBytes);
  for (const MetricFamily& family : families) {
    if (const char* const type = TypeName(family.type); type != nullptr) {
      FamilyText(family, &out).Append(type);
    } else {
      std::ostringstream text;
      prometheus::TextSerializer().Serialize(text, {family});
      out += text.str();
    }
  }
  return out;
}

}  // namespace flotilla
