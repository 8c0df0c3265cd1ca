#include "absl/strings/str_format.h"
#include "worker_proc/bench/quality.h"

namespace flotilla::bench {
namespace {

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string QualityTable(const QualityReport& report) {
  std::string table = absl::StrFormat(
      "%s, text %s: %d tokens in %d windows, beside float32 with a float32 KV cache\n\n"
      "  %-12s%-10s%10s%10s%10s%19s%12s\n",
      report.model, report.text, report.tokens, report.windows, "activations", "KV", "mean KL",
      "max KL", "top-1", "top-1 decided", "perplexity");
  for (const QualityRow& row : report.rows) {
    const QualityScore& score = row.score;
    absl::StrAppendFormat(
        &table, "  %-12s%-10s%10.2e%10.2e%8.2f %%%8.2f %% of %5d%12.4f\n", row.activations, row.kv,
        score.mean_kl(), score.max_kl, 100 * Share(score.same_top1, score.positions),
        100 * Share(score.decided_same_top1, score.decided), score.decided, score.perplexity());
  }
  for (const std::string& note : report.notes)
    absl::StrAppend(&table, "\n  left out: ", note, "\n");
  return table;
}

boost::json::object QualityJson(const QualityReport& report) {
  boost::json::array rows;
  for (const QualityRow& row : report.rows) {
    const QualityScore& score = row.score;
    rows.push_back({{"activations", row.activations},
                    {"kv_cache", row.kv},
                    {"positions", score.positions},
                    {"mean_kl", score.mean_kl()},
                    {"max_kl", score.max_kl},
                    {"top1", Share(score.same_top1, score.positions)},
                    {"decided_positions", score.decided},
                    {"decided_top1", Share(score.decided_same_top1, score.decided)},
                    {"perplexity", score.perplexity()}});
  }
  return {{"model", report.model},
          {"text", report.text},
          {"tokens", report.tokens},
          {"windows", report.windows},
          {"decided_margin", kDecidedMargin},
          {"rows", std::move(rows)},
          {"left_out", boost::json::value_from(report.notes)}};
}

}  // namespace flotilla::bench
