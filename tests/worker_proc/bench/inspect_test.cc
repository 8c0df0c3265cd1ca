// Every bucket of the policy is listed once, with a cost that grows with it.
#include "worker_proc/bench/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/checkpoint/checkpoint.h"
#include "tests/fakes/gguf_builder.h"
#include "worker_proc/bench/inspect_model.h"

namespace flotilla::bench {
namespace {

using ::testing::HasSubstr;

class InspectTest : public ::testing::Test {
 protected:
  InspectTest() {
    options_.model = StrCat(::testing::TempDir(), "inspect_test_", getpid(), ".gguf");
    options_.threads = 1;
    testing::WriteTinyLlama(options_.model, {});
  }
  ~InspectTest() override { unlink(options_.model.c_str()); }
  InspectOptions options_;
};

TEST_F(InspectTest, ListsForwardLogitsAndSampler) {
  options_.padding.precompile_token_paddings = {16, 256};
  options_.padding.precompile_bs_paddings = {1, 10};
  const auto list = ListExecutables(options_);
  ASSERT_TRUE(list.ok()) << list.status();
  std::vector<std::string> names;
  for (const Executable& e : *list) names.push_back(e.kind + " " + e.bucket);
  EXPECT_THAT(names, ::testing::ElementsAre(
                         "forward prefill, bs 64, tokens 16", "forward prefill, bs 64, tokens 256",
                         "forward prefill, bs 64, tokens 576", "forward decode, bs 1, tokens 1",
                         "forward decode, bs 10, tokens 10", "forward decode, bs 64, tokens 64",
                         "logits rows 1", "logits rows 8", "logits rows 32",
                         StrCat("sampler row of ", testing::TinyLlamaVocabSize())));
  for (const Executable& e : *list) EXPECT_GT(e.seconds, 0) << e.bucket;
  EXPECT_GT((*list)[2].seconds, (*list)[0].seconds) << "36 times the tokens";
  EXPECT_THAT(ExecutablesTable(*list), HasSubstr("decode, bs 10, tokens 10"));
}

TEST_F(InspectTest, NoMoreThanFourteenPrefillsFor8K) {
  options_.padding.chunked_prefill_size = 8192;
  const auto list = ListExecutables(options_);
  ASSERT_TRUE(list.ok()) << list.status();
  const auto prefills = std::count_if(list->begin(), list->end(), [](const Executable& e) {
    return e.bucket.find("prefill") != std::string::npos;
  });
  EXPECT_GT(prefills, 5);
  EXPECT_LE(prefills, 14);
}

TEST_F(InspectTest, AModelThatCantBeReadIsAnError) {
  options_.model += ".gone";
  EXPECT_EQ(ListExecutables(options_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(InspectTest, SaysWhatAFileHoldsAndTakes) {
  SizeModelOptions options;
  options.model = options_.model;
  options.tp = 2;
  const auto report = InspectModelFile(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto checkpoint = OpenCheckpoint(options_.model);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(report->digest, (*checkpoint)->Digest());
  EXPECT_EQ(report->all().tensors, (*checkpoint)->tensors().size());
  uint64_t parameters = 0, bytes = 0;
  for (const TensorView& view : (*checkpoint)->tensors()) {
    parameters += view.rows * view.cols;
    bytes += view.data.size();
  }
  EXPECT_EQ(report->all().parameters, parameters);
  EXPECT_EQ(report->all().bytes, bytes);
  EXPECT_EQ(report->memory.weight_bytes.size(), 2u);
  const std::string text = ModelReportText(*report, 10 * report->memory.ReplicaPageBytes() + 1);
  EXPECT_THAT(text, HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(text, HasSubstr(" hold 160 tokens"));
  EXPECT_THAT(text, HasSubstr("  rank 1 "));
  const auto json = ModelReportJson(*report);
  EXPECT_EQ(json.at("weight_bytes").as_array().size(), 2u);
  EXPECT_EQ(json.at("vocab_size").to_number<uint32_t>(), testing::TinyLlamaVocabSize());
}

TEST_F(InspectTest, AFileThatIsGoneIsNamed) {
  SizeModelOptions options;
  options.model = options_.model + ".gone";
  EXPECT_THAT(std::string(InspectModelFile(options).status().message()), HasSubstr(".gone"));
}

}  // namespace
}  // namespace flotilla::bench
