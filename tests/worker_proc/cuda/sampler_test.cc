// The device's sampler, emulated: the token, the logprobs and their order are the host's, bit for
// bit, whatever a row is asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/worker_proc/cuda/device_values.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/cuda/cuda_sampler.h"
#include "worker_proc/cuda/emulation/emulated_device.h"
#include "worker_proc/runner/sampler.h"

namespace flotilla::cuda {
namespace {

using testing::kSeeds;

// One row's request, with what its input refers to.
struct Asked {
  SamplingParams params;
  uint32_t position = 0;
  std::vector<LogitBias> bias;
  std::vector<TokenCount> counts;
  std::vector<int32_t> later;
  std::vector<uint32_t> mask;
  std::vector<int32_t> stop_ids;
  int32_t given = -1;

  SampleInput input() const { return {params, position, bias, counts, later, mask, stop_ids}; }
};

class CudaSamplerTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  CudaSamplerTest()
      : device_(MakeEmulatedDevice()), host_(*cpu::SelectSamplerKernels("auto"), kEos) {
    auto last_tokens = LastTokens::Create(device_.get(), &gather_, kSlots);
    CHECK_OK(last_tokens.status());
    last_tokens_ = std::move(*last_tokens);
    auto made = CudaSampler::Create(device_.get(), last_tokens_.get(), kRows, vocab(), kEos);
    CHECK_OK(made.status());
    sampler_ = std::move(*made);
  }
  uint32_t vocab() const { return GetParam(); }

  // Peaked as a model's are; ties are common, for keys that differ by the id alone.
  std::vector<float> Logits(float spread, bool ties) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> logits(size_t{kRows} * vocab());
    for (float& logit : logits) {
      logit = normal(random_);
      if (ties) logit = std::round(logit);
    }
    return logits;
  }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }
  int32_t Token() { return static_cast<int32_t>(random_() % vocab()); }

  Asked Draw() {
    Asked asked;
    SamplingParams& p = asked.params;
    p.temperature = OneOf({0.0f, 0.3f, 0.8f, 1.0f, 5.0f});
    p.top_p = OneOf({1.0f, 1.0f, 0.95f, 0.5f, 0.01f});
    p.min_p = OneOf({0.0f, 0.0f, 0.05f, 0.7f, 1.0f});
    p.top_k = OneOf({0u, 0u, 1u, 7u, 50u, vocab() + 1});
    p.seed = random_();
    p.num_logprobs = OneOf({kNoLogprobs, 0u, 1u, 20u});
    p.min_tokens_until = OneOf({0u, 0u, 10u});
    asked.position = static_cast<uint32_t>(random_() % 20);
    for (uint32_t n = OneOf({0u, 0u, 5u}); asked.bias.size() < std::min(n, vocab());) {
      asked.bias.push_back(
          {static_cast<int32_t>(asked.bias.size()), OneOf({-100.0f, 3.0f, 100.0f})});
    }
    if (OneOf({false, false, true})) {
      p.repetition_penalty = OneOf({1.0f, 1.3f, 0.7f});
      p.frequency_penalty = OneOf({0.0f, 0.5f});
      p.presence_penalty = OneOf({0.0f, -0.5f});
      for (int32_t token = 0; token < static_cast<int32_t>(std::min(vocab(), 40u)); token += 3) {
        asked.counts.push_back({token, OneOf({0u, 1u}), OneOf({0u, 1u, 4u})});
        for (uint32_t n = OneOf({0u, 0u, 2u}); n > 0 && asked.counts.back().in_output >= n; --n) {
          asked.later.push_back(token);
        }
      }
    }
    if (OneOf({false, false, true})) {
      asked.mask.assign(MaskWords(vocab()), 0);
      const auto most = static_cast<int32_t>(OneOf({1u, 30u, 1000u}));
      for (int32_t n = 0; n < most; ++n) {
        const int32_t token = Token();
        asked.mask[static_cast<uint32_t>(token) / 32] |= 1u << token % 32;
      }
    }
    // Something must be left.
    if (vocab() > 10 && OneOf({false, true})) asked.stop_ids = {Token(), 0, Token(), 0};
    if (OneOf({false, false, false, true})) asked.given = Token();
    return asked;
  }

  void Compare(std::vector<float> logits, const std::vector<Asked>& asked) {
    auto memory = device_->Allocate(logits.size() * sizeof(float));
    ASSERT_TRUE(memory.ok());
    device_->Upload(logits.data(), logits.size() * sizeof(float), memory->data());
    CudaTensor tensor{memory->data(), Element::kFloat32};
    std::vector<PositionLogprobs> logprobs(asked.size());
    std::vector<SampleQuery> queries;
    for (uint32_t i = 0; i < asked.size(); ++i) {
      const uint32_t n = asked[i].params.num_logprobs;
      queries.push_back({.row = i,
                         .input = asked[i].input(),
                         .given = asked[i].given,
                         .num_top = n == kNoLogprobs ? 0 : n,
                         .slot = asked[i].given < 0 ? kRows - i : kNoSlot,
                         .logprobs = n == kNoLogprobs ? nullptr : &logprobs[i]});
    }
    std::vector<int32_t> tokens(asked.size());
    const Tensor rows = {&tensor, kRows, vocab()};
    const StatusOr<bool> begun = OneOf({false, true}) ? sampler_->Begin(rows, queries) : false;
    ASSERT_TRUE(begun.ok());
    if (*begun) {
      ++num_begun_;
      AwaitStep();
      ASSERT_TRUE(sampler_->Take(queries, tokens).ok());
      EXPECT_FALSE(*sampler_->Done()) << "none is left";
    } else {
      ASSERT_TRUE(sampler_->Sample(rows, queries, tokens).ok());
    }
    for (uint32_t i = 0; i < asked.size(); ++i) {
      if (asked[i].given < 0) {
        EXPECT_EQ(LastToken(kRows - i), tokens[i]);
      }
    }
    for (uint32_t i = 0; i < asked.size(); ++i) {
      const Asked& a = asked[i];
      SCOPED_TRACE(StrCat("row ", i, ": temperature ", a.params.temperature, " top_p ",
                          a.params.top_p, " min_p ", a.params.min_p, " top_k ", a.params.top_k,
                          " counts ", a.counts.size(), " mask ", a.mask.size(), " given ",
                          a.given));
      const std::span<float> row = std::span(logits).subspan(size_t{i} * vocab(), vocab());
      PositionLogprobs exact;
      PositionLogprobs* const wanted = queries[i].logprobs == nullptr ? nullptr : &exact;
      if (a.given < 0) {
        const StatusOr<int32_t> token = host_.Sample(row, a.input(), wanted);
        ASSERT_TRUE(token.ok());
        EXPECT_EQ(tokens[i], *token);
      } else if (wanted != nullptr) {
        ASSERT_TRUE(host_.Logprobs(row, a.given, queries[i].num_top, wanted).ok());
      }
      if (wanted == nullptr) continue;
      const PositionLogprobs& got = logprobs[i];
      EXPECT_EQ(got.token, exact.token);
      EXPECT_EQ(got.rank, exact.rank);
      EXPECT_EQ(got.logprob, exact.logprob);
      ASSERT_EQ(got.top.size(), exact.top.size());
      for (size_t t = 0; t < exact.top.size(); ++t) {
        EXPECT_EQ(got.top[t].token, exact.top[t].token) << t;
        EXPECT_EQ(got.top[t].logprob, exact.top[t].logprob) << t;
      }
    }
  }

  void AwaitStep() {
    while (!*sampler_->Done()) {
    }
  }
  int32_t LastToken(uint32_t slot) {
    int32_t token = 0;
    device_->Download(last_tokens_->data() + slot, sizeof(token), &token);
    return token;
  }

  static constexpr uint32_t kRows = 8;
  static constexpr uint32_t kSlots = 9;
  int num_begun_ = 0;
  const std::vector<int32_t> kEos = {2, 5};
  std::mt19937 random_{11};
  std::unique_ptr<Device> device_;
  Sampler host_;
  CudaGather gather_{device_.get(), {}};
  std::unique_ptr<LastTokens> last_tokens_;
  std::unique_ptr<CudaSampler> sampler_;
};

TEST_P(CudaSamplerTest, DrawsAndLogprobsAreTheHosts) {
  const int rounds = vocab() > 1000 ? 3 : 60;
  for (const uint64_t seed : kSeeds) {
    emulation::SetSeed(seed);
    for (int round = 0; round < rounds; ++round) {
      std::vector<Asked> asked;
      for (uint32_t i = 0; i < kRows; ++i) asked.push_back(Draw());
      Compare(Logits(OneOf({0.01f, 2.0f, 8.0f}), OneOf({false, true})), asked);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(num_begun_, 0);
}

TEST_P(CudaSamplerTest, InfinitiesAndNansFailTheirRowAlone) {
  std::vector<float> logits = Logits(2, false);
  const auto row = [&](uint32_t r) { return logits.begin() + static_cast<ptrdiff_t>(r * vocab()); };
  *(row(1) + vocab() / 2) = NAN;
  *row(2) = INFINITY;
  std::fill(row(3), row(4), -INFINITY);
  std::fill(row(4) + 1, row(5), -INFINITY);  // one is left
  auto memory = device_->Allocate(logits.size() * sizeof(float));
  ASSERT_TRUE(memory.ok());
  device_->Upload(logits.data(), logits.size() * sizeof(float), memory->data());
  CudaTensor tensor{memory->data(), Element::kFloat32};
  const SamplingParams params;
  PositionLogprobs logprobs;
  std::vector<SampleQuery> queries;
  for (uint32_t i = 0; i < 6; ++i) queries.push_back({.row = i, .input = {.params = params}});
  queries[1].slot = 3;
  queries[4].num_top = 20;
  queries[4].logprobs = &logprobs;
  std::vector<int32_t> tokens(6);
  const Status status = sampler_->Sample({&tensor, kRows, vocab()}, queries, tokens);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(tokens, ::testing::ElementsAre(::testing::Ge(0), -1, -1, -1, 0, ::testing::Ge(0)));
  EXPECT_EQ(logprobs.logprob, 0.0f);
  EXPECT_EQ(LastToken(3), -1);
  ASSERT_EQ(logprobs.top.size(), std::min(20u, vocab()));
  if (vocab() > 1) {
    EXPECT_EQ(logprobs.top[1].logprob, -INFINITY);
  }
}

TEST_P(CudaSamplerTest, LongListsTakeSeveralLaunches) {
  std::vector<Asked> asked(kRows);
  for (Asked& a : asked) {
    a.params.temperature = 0.8f;
    a.params.presence_penalty = 0.5f;
    for (uint32_t t = 0; t < vocab(); ++t) a.counts.push_back({static_cast<int32_t>(t), 0, t % 3});
  }
  for (int round = 0; round < 3; ++round) Compare(Logits(2, false), asked);
  // Of a small vocabulary all lists fit.
  if (vocab() * kRows > 256 * 1024) {
    EXPECT_EQ(num_begun_, 0);
  }
}

// Steps behind each other: each has its own results, in their order, also one that asks for none.
TEST_P(CudaSamplerTest, StepsAreTakenInTheirOrder) {
  std::vector<float> logits(size_t{kRows} * vocab());
  const auto token_of = [this](uint32_t row) { return static_cast<int32_t>(row % vocab()); };
  for (uint32_t r = 0; r < kRows; ++r) {
    logits[size_t{r} * vocab() + static_cast<size_t>(token_of(r))] = 1;
  }
  auto memory = device_->Allocate(logits.size() * sizeof(float));
  ASSERT_TRUE(memory.ok());
  device_->Upload(logits.data(), logits.size() * sizeof(float), memory->data());
  CudaTensor tensor{memory->data(), Element::kFloat32};
  SamplingParams greedy;
  greedy.temperature = 0;
  const auto asks_for = [&](uint32_t row) {
    return std::vector<SampleQuery>{{.row = row, .input = {.params = greedy}, .slot = row}};
  };
  const auto begin = [&](const std::vector<SampleQuery>& queries) {
    const StatusOr<bool> begun = sampler_->Begin({&tensor, kRows, vocab()}, queries);
    ASSERT_TRUE(begun.ok() && *begun);
  };
  const auto take = [&](const std::vector<SampleQuery>& queries) {
    std::vector<int32_t> tokens(queries.size());
    AwaitStep();
    EXPECT_TRUE(sampler_->Take(queries, tokens).ok());
    return tokens;
  };
  begin(asks_for(1));
  for (uint32_t row = 2; row < kRows; ++row) {
    begin(row % 3 == 0 ? std::vector<SampleQuery>() : asks_for(row));
    const uint32_t before = row - 1;
    if (before % 3 == 0) {
      EXPECT_TRUE(take({}).empty());
    } else {
      EXPECT_THAT(take(asks_for(before)), ::testing::ElementsAre(token_of(before)));
    }
  }
  // What does not fit is sampled at once, while the last is still there to be taken.
  std::vector<int32_t> tokens(1);
  EXPECT_TRUE(sampler_->Sample({&tensor, kRows, vocab()}, asks_for(0), tokens).ok());
  EXPECT_THAT(tokens, ::testing::ElementsAre(token_of(0)));
  EXPECT_THAT(take(asks_for(kRows - 1)), ::testing::ElementsAre(token_of(kRows - 1)));
}

// More than the sorted list takes, and just as many; a wide gap that only fine bounds fall into.
using CudaSamplerOfManyTest = CudaSamplerTest;
TEST_P(CudaSamplerOfManyTest, CutsThatLeaveManyTokens) {
  std::vector<Asked> asked(kRows);
  const uint32_t top_k[kRows] = {3000, 2049, 2048, 0, 0, 20, 20, 500};
  const float top_p[kRows] = {1, 0.9f, 0.3f, 0.9f, 0.5f, 0.95f, 1, 0.7f};
  for (uint32_t i = 0; i < kRows; ++i) {
    asked[i].params.top_k = top_k[i];
    asked[i].params.top_p = top_p[i];
    asked[i].params.min_p = i == 1 ? 0.1f : 0;
    asked[i].params.num_logprobs = i % 2 == 0 ? 20 : kNoLogprobs;
    asked[i].params.seed = i;
  }
  for (const float spread : {0.001f, 2.0f}) {
    for (const bool ties : {false, true}) {
      std::vector<float> logits = Logits(spread, ties);
      for (uint32_t i = 0; i < kRows; ++i) {
        for (uint32_t t = 0; t < 8; ++t) logits[size_t{i} * vocab() + t * 4001] = 18.5f - t;
      }
      Compare(std::move(logits), asked);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Vocabularies, CudaSamplerOfManyTest, ::testing::Values(49152),
                         [](const auto& info) { return StrCat("Of", info.param); });
INSTANTIATE_TEST_SUITE_P(Vocabularies, CudaSamplerTest, ::testing::Values(1, 33, 300, 1000, 49152),
                         [](const auto& info) { return StrCat("Of", info.param); });

}  // namespace
}  // namespace flotilla::cuda
