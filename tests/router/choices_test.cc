// n and best_of through the router, over HTTP and gRPC: seeds, indices, ranking, usage, and that
// the choices of a prompt stay together.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <numeric>
#include <set>

#include "common/rpc/choices.h"
#include "tests/router/router_harness.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

namespace json = boost::json;

class ChoicesTest : public testing::Test {
 protected:
  explicit ChoicesTest(HarnessOptions options = {}) : harness_(std::move(options)) {}

  // What the toy model says with the seed of candidate i.
  std::vector<int32_t> Ids(size_t candidate, uint64_t seed = 5) const {
    v1::GenerateRequest request = harness_.engine().submits()[0].request();
    request.mutable_sampling()->set_seed(ChoiceSeed(seed, candidate));
    return harness_.engine().AnswerIds(request);
  }
  std::string Expected(size_t candidate) const {
    return GetTestModel().tokenizer->Decode(Ids(candidate), true);
  }
  // As FakeEngineService tells them.
  double MeanLogprob(size_t candidate) const {
    const std::vector<int32_t> ids = Ids(candidate);
    double sum = 0;
    for (int32_t id : ids) sum += -0.5f - static_cast<float>(id % 100) / 128.0f;
    return sum / static_cast<double>(ids.size());
  }
  std::vector<size_t> Ranking(size_t candidates) const {
    std::vector<size_t> order(candidates);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return MeanLogprob(a) > MeanLogprob(b); });
    return order;
  }
  json::value Json(std::string_view body) {
    const HttpAnswer answer = harness_.Complete(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return ParseOrFail(answer.body);
  }

  mutable RouterHarness harness_;
};

TEST_F(ChoicesTest, EachChoiceHasItsSeedAndIndex) {
  const json::value root = Json(R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":5,"n":3})");
  ASSERT_EQ(root.at("choices").as_array().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const json::value& choice = root.at("choices").at(i);
    EXPECT_EQ(choice.at("index").as_int64(), static_cast<int64_t>(i));
    EXPECT_EQ(std::string(choice.at("text").as_string()), Expected(i));
    EXPECT_EQ(choice.at("finish_reason"), "length");
  }
  EXPECT_NE(Expected(0), Expected(1));
  const json::value& usage = root.at("usage");
  EXPECT_EQ(usage.at("prompt_tokens").as_int64(), 1) << "once, not a choice";
  EXPECT_EQ(usage.at("completion_tokens").as_int64(), 12);
  for (const v1::Submit& submit : harness_.engine().submits()) {
    EXPECT_FALSE(submit.request().sampling().has_n()) << "a Submit is one choice";
    EXPECT_FALSE(submit.request().sampling().has_best_of());
  }
}

TEST_F(ChoicesTest, AChoiceDoesNotDependOnN) {
  const char* const body = R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":5,"n":)";
  const json::value two = Json(StrCat(body, "2}")), five = Json(StrCat(body, "5}"));
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(two.at("choices").at(i).at("text"), five.at("choices").at(i).at("text"));
}

TEST_F(ChoicesTest, PromptsTimesChoices) {
  const json::value root =
      Json(R"({"model":"smol","prompt":[[5,6],[7,8,9]],"max_tokens":3,"seed":5,"n":2,
               "return_token_ids":true})");
  ASSERT_EQ(root.at("choices").as_array().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const json::value& choice = root.at("choices").at(i);
    EXPECT_EQ(choice.at("index").as_int64(), static_cast<int64_t>(i));
    EXPECT_EQ(choice.at("prompt_token_ids").as_array().size(), i < 2 ? 2u : 3u);
    v1::GenerateRequest request = harness_.engine().submits()[i].request();
    EXPECT_EQ(request.token_ids().ids_size(), i < 2 ? 2 : 3);
    EXPECT_EQ(request.sampling().seed(), ChoiceSeed(5, i % 2));
    EXPECT_EQ(std::string(choice.at("text").as_string()),
              GetTestModel().tokenizer->Decode(harness_.engine().AnswerIds(request), true));
  }
  EXPECT_EQ(root.at("usage").at("prompt_tokens").as_int64(), 5);
  EXPECT_EQ(root.at("usage").at("completion_tokens").as_int64(), 12);
}

TEST_F(ChoicesTest, StreamsInterleaveUnderTheirIndices) {
  const HttpAnswer answer = harness_.Complete(
      R"({"model":"smol","prompt":"Hi","max_tokens":5,"seed":5,"n":3,"stream":true,
          "stream_options":{"include_usage":true}})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::map<int64_t, std::string> texts;
  std::set<int64_t> finished;
  for (const std::string& event : Events(answer.body)) {
    if (event == "[DONE]") continue;
    const json::value root = ParseOrFail(event);
    if (root.at("choices").as_array().empty()) {
      EXPECT_EQ(root.at("usage").at("completion_tokens").as_int64(), 15);
      continue;
    }
    const json::value& choice = root.at("choices").at(0);
    const int64_t index = choice.at("index").as_int64();
    texts[index] += std::string(choice.at("text").as_string());
    if (choice.at("finish_reason").is_string()) finished.insert(index);
  }
  EXPECT_EQ(finished, (std::set<int64_t>{0, 1, 2}));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(texts[static_cast<int64_t>(i)], Expected(i));
}

TEST_F(ChoicesTest, ChatTellsARoleAChoice) {
  const HttpAnswer answer =
      Post(harness_.port(), "/v1/chat/completions",
           R"({"model":"smol","messages":[{"role":"user","content":"Hi"}],"max_tokens":3,"seed":5,
               "n":2,"stream":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::map<int64_t, int> roles;
  std::map<int64_t, std::string> texts;
  for (const std::string& event : Events(answer.body)) {
    if (event == "[DONE]") continue;
    const json::value root = ParseOrFail(event);
    const json::value& choice = root.at("choices").at(0);
    const json::object& delta = choice.at("delta").as_object();
    const int64_t index = choice.at("index").as_int64();
    roles[index] += delta.contains("role");
    if (delta.contains("content")) texts[index] += std::string(delta.at("content").as_string());
  }
  EXPECT_EQ(roles, (std::map<int64_t, int>{{0, 1}, {1, 1}}));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(texts[static_cast<int64_t>(i)], Expected(i));
}

TEST_F(ChoicesTest, BestOfAnswersTheMostLikelyFirst) {
  const json::value root =
      Json(R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":5,"n":2,"best_of":6})");
  ASSERT_EQ(harness_.engine().submits().size(), 6u);
  ASSERT_EQ(root.at("choices").as_array().size(), 2u);
  const std::vector<size_t> order = Ranking(6);
  EXPECT_NE(order[0], 0u) << "else this shows little";
  for (size_t i = 0; i < 2; ++i) {
    const json::value& choice = root.at("choices").at(i);
    EXPECT_EQ(choice.at("index").as_int64(), static_cast<int64_t>(i));
    EXPECT_EQ(std::string(choice.at("text").as_string()), Expected(order[i]));
    EXPECT_TRUE(choice.at("logprobs").is_null()) << "not asked for";
  }
  EXPECT_EQ(root.at("usage").at("completion_tokens").as_int64(), 24) << "of all six";
}

TEST_F(ChoicesTest, BestOfTellsLogprobsIfAskedFor) {
  const json::value root =
      Json(R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":5,"best_of":3,"logprobs":2})");
  const json::value& choice = root.at("choices").at(0);
  EXPECT_EQ(std::string(choice.at("text").as_string()), Expected(Ranking(3)[0]));
  EXPECT_EQ(choice.at("logprobs").at("tokens").as_array().size(), 4u);
  EXPECT_EQ(harness_.engine().submits()[0].request().output().logprobs(), 2);
}

TEST_F(ChoicesTest, TheEchoAndItsLogprobsComeWithEachChoiceAndAreComputedOnce) {
  for (const char* stream : {"false", "true"}) {
    const size_t before = harness_.engine().submits().size();
    const HttpAnswer answer = harness_.Complete(
        StrCat(R"({"model":"smol","prompt":"Once upon a time","max_tokens":2,"seed":5,"n":2,)",
               R"("echo":true,"logprobs":1,"stream":)", stream, "}"));
    ASSERT_EQ(answer.status, 200) << answer.body;
    std::map<int64_t, std::string> texts;
    std::map<int64_t, size_t> logprobs;
    const std::vector<std::string> pieces =
        answer.body.starts_with("data:") ? Events(answer.body) : std::vector{answer.body};
    for (const std::string& piece : pieces) {
      if (piece == "[DONE]") continue;
      const json::value root = ParseOrFail(piece);
      for (const json::value& choice : root.at("choices").as_array()) {
        const int64_t index = choice.at("index").as_int64();
        texts[index] += std::string(choice.at("text").as_string());
        logprobs[index] += choice.at("logprobs").at("tokens").as_array().size();
      }
    }
    const size_t prompt_tokens = GetTestModel().tokenizer->Encode("Once upon a time")->size();
    for (size_t i = 0; i < 2; ++i) {
      const auto index = static_cast<int64_t>(i);
      EXPECT_EQ(texts[index], "Once upon a time" + Expected(i)) << stream;
      EXPECT_EQ(logprobs[index], prompt_tokens + 2) << stream;
      EXPECT_EQ(harness_.engine().submits()[before + i].request().output().has_prompt_logprobs(),
                i == 0);
    }
  }
}

TEST_F(ChoicesTest, PromptLogprobsAreInEachChoice) {
  const json::value root = Json(
      R"({"model":"smol","prompt":[10,11,12],"max_tokens":1,"seed":5,"prompt_logprobs":1,"n":3,
          "best_of":4})");
  ASSERT_EQ(root.at("choices").as_array().size(), 3u);
  for (const json::value& choice : root.at("choices").as_array())
    EXPECT_EQ(choice.at("prompt_logprobs").as_array().size(), 3u);
}

TEST_F(ChoicesTest, TooManyForARequestAreRefusedByName) {
  std::string prompts = "[1]";
  for (int i = 0; i < 32; ++i) prompts += ",[1]";
  for (const char* field : {"n", "best_of"}) {
    const HttpAnswer answer = harness_.Complete(
        StrCat(R"({"model":"smol","max_tokens":1,")", field, R"(":16,"prompt":[)", prompts, "]}"));
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(ErrorField(answer, "param"), field);
    EXPECT_NE(ErrorField(answer, "message").find("512"), std::string::npos) << answer.body;
  }
  EXPECT_TRUE(harness_.engine().submits().empty());
}

TEST_F(ChoicesTest, OverGrpcTheLastMessageHasTheUsage) {
  auto channel = grpc::CreateChannel(StrCat("127.0.0.1:", harness_.app().grpc_port()),
                                     grpc::InsecureChannelCredentials());
  const auto stub = v1::Inference::NewStub(channel);
  for (const int best_of : {3, 5}) {
    v1::GenerateRequest request;
    request.set_text("Hello there");
    request.mutable_stopping()->set_max_tokens(4);
    request.mutable_sampling()->set_seed(5);
    request.mutable_sampling()->set_n(3);
    request.mutable_sampling()->set_best_of(best_of);
    request.mutable_output()->set_echo(true);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    auto reader = stub->Generate(&context, request);
    std::map<int, std::string> texts;
    std::map<int, v1::FinishReason> reasons;
    v1::GenerateResponse message;
    v1::Usage usage;  // of the last message
    int with_prompt = 0, with_usage = 0;
    while (reader->Read(&message)) {
      with_prompt += message.prompt_token_ids_size() > 0;
      with_usage += message.has_usage();
      usage = message.usage();
      for (const v1::ChoiceDelta& choice : message.choices()) {
        texts[choice.index()] += choice.text();
        EXPECT_EQ(choice.logprobs_size(), 0);
        if (choice.finish_reason() != v1::FINISH_REASON_UNSPECIFIED)
          reasons[choice.index()] = choice.finish_reason();
      }
    }
    ASSERT_TRUE(reader->Finish().ok());
    EXPECT_EQ(with_prompt, 1);
    EXPECT_EQ(with_usage, 1);
    EXPECT_EQ(usage.completion_tokens(), 4 * best_of);
    EXPECT_EQ(usage.prompt_tokens(), 2);
    EXPECT_EQ(reasons.size(), 3u);
    const std::vector<size_t> order = Ranking(5);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(texts[static_cast<int>(i)], "Hello there" + Expected(best_of == 3 ? i : order[i]));
    }
  }
}

class TwoReplicasTest : public ChoicesTest {
 protected:
  static HarnessOptions Options() {
    HarnessOptions options;
    options.replicas = 2;
    return options;
  }
  TwoReplicasTest() : ChoicesTest(Options()) {}
  static constexpr const char* kBody =
      R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":5,"n":4})";
};

TEST_F(TwoReplicasTest, ThePolicyChoosesOnceForAllChoices) {
  for (int i = 0; i < 4; ++i) Json(kBody);
  EXPECT_EQ(harness_.engine(0).submits().size(), 8u);
  EXPECT_EQ(harness_.engine(1).submits().size(), 8u);
  // Each in one piece.
  for (size_t e = 0; e < 2; ++e) {
    const auto submits = harness_.engine(e).submits();
    for (size_t i = 0; i < 8; ++i)
      EXPECT_EQ(submits[i].request().sampling().seed(), ChoiceSeed(5, i % 4));
  }
}

TEST_F(TwoReplicasTest, WhatIsRefusedMovesTogether) {
  harness_.engine(0).RefuseNext(4, 8, "full");
  const json::value root = Json(kBody);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(std::string(root.at("choices").at(i).at("text").as_string()), Expected(i));
  EXPECT_EQ(harness_.engine(0).submits().size(), 4u);
  EXPECT_EQ(harness_.engine(1).submits().size(), 4u);
}

TEST_F(TwoReplicasTest, OneFailureEndsAll) {
  harness_.engine(0).Hold();
  harness_.engine(0).RefuseNext(1, 13, "broken");  // INTERNAL: no reason to try elsewhere
  const HttpAnswer answer = harness_.Complete(kBody);
  EXPECT_EQ(answer.status, 500) << answer.body;
  EXPECT_TRUE(harness_.engine(0).WaitForAborts(3));
  EXPECT_TRUE(harness_.WaitForMetric("flotilla_router_requests_in_flight", 0));
}

TEST_F(ChoicesTest, AClientThatLeavesEndsAll) {
  harness_.engine().Hold();
  {
    HttpConnection connection(harness_.port());
    connection.Send(
        PostText("/v1/completions", R"({"model":"smol","prompt":"Hi","max_tokens":40,"n":4})"));
    ASSERT_TRUE(harness_.engine().WaitForSubmits(4));
  }
  EXPECT_TRUE(harness_.engine().WaitForAborts(4));
  EXPECT_TRUE(harness_.WaitForMetric("flotilla_router_requests_in_flight", 0));
}

TEST_F(ChoicesTest, AbortByIdEndsAll) {
  harness_.engine().Hold();
  auto channel = grpc::CreateChannel(StrCat("127.0.0.1:", harness_.app().grpc_port()),
                                     grpc::InsecureChannelCredentials());
  const auto stub = v1::Inference::NewStub(channel);
  v1::GenerateRequest request;
  request.set_text("Hello there");
  request.set_request_id("mine");
  request.mutable_sampling()->set_n(3);
  grpc::ClientContext context, abort_context;
  auto reader = stub->Generate(&context, request);
  ASSERT_TRUE(harness_.engine().WaitForSubmits(3));
  v1::AbortRequest abort;
  abort.set_request_id("mine");
  v1::AbortResponse answer;
  ASSERT_TRUE(stub->Abort(&abort_context, abort, &answer).ok());
  EXPECT_TRUE(answer.found());
  std::set<int> ended;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    for (const v1::ChoiceDelta& choice : message.choices()) {
      EXPECT_EQ(choice.finish_reason(), v1::FINISH_REASON_ABORT);
      ended.insert(choice.index());
    }
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(ended, (std::set<int>{0, 1, 2}));
  EXPECT_TRUE(harness_.engine().WaitForAborts(3));
}

class FewChoicesTest : public ChoicesTest {
 protected:
  static HarnessOptions Options() {
    HarnessOptions options;
    options.max_requests = 3;
    return options;
  }
  FewChoicesTest() : ChoicesTest(Options()) {}
};

TEST_F(FewChoicesTest, ChoicesCountAsRequestsInFlight) {
  const char* const body = R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":5,"n":)";
  EXPECT_EQ(harness_.Complete(StrCat(body, "4}")).status, 429);
  EXPECT_TRUE(harness_.engine().submits().empty()) << "all or none";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(harness_.Complete(StrCat(body, "3}")).status, 200);
}

}  // namespace
}  // namespace flotilla
