#include "worker_proc/bench/roofline.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "worker_proc/bench/bench_model.h"
#include "worker_proc/cpu/isa.h"

namespace flotilla::bench {

StatusOr<std::vector<std::string>> RooflineIsas(const std::string& isa) {
  std::vector<std::string> isas = cpu::SupportedIsas();
  // Plain loops have no limit of their own.
  isas.erase(std::remove(isas.begin(), isas.end(), "reference"), isas.end());
  if (isas.empty()) return absl::InvalidArgumentError("this CPU has neither AVX-512 nor AVX2");
  if (isa == "auto") return isas;
  if (std::find(isas.begin(), isas.end(), isa) == isas.end()) {
    return absl::InvalidArgumentError(
        StrCat("--isa ", isa, " can't run here; use auto, ", absl::StrJoin(isas, ", ")));
  }
  return std::vector<std::string>{isa};
}

StatusOr<RooflineReport> RunRoofline(const RooflineOptions& options, const std::string& isa) {
  ASSIGN_OR_RETURN(const std::unique_ptr<BenchModel> model, BenchModel::Create(options, isa));
  RooflineReport report;
  report.isa = isa;
  report.backend = model->backend().name();
  report.threads = model->cpu().threads.threads;
  if (!options.only_steps) {
    RETURN_IF_ERROR(AddMatrixRows(model.get(), &report.rows));
    RETURN_IF_ERROR(AddFormatRows(model.get(), options.formats, &report.rows));
    RETURN_IF_ERROR(AddNormRow(model.get(), &report.rows));
    RETURN_IF_ERROR(AddSamplerRows(model.get(), &report.rows));
  }
  RETURN_IF_ERROR(AddForwardRows(model.get(), &report.rows));
  if (!options.only_steps) RETURN_IF_ERROR(AddAttentionRows(model.get(), &report.rows));
  report.one = model->best_one();
  report.all = model->best_all();
  for (RooflineRow& row : report.rows) {
    row.limit = LimitOf(row.works, row.one_thread ? report.one : report.all);
  }
  return report;
}

}  // namespace flotilla::bench
