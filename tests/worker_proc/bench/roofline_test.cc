// The whole benchmark over a tiny model: what it counts is what the file holds.
#include "worker_proc/bench/roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <map>

#include "common/base/check.h"
#include "tests/fakes/gguf_builder.h"
#include "worker_proc/bench/bench_model.h"
#include "worker_proc/bench/roofline_report.h"

namespace flotilla::bench {
namespace {

using ::testing::HasSubstr;

class RooflineTest : public ::testing::Test {
 protected:
  RooflineTest() {
    options_.model = StrCat(::testing::TempDir(), "roofline_test_", getpid(), ".gguf");
    options_.quick = true;
    options_.threads = 1;
  }
  ~RooflineTest() override { unlink(options_.model.c_str()); }
  void Write(const testing::TinyLlamaOptions& options = {}) {
    testing::WriteTinyLlama(options_.model, options);
  }
  RooflineOptions options_;
};

// Of all matrices of a file but the norms; a tied embedding is the head too.
std::map<DType, double> MatrixValues(const std::string& path) {
  const auto checkpoint = OpenCheckpoint(path);
  CHECK_OK(checkpoint.status());
  std::map<DType, double> values;
  for (const TensorView& view : (*checkpoint)->tensors()) {
    if (view.rows > 1) {
      values[view.dtype] += static_cast<double>(view.rows) * static_cast<double>(view.cols);
    }
  }
  return values;
}

TEST_F(RooflineTest, ATokenCostsEveryWeightOnce) {
  Write();
  const auto model = BenchModel::Create(options_, "avx2");
  ASSERT_TRUE(model.ok()) << model.status();
  Work work;
  double bytes = 0;
  for (const RecordedOp& op : (*model)->ops()) {
    if (op.linear == nullptr) continue;
    work += (*model)->TokenWork(*op.linear);
    bytes += static_cast<double>((*model)->recorder().SourceOf(op.linear).bytes);
  }
  std::map<DType, double> values = MatrixValues(options_.model);
  EXPECT_EQ(work.int4_macs, values[DType::kQ4_1]);
  EXPECT_EQ(work.int8_macs, values[DType::kQ8_0]);
  EXPECT_EQ(work.fp32_macs, 0);
  EXPECT_EQ(bytes, static_cast<double>((*model)->backend().memory().step_weights));
}

TEST_F(RooflineTest, FloatMatricesAreCountedAsFloats) {
  Write({.matrix_dtype = DType::kF16, .embedding_dtype = DType::kF16});
  const auto model = BenchModel::Create(options_, "avx2");
  ASSERT_TRUE(model.ok()) << model.status();
  Work work;
  for (const RecordedOp& op : (*model)->ops()) {
    if (op.linear != nullptr) work += (*model)->TokenWork(*op.linear);
  }
  EXPECT_EQ(work.fp32_macs, MatrixValues(options_.model)[DType::kF16]);
  EXPECT_EQ(work.int4_macs + work.int8_macs, 0);
}

TEST_F(RooflineTest, EveryRowHasATimeAndALimit) {
  Write();
  options_.formats = {"Q4_0"};
  const auto report = RunRoofline(options_, "avx2");
  ASSERT_TRUE(report.ok()) << report.status();
  std::map<std::string, int> kernels;
  for (const RooflineRow& row : report->rows) {
    ++kernels[row.kernel];
    EXPECT_GT(row.seconds.best, 0) << row.name;
    EXPECT_GE(row.seconds.median, row.seconds.best) << row.name;
    EXPECT_GT(row.share(), 0) << row.name;
    EXPECT_TRUE(std::isfinite(row.share())) << row.name;
    EXPECT_EQ(row.tokens_per_second > 0, row.kernel == "forward") << row.name;
  }
  // q+k+v, o, down at six numbers of tokens and the head at four, and again as Q4_0.
  EXPECT_EQ(kernels["gemm"], 2 * 22);
  EXPECT_EQ(kernels["gate_up"], 2 * 6);
  EXPECT_EQ(kernels["attention"], 5);
  EXPECT_EQ(kernels["norm_quantize"], 1);
  EXPECT_EQ(kernels["sampler"], 2);
  EXPECT_EQ(kernels["forward"], 6);
  const std::string table = RooflineTable(*report);
  for (const RooflineRow& row : report->rows) EXPECT_THAT(table, HasSubstr(row.name));
}

TEST_F(RooflineTest, StepsAloneWhenOnlyTheyAreWanted) {
  Write();
  options_.only_steps = true;
  const auto report = RunRoofline(options_, "avx2");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->rows.size(), 6u);
  for (const RooflineRow& row : report->rows) EXPECT_EQ(row.kernel, "forward");
}

TEST_F(RooflineTest, RefusesWhatItCantMeasure) {
  EXPECT_THAT(RooflineIsas("reference").status().message(), HasSubstr("--isa"));
  ASSERT_TRUE(RooflineIsas("auto").ok());
  EXPECT_EQ(RooflineIsas("auto")->back(), "avx2");
  Write();
  options_.formats = {"Q9_9"};
  EXPECT_THAT(RunRoofline(options_, "avx2").status().message(), HasSubstr("Q9_9"));
  options_.model += "-nowhere";
  EXPECT_FALSE(RunRoofline(options_, "avx2").ok());
}

}  // namespace
}  // namespace flotilla::bench
