#include "deploy/launcher/served/served_stats.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "deploy/launcher/workload/nearest_rank.h"

namespace flotilla {
namespace {

constexpr double kNsPerMillisecond = 1e6;

struct Share {
  const char* name;
  double share;
};
constexpr std::array<Share, 3> kShares = {{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}}};
constexpr std::array<const char*, 4> kLatencies = {"ttft", "tpot", "itl", "e2el"};

double Milliseconds(int64_t ns) { return static_cast<double>(ns) / kNsPerMillisecond; }

void AddSpread(boost::json::object* figures, const std::string& name,
               const std::vector<int64_t>& ns) {
  const double sum = Milliseconds(std::accumulate(ns.begin(), ns.end(), int64_t{0}));
  const auto set = [&](const char* which, double value) {
    (*figures)[StrCat(name, "_", which)] =
        ns.empty() ? boost::json::value() : boost::json::value(value);
  };
  set("mean", sum / static_cast<double>(ns.size()));
  for (const Share& s : kShares) set(s.name, Milliseconds(NearestRank(ns, s.share)));
}

bool Within(int64_t ns, const std::optional<double>& limit_ms) {
  return !limit_ms || Milliseconds(ns) <= *limit_ms;
}

}  // namespace

int64_t ServedRequest::tpot_ns() const {
  return output_tokens > 1 ? (last_ns - first_ns) / (output_tokens - 1) : 0;
}

bool Slo::Keeps(const ServedRequest& request) const {
  return request.ok() && Within(request.ttft_ns(), ttft_ms) && Within(request.tpot_ns(), tpot_ms) &&
         Within(request.e2el_ns(), e2el_ms);
}

StatusOr<Slo> ParseSlo(std::string_view text) {
  Slo slo;
  const std::map<std::string, std::optional<double>*> limits = {
      {"ttft", &slo.ttft_ms}, {"tpot", &slo.tpot_ms}, {"e2el", &slo.e2el_ms}};
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    const size_t colon = part.find(':');
    const auto limit = limits.find(part.substr(0, colon));
    double value = 0;
    const char* end = part.data() + part.size();
    const char* begin = colon == std::string::npos ? end : part.data() + colon + 1;
    const auto [rest, error] = std::from_chars(begin, end, value);
    if (limit == limits.end() || *limit->second || error != std::errc() || rest != end ||
        value <= 0) {
      return absl::InvalidArgumentError(
          StrCat("--goodput: '", part,
                 "' is no limit in milliseconds; write for example ttft:500,tpot:50,e2el:10000"));
    }
    *limit->second = value;
  }
  return slo;
}

boost::json::object ServedFigures(const std::vector<ServedRequest>& requests,
                                  const ServedLoad& load, const Slo& slo) {
  std::vector<int64_t> ttft, tpot, itl, e2el;
  std::map<std::string, uint64_t> errors;
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, good = 0, answered = 0;
  int64_t begin_ns = INT64_MAX, end_ns = 0;
  for (const ServedRequest& request : requests) {
    begin_ns = std::min(begin_ns, request.sent_ns);
    end_ns = std::max(end_ns, request.end_ns);
    if (!request.ok()) {
      ++errors[request.error];
      continue;
    }
    ++answered;
    good += slo.Keeps(request) ? 1 : 0;
    prompt_tokens += request.prompt_tokens;
    cached_tokens += request.cached_tokens;
    output_tokens += request.output_tokens;
    ttft.push_back(request.ttft_ns());
    e2el.push_back(request.e2el_ns());
    if (request.output_tokens > 1) tpot.push_back(request.tpot_ns());
    itl.insert(itl.end(), request.gaps_ns.begin(), request.gaps_ns.end());
  }
  const double seconds = end_ns > begin_ns ? static_cast<double>(end_ns - begin_ns) * 1e-9 : 0;
  const auto rate = [&](uint64_t count) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  boost::json::object figures = {{"c", load.max_concurrency},
                                 {"rate", load.request_rate},
                                 {"requests", answered},
                                 {"failed", requests.size() - answered},
                                 {"seconds", seconds},
                                 {"prompt_tokens", prompt_tokens},
                                 {"cached_tokens", cached_tokens},
                                 {"output_tokens", output_tokens},
                                 {"req_s", rate(answered)},
                                 {"out_tok_s", rate(output_tokens)},
                                 {"total_tok_s", rate(prompt_tokens + output_tokens)}};
  AddSpread(&figures, "ttft", ttft);
  AddSpread(&figures, "tpot", tpot);
  AddSpread(&figures, "itl", itl);
  AddSpread(&figures, "e2el", e2el);
  if (slo.any()) {
    figures["goodput_req_s"] = rate(good);
    figures["good"] = good;
  }
  boost::json::object by_error;
  for (const auto& [error, count] : errors) by_error[error] = count;
  figures["errors"] = std::move(by_error);
  return figures;
}

std::string ServedTable(const boost::json::object& figures) {
  const auto number = [&](const std::string& name) { return figures.at(name).to_number<double>(); };
  std::string text = absl::StrFormat("%.0f requests answered in %.2f s, %.0f failed\n",
                                     number("requests"), number("seconds"), number("failed"));
  absl::StrAppendFormat(&text, "%.2f requests/s, %.1f output tokens/s, %.1f tokens/s in all\n",
                        number("req_s"), number("out_tok_s"), number("total_tok_s"));
  absl::StrAppendFormat(&text, "%.0f prompt tokens, %.0f of them cached, %.0f output tokens\n",
                        number("prompt_tokens"), number("cached_tokens"), number("output_tokens"));
  if (figures.contains("good")) {
    absl::StrAppendFormat(&text, "%.0f requests kept --goodput: %.2f a second\n", number("good"),
                          number("goodput_req_s"));
  }
  absl::StrAppendFormat(&text, "\n%-6s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99");
  for (const std::string name : kLatencies) {
    absl::StrAppendFormat(&text, "%-6s", name);
    for (const char* which : {"mean", "p50", "p90", "p99"}) {
      const boost::json::value& value = figures.at(StrCat(name, "_", which));
      if (value.is_null())
        absl::StrAppendFormat(&text, " %10s", "-");
      else
        absl::StrAppendFormat(&text, " %10.2f", value.to_number<double>());
    }
    text.push_back('\n');
  }
  for (const auto& [error, count] : figures.at("errors").as_object()) {
    absl::StrAppendFormat(&text, "failed, %d times: %s\n", count.to_number<int64_t>(),
                          std::string(error));
  }
  return text;
}

}  // namespace flotilla
