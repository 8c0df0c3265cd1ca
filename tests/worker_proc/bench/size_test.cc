// What `flotilla size` knows of models, by dimensions and by file, and what it says.
#include "worker_proc/bench/size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/fakes/gguf_builder.h"

namespace flotilla::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SizeModelOptions SmolLm2() {
  SizeModelOptions options;
  options.dimensions = {30, 9, 3, 64, uint64_t{96} << 20};
  options.context_length = 8192;
  return options;
}

uint64_t TokenBytes(const SizeModelOptions& options) {
  const StatusOr<SizedModel> model = SizeModel(options);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? model->memory.ReplicaPageBytes() / options.page_size : 0;
}

TEST(SizeTest, BytesATokenOfSmolLm2) {
  SizeModelOptions options = SmolLm2();
  EXPECT_EQ(TokenBytes(options), 23'040u) << "2 * 30 layers * 3 kv heads * 64 * 2 bytes";
  options.page_size = 64;
  EXPECT_EQ(TokenBytes(options), 23'040u);
  options.kv_cache_dtype = "float32";
  EXPECT_EQ(TokenBytes(options), 46'080u);
  options.kv_cache_dtype = "int8";
  EXPECT_EQ(TokenBytes(options), 12'240u) << "a scale of four bytes for each 64";
  options.kv_cache_dtype = "auto";
  options.dtype = "float32";
  EXPECT_EQ(TokenBytes(options), 46'080u);
}

TEST(SizeTest, RanksShareTheHeads) {
  SizeModelOptions options = SmolLm2();
  options.tp = 2;
  StatusOr<SizedModel> model = SizeModel(options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->memory.page_bytes, ElementsAre(2 * 122'880, 122'880));
  EXPECT_THAT(model->memory.weight_bytes, ElementsAre(48 << 20, 48 << 20));
  options.tp = 9;  // more than kv heads: each keeps one
  model = SizeModel(options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->memory.ReplicaPageBytes(), 9u * 122'880);
  options.tp = 10;
  EXPECT_THAT(std::string(SizeModel(options).status().message()), HasSubstr("--tp 10"));
}

TEST(SizeTest, DimensionsThatAreMissing) {
  SizeModelOptions options = SmolLm2();
  options.context_length = 0;
  EXPECT_THAT(std::string(SizeModel(options).status().message()), HasSubstr("--context-length"));
  options = SmolLm2();
  options.dimensions.head_dim = 0;
  EXPECT_THAT(std::string(SizeModel(options).status().message()), HasSubstr("--head-dim"));
}

class SizeOfFileTest : public ::testing::Test {
 protected:
  SizeOfFileTest() {
    options_.model = StrCat(::testing::TempDir(), "size_test_", getpid(), ".gguf");
    testing::WriteTinyLlama(options_.model, {});
  }
  ~SizeOfFileTest() override { unlink(options_.model.c_str()); }
  SizeModelOptions options_;
};

TEST_F(SizeOfFileTest, WeightsAndPagesAreTheBackends) {
  const StatusOr<SizedModel> model = SizeModel(options_);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->memory.context_length, 512u);
  EXPECT_EQ(TokenBytes(options_), 2u * 2 * 3 * 16 * 2) << "bfloat16, as of a quantised file";
  const uint64_t packed = model->memory.ReplicaWeightBytes();
  options_.dtype = "float32";
  EXPECT_GT(SizeModel(options_)->memory.ReplicaWeightBytes(), 3 * packed);
  EXPECT_EQ(TokenBytes(options_), 2u * 2 * 3 * 16 * 4);
}

TEST_F(SizeOfFileTest, ErrorsNameTheFlag) {
  options_.context_length = 513;
  EXPECT_THAT(std::string(SizeModel(options_).status().message()),
              HasSubstr("--context-length 513"));
  options_.model += ".gone";
  EXPECT_EQ(SizeModel(options_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SizeOfFileTest, TheReportsFlagsAreThePlans) {
  SizeReport report;
  report.options = options_;
  report.options.tp = 3;
  report.options.context_length = 256;
  report.load = {.requests = 12, .input_len = 100, .output_len = 28, .tokens_per_second = 150};
  report.rate.output = 100;
  const StatusOr<SizedModel> model = SizeModel(report.options);
  ASSERT_TRUE(model.ok()) << model.status();
  report.model = *model;
  const StatusOr<SizePlan> plan = PlanSize(model->memory, report.load, report.rate);
  ASSERT_TRUE(plan.ok()) << plan.status();
  report.plan = *plan;
  EXPECT_EQ(SizeFlags(report),
            StrCat("--model ", options_.model,
                   " --tp 3 --context-length 256 --kv-cache-memory 1MiB --max-running-requests 6"));
  EXPECT_THAT(SizeText(report),
              AllOf(HasSubstr("384 bytes a token"), HasSubstr("rank 2"),
                    HasSubstr("2, because of --tokens-per-second"),
                    HasSubstr("160 tokens a second, 13.3 a request"),
                    HasSubstr("Begin with 2 of\n  flotilla engine --host 0.0.0.0 --model ")));
  EXPECT_THAT(SizeText(report), HasSubstr("--measured-cores"));
  report.rate.cores = 1.5;
  EXPECT_THAT(SizeText(report), HasSubstr("3, 1.5 a replica"));
  const boost::json::object json = SizeJson(report);
  EXPECT_EQ(json.at("cores").to_number<double>(), 3);
  EXPECT_EQ(json.at("kv_bytes_per_token").to_number<int>(), 384);
  EXPECT_EQ(json.at("replicas").to_number<int>(), 2);
  EXPECT_EQ(json.at("rank_bytes").as_array().size(), 3u);
  EXPECT_EQ(json.at("flags").as_string(), SizeFlags(report));
  report.plan.replicas = 1;
  EXPECT_THAT(SizeText(report), HasSubstr("Begin with\n  flotilla serve --model "));
  report.options.model = "default";
  EXPECT_THAT(SizeFlags(report), ::testing::StartsWith("--tp 3 --context-length"));
}

TEST_F(SizeOfFileTest, TheRateThatWasMeasured) {
  const std::string path = StrCat(options_.model, ".json");
  testing::WriteBytes(path, R"({"requests":4,"output_tokens_per_second":123.5})");
  EXPECT_EQ(*MeasuredOutputRate(path), 123.5);
  for (const char* wrong : {"", "{}", "tokens 7", R"({"output_tokens_per_second":0})",
                            R"({"output_tokens_per_second":"7"})"}) {
    testing::WriteBytes(path, wrong);
    EXPECT_THAT(std::string(MeasuredOutputRate(path).status().message()),
                AllOf(HasSubstr("--measured"), HasSubstr("flotilla bench offline")))
        << wrong;
  }
  unlink(path.c_str());
  EXPECT_EQ(MeasuredOutputRate(path).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace flotilla::bench
