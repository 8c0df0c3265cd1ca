// The worker binary end to end: real processes, rings and model.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "common/checkpoint/gguf.h"
#include "common/text/tokenizer.h"
#include "tests/worker_proc/plan_driver.h"
#include "tests/worker_proc/test_replica.h"

namespace flotilla {
namespace {

using testing::DriverRequest;
using testing::PlanDriver;
using testing::TestReplica;

std::string ModelPath() {
  const char* path = std::getenv("FLOTILLA_TEST_MODEL");
  return path == nullptr ? "" : path;
}

#define REQUIRE_MODEL()                                                                           \
  ASSERT_FALSE(ModelPath().empty()) << "set FLOTILLA_TEST_MODEL to SmolLM2-135M-Instruct's Q4_1 " \
                                       "GGUF file; ./flotilla test downloads it and does so"

std::unique_ptr<Tokenizer> LoadTokenizer() {
  auto file = MappedFile::Open(ModelPath());
  CHECK_OK(file.status());
  auto gguf = GgufFile::Parse(file->bytes(), {.metadata_only = true});
  CHECK_OK(gguf.status());
  auto tokenizer = CreateTokenizer(*gguf);
  CHECK_OK(tokenizer.status());
  return std::move(*tokenizer);
}

StatusOr<std::unique_ptr<TestReplica>> StartReady(uint32_t tp,
                                                  std::vector<std::string> flags = {}) {
  ASSIGN_OR_RETURN(auto replica, TestReplica::Create(
                                     {tp, FLOTILLA_WORKER_BINARY, ModelPath(), std::move(flags)}));
  RETURN_IF_ERROR(replica->BeginEpoch(1));
  return replica;
}

PlanDriver DriverOf(TestReplica* replica, testing::DriverOptions options) {
  options.num_pages = replica->num_pages();
  return PlanDriver(options, [replica](const StepPlan& plan) {
    StatusOr<StepResult> result = replica->Execute(plan);
    CHECK_OK(result.status());
    return *result;
  });
}

DriverRequest Request(std::vector<int32_t> prompt, uint32_t max_new_tokens) {
  DriverRequest request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  request.sampling.temperature = 0;
  return request;
}

TEST(WorkerProcessTest, ContinuesAPromptSensibly) {
  REQUIRE_MODEL();
  const auto tokenizer = LoadTokenizer();
  const auto prompt = tokenizer->Encode("The capital of France is");
  ASSERT_TRUE(prompt.ok());
  auto replica = StartReady(1);
  ASSERT_TRUE(replica.ok()) << replica.status();
  std::vector<DriverRequest> requests = {Request(*prompt, 8)};
  DriverOf(replica->get(), {}).Run(&requests);
  const std::string text = tokenizer->Decode(requests[0].output, true);
  EXPECT_NE(text.find("Paris"), std::string::npos) << text;
}

}  // namespace
}  // namespace flotilla
