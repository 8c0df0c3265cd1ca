// One row a field: what is taken, what is refused and how.
#include "scheduler_proc/front/validate.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/fakes/fake_tokenizer.h"

namespace flotilla {
namespace {

using Code = absl::StatusCode;
using Resume = google::protobuf::RepeatedPtrField<v1::ResumeChoice>;

const RequestLimits kLimits{"model", 512, 100, 64 << 10, 400};

v1::GenerateRequest Good() {
  v1::GenerateRequest request;
  for (int i = 0; i < 10; ++i) request.mutable_token_ids()->add_ids(i);
  return request;
}

StatusOr<CheckedRequest> Check(const v1::GenerateRequest& request, const Resume& resume = {}) {
  static const FakeTokenizer tokenizer;
  return CheckRequest(request, resume, kLimits, &tokenizer);
}

struct Case {
  const char* field;  // the message begins with it; null: taken
  Code code;
  std::function<void(v1::GenerateRequest*)> change;
};

const float kNan = std::numeric_limits<float>::quiet_NaN();
#define SAMPLING(setter) [](auto* r) { r->mutable_sampling()->setter; }
#define STOPPING(setter) [](auto* r) { r->mutable_stopping()->setter; }
#define OUTPUT(setter) [](auto* r) { r->mutable_output()->setter; }

const Case kCases[] = {
    {nullptr, Code::kOk, [](auto*) {}},
    {nullptr, Code::kOk, SAMPLING(set_temperature(0))},
    {nullptr, Code::kOk, SAMPLING(set_temperature(2))},
    {"sampling.temperature", Code::kInvalidArgument, SAMPLING(set_temperature(-0.1f))},
    {"sampling.temperature", Code::kInvalidArgument, SAMPLING(set_temperature(2.01f))},
    {"sampling.temperature", Code::kInvalidArgument, SAMPLING(set_temperature(kNan))},
    {nullptr, Code::kOk, SAMPLING(set_top_p(1))},
    {"sampling.top_p", Code::kInvalidArgument, SAMPLING(set_top_p(0))},
    {"sampling.top_p", Code::kInvalidArgument, SAMPLING(set_top_p(1.01f))},
    {"sampling.top_p", Code::kInvalidArgument, SAMPLING(set_top_p(kNan))},
    {nullptr, Code::kOk, SAMPLING(set_top_k(-1))},
    {nullptr, Code::kOk, SAMPLING(set_top_k(512))},
    {"sampling.top_k", Code::kInvalidArgument, SAMPLING(set_top_k(-2))},
    {"sampling.top_k", Code::kInvalidArgument, SAMPLING(set_top_k(513))},
    {nullptr, Code::kOk, SAMPLING(set_min_p(1))},
    {"sampling.min_p", Code::kInvalidArgument, SAMPLING(set_min_p(-0.01f))},
    {"sampling.min_p", Code::kInvalidArgument, SAMPLING(set_min_p(1.01f))},
    {nullptr, Code::kOk, SAMPLING(set_presence_penalty(0))},
    {"sampling.presence_penalty", Code::kInvalidArgument, SAMPLING(set_presence_penalty(2.1f))},
    {nullptr, Code::kOk, SAMPLING(set_presence_penalty(2))},
    {"sampling.presence_penalty", Code::kInvalidArgument, SAMPLING(set_presence_penalty(kNan))},
    {"sampling.frequency_penalty", Code::kInvalidArgument, SAMPLING(set_frequency_penalty(-3))},
    {nullptr, Code::kOk, SAMPLING(set_frequency_penalty(-2))},
    {nullptr, Code::kOk, SAMPLING(set_repetition_penalty(1))},
    {"sampling.repetition_penalty", Code::kInvalidArgument, SAMPLING(set_repetition_penalty(0))},
    {nullptr, Code::kOk, SAMPLING(set_repetition_penalty(1.5f))},
    {"sampling.repetition_penalty", Code::kInvalidArgument, SAMPLING(set_repetition_penalty(2.1f))},
    {"sampling.repetition_penalty", Code::kInvalidArgument, SAMPLING(set_repetition_penalty(kNan))},
    {"sampling.logit_bias[512]", Code::kInvalidArgument,
     [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[512] = 1; }},
    {"sampling.logit_bias[3]", Code::kInvalidArgument,
     [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[3] = 101; }},
    {"sampling.logit_bias", Code::kInvalidArgument,
     [](auto* r) {
       for (int i = 0; i < 1025; ++i) (*r->mutable_sampling()->mutable_logit_bias())[i] = 1;
     }},
    {"sampling.logit_bias[-1]", Code::kInvalidArgument,
     [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[-1] = 1; }},
    {"sampling.logit_bias[3]", Code::kInvalidArgument,
     [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[3] = kNan; }},
    {nullptr, Code::kOk,
     [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[511] = -100; }},
    {nullptr, Code::kOk, SAMPLING(set_n(1))},
    {"sampling.n", Code::kInvalidArgument, SAMPLING(set_n(0))},
    {"sampling.n", Code::kInvalidArgument, SAMPLING(set_n(17))},
    {nullptr, Code::kOk, SAMPLING(set_n(16))},
    {"sampling.best_of", Code::kInvalidArgument,
     [](auto* r) {
       r->mutable_sampling()->set_n(3);
       r->mutable_sampling()->set_best_of(2);
     }},
    {nullptr, Code::kOk, SAMPLING(set_best_of(1))},
    {"sampling.best_of", Code::kInvalidArgument, SAMPLING(set_best_of(0))},
    {"sampling.best_of", Code::kInvalidArgument, SAMPLING(set_best_of(17))},
    {nullptr, Code::kOk, SAMPLING(set_best_of(16))},
    {nullptr, Code::kOk, STOPPING(set_max_tokens(90))},
    {"stopping.max_tokens", Code::kInvalidArgument, STOPPING(set_max_tokens(0))},
    {"stopping.max_tokens", Code::kInvalidArgument, STOPPING(set_max_tokens(91))},
    {"stopping.max_tokens", Code::kInvalidArgument, STOPPING(set_max_tokens(INT32_MIN))},
    {nullptr, Code::kOk, STOPPING(set_min_tokens(90))},
    {"stopping.min_tokens", Code::kInvalidArgument, STOPPING(set_min_tokens(-1))},
    {"stopping.min_tokens", Code::kInvalidArgument, STOPPING(set_min_tokens(91))},
    {nullptr, Code::kOk, STOPPING(add_stop(std::string(256, 'x')))},
    {"stopping.stop[0]", Code::kInvalidArgument, STOPPING(add_stop(std::string()))},
    {"stopping.stop[0]", Code::kInvalidArgument, STOPPING(add_stop(std::string(257, 'x')))},
    {"stopping.stop", Code::kInvalidArgument,
     [](auto* r) {
       for (int i = 0; i < 17; ++i) r->mutable_stopping()->add_stop(std::string(1, 'x'));
     }},
    {nullptr, Code::kOk, STOPPING(add_stop_token_ids(511))},
    {"stopping.stop_token_ids[0]", Code::kInvalidArgument, STOPPING(add_stop_token_ids(512))},
    {"stopping.stop_token_ids", Code::kInvalidArgument,
     [](auto* r) {
       for (int i = 0; i < 65; ++i) r->mutable_stopping()->add_stop_token_ids(1);
     }},
    {nullptr, Code::kOk, OUTPUT(set_logprobs(20))},
    {"output.logprobs", Code::kInvalidArgument, OUTPUT(set_logprobs(-1))},
    {"output.logprobs", Code::kInvalidArgument, OUTPUT(set_logprobs(21))},
    {"output.prompt_logprobs", Code::kInvalidArgument, OUTPUT(set_prompt_logprobs(-1))},
    {"output.prompt_logprobs", Code::kInvalidArgument, OUTPUT(set_prompt_logprobs(21))},
    {"token_ids.ids", Code::kInvalidArgument, [](auto* r) { r->mutable_token_ids()->clear_ids(); }},
    {"token_ids.ids[10]", Code::kInvalidArgument,
     [](auto* r) { r->mutable_token_ids()->add_ids(-1); }},
    {"token_ids.ids[10]", Code::kInvalidArgument,
     [](auto* r) { r->mutable_token_ids()->add_ids(512); }},
    {"prompt", Code::kInvalidArgument,
     [](auto* r) {
       for (int i = 0; i < 90; ++i) r->mutable_token_ids()->add_ids(1);
     }},
    {"prompt", Code::kInvalidArgument, [](auto* r) { r->clear_prompt(); }},
    {nullptr, Code::kOk, [](auto* r) { r->set_text("hello"); }},
    {"text", Code::kInvalidArgument, [](auto* r) { r->set_text(""); }},
    {"prompt", Code::kInvalidArgument, [](auto* r) { r->set_text(std::string(400, 'a')); }},
    {"text", Code::kInvalidArgument, [](auto* r) { r->set_text(std::string(401, 'a')); }},
    {nullptr, Code::kOk, [](auto* r) { r->set_model("model"); }},
    {"model", Code::kNotFound, [](auto* r) { r->set_model("another"); }},
    {"request_id", Code::kInvalidArgument,
     [](auto* r) { r->set_request_id(std::string(129, 'x')); }},
    {"request_id", Code::kInvalidArgument, [](auto* r) { r->set_request_id("a\nb"); }},
    {"idempotency_key", Code::kInvalidArgument,
     [](auto* r) { r->set_idempotency_key(std::string(256, 'x')); }},
    {"session", Code::kInvalidArgument, [](auto* r) { r->set_session(std::string(256, 'x')); }},
    {nullptr, Code::kOk, [](auto* r) { r->set_priority(-100); }},
    {"priority", Code::kInvalidArgument, [](auto* r) { r->set_priority(101); }},
    {nullptr, Code::kOk, [](auto* r) { r->set_deadline_ms(86'400'000); }},
    {"deadline_ms", Code::kInvalidArgument, [](auto* r) { r->set_deadline_ms(0); }},
    {"deadline_ms", Code::kInvalidArgument, [](auto* r) { r->set_deadline_ms(86'400'001); }},
    {nullptr, Code::kOk, [](auto* r) { r->mutable_structured()->set_regex("a"); }},
    {"structured", Code::kInvalidArgument, [](auto* r) { r->mutable_structured(); }},
    {"structured.json_schema", Code::kInvalidArgument,
     [](auto* r) { r->mutable_structured()->set_json_schema("{"); }},
    {"structured.ebnf", Code::kInvalidArgument,
     [](auto* r) { r->mutable_structured()->set_ebnf(std::string((64 << 10) + 1, 'a')); }},
};

TEST(Validate, EveryField) {
  for (size_t i = 0; i < std::size(kCases); ++i) {
    v1::GenerateRequest request = Good();
    kCases[i].change(&request);
    const auto checked = Check(request);
    ASSERT_EQ(checked.status().code(), kCases[i].code)
        << "row " << i << ": " << request.ShortDebugString() << checked.status();
    if (kCases[i].field == nullptr) continue;
    const std::string message(checked.status().message());
    EXPECT_TRUE(message.starts_with(StrCat(kCases[i].field, ": "))) << message;
  }
}

TEST(Validate, DefaultsAreThoseOfTheProto) {
  const CheckedRequest r = *Check(Good());
  EXPECT_EQ(r.spec.max_new_tokens, 90u);
  EXPECT_EQ(r.spec.sampling.temperature, 1.0f);
  EXPECT_EQ(r.spec.sampling.top_p, 1.0f);
  EXPECT_EQ(r.spec.sampling.top_k, 0u);
  EXPECT_EQ(r.spec.sampling.num_logprobs, kNoLogprobs);
  EXPECT_EQ(r.spec.sampling.num_prompt_logprobs, kNoLogprobs);
  EXPECT_TRUE(r.options.skip_special);
  EXPECT_TRUE(r.return_token_ids);
  EXPECT_FALSE(r.request_id.empty());
}

TEST(Validate, PenaltiesAndBiasesGoToTheWorkers) {
  v1::GenerateRequest request = Good();
  v1::SamplingParams* sampling = request.mutable_sampling();
  for (const int token : {300, 2, 511, 17}) {
    (*sampling->mutable_logit_bias())[token] = static_cast<float>(token) / 10;
  }
  EXPECT_FALSE(Check(request)->spec.sampling.has_penalties());
  sampling->set_presence_penalty(-1);
  sampling->set_frequency_penalty(0.5f);
  sampling->set_repetition_penalty(1.5f);
  const ReqSpec spec = Check(request)->spec;
  EXPECT_EQ(spec.sampling.presence_penalty, -1);
  EXPECT_EQ(spec.sampling.frequency_penalty, 0.5f);
  EXPECT_EQ(spec.sampling.repetition_penalty, 1.5f);
  ASSERT_EQ(spec.logit_bias.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(spec.logit_bias[i].token, (std::array{2, 17, 300, 511})[i]) << "by rising token";
    EXPECT_EQ(spec.logit_bias[i].bias, static_cast<float>(spec.logit_bias[i].token) / 10);
  }
}

TEST(Validate, SeedIsGivenZeroHashedOrRandom) {
  v1::GenerateRequest request = Good();
  const uint64_t random = Check(request)->spec.sampling.seed;
  EXPECT_NE(random, Check(request)->spec.sampling.seed);
  request.set_idempotency_key("key");
  const uint64_t hashed = Check(request)->spec.sampling.seed;
  EXPECT_EQ(hashed, Check(request)->spec.sampling.seed);
  request.mutable_sampling()->set_seed(17);
  EXPECT_EQ(Check(request)->spec.sampling.seed, 17u);
  request.mutable_sampling()->clear_seed();
  request.mutable_sampling()->set_temperature(0);
  EXPECT_EQ(Check(request)->spec.sampling.seed, 0u);
}

TEST(Validate, MinTokensMaskByAbsolutePosition) {
  v1::GenerateRequest request = Good();
  request.mutable_stopping()->set_min_tokens(3);
  const CheckedRequest r = *Check(request);
  EXPECT_EQ(r.spec.sampling.min_tokens_until, 13u);
  EXPECT_EQ(r.options.min_tokens, 3u);
}

TEST(Validate, Resume) {
  v1::GenerateRequest request = Good();
  request.mutable_stopping()->set_max_tokens(4);
  Resume resume;
  v1::ResumeChoice* choice = resume.Add();
  for (int i = 0; i < 3; ++i) choice->add_output_ids(i);
  EXPECT_EQ(Check(request, resume)->spec.resumed_ids, (std::vector<int32_t>{0, 1, 2}));
  choice->add_output_ids(3);  // nothing is left of max_tokens
  EXPECT_TRUE(Check(request, resume).status().ToString().find("resume[0].output_ids: ") !=
              std::string::npos);
  choice->set_output_ids(3, 512);
  EXPECT_TRUE(Check(request, resume).status().ToString().find("resume[0].output_ids[3]: ") !=
              std::string::npos);
  choice->clear_output_ids();
  choice->set_finish_reason(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(Check(request, resume).status().ToString().find("resume[0].finish_reason: ") !=
              std::string::npos);
  choice->clear_finish_reason();
  choice->set_cumulative_logprob(std::nan(""));
  EXPECT_EQ(Check(request, resume).status().code(), Code::kInvalidArgument);
  choice->clear_cumulative_logprob();
  resume.Add();
  EXPECT_EQ(Check(request, resume).status().message(), "resume: a Submit is one choice");
}

TEST(Validate, AnEmbeddingIsAPromptAndNothingElse) {
  v1::GenerateRequest request;
  for (int i = 0; i < 100; ++i) request.mutable_token_ids()->add_ids(i);
  v1::EmbedOptions embed;
  const auto check = [&] { return CheckEmbed(request, embed, kLimits, nullptr); };
  ASSERT_TRUE(check().ok()) << "the whole context";
  EXPECT_EQ(check()->spec.pooling, Pooling::kLast);
  EXPECT_EQ(check()->spec.max_new_tokens, 0u);
  EXPECT_TRUE(check()->options.embeds);
  embed.set_pooling(v1::EmbedRequest::POOLING_MEAN);
  embed.set_normalize(true);
  EXPECT_EQ(check()->spec.pooling, Pooling::kMean);
  EXPECT_TRUE(check()->options.normalize);
  embed.set_pooling(static_cast<v1::EmbedRequest::Pooling>(7));
  EXPECT_EQ(check().status().message(), "pooling: 7 is unknown");
  embed.clear_pooling();
  request.mutable_sampling();
  EXPECT_EQ(check().status().message(), "sampling: an embedding has none");
  request.clear_sampling();
  request.mutable_output();
  EXPECT_EQ(check().status().message(), "output: an embedding has none");
  request.clear_output();
  request.mutable_structured();
  EXPECT_EQ(check().status().message(), "structured: an embedding has none");
  request.clear_structured();
  request.mutable_stopping();
  EXPECT_EQ(check().status().message(), "stopping: an embedding has none");
  request.clear_stopping();
  request.mutable_token_ids()->add_ids(1);
  EXPECT_EQ(check().status().code(), Code::kInvalidArgument) << "a token more than the context";
}

TEST(Validate, ARouterMustSendTokenIds) {
  v1::GenerateRequest request;
  request.set_text("x");
  const auto checked = CheckRequest(request, {}, kLimits, nullptr);
  EXPECT_EQ(checked.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla
