#include "worker_proc/runner/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/support/equal_bytes.h"
#include "tests/worker_proc/sampler_cases.h"

namespace flotilla {
namespace {

using testing::AdversarialRows;
using ::testing::ElementsAre;
using testing::NaiveInput;
using testing::NaiveSample;
using testing::RandomLogits;
using testing::SamplerTables;

constexpr float kInf = std::numeric_limits<float>::infinity();

// The known-answer vectors published with Random123.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(PhiloxTest, DrawsAreInRangeAndDependOnSeedPositionAndDraw) {
  double sum = 0;
  for (uint32_t p = 0; p < 10000; ++p) {
    const double u = UniformDraw(1, p, 0);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
  EXPECT_EQ(UniformDraw(1, 2, 3), UniformDraw(1, 2, 3));
  EXPECT_NE(UniformDraw(1, 2, 3), UniformDraw(2, 2, 3));
  EXPECT_NE(UniformDraw(1, 2, 3), UniformDraw(uint64_t{1} | uint64_t{1} << 32, 2, 3));
  EXPECT_NE(UniformDraw(1, 2, 3), UniformDraw(1, 3, 3));
  EXPECT_NE(UniformDraw(1, 2, 3), UniformDraw(1, 2, 4));
}

// The fast sampler on a NaiveInput; the row must come back as it was.
StatusOr<int32_t> RunSampler(Sampler* sampler, std::vector<float> row, const NaiveInput& input,
                             PositionLogprobs* logprobs = nullptr) {
  const std::vector<float> before = row;
  TokenHistory history;
  history.Reset(static_cast<uint32_t>(input.prompt.size()));
  history.Append(input.prompt);
  history.Append(input.output);
  // Every other time there is a draft, which does not count.
  std::vector<int32_t> later;
  if (input.position % 2 == 1) later.assign(2, static_cast<int32_t>(row.size() / 2));
  if (!later.empty() && !input.output.empty()) later.push_back(input.output.back());
  history.Append(later);
  const auto token = sampler->Sample(row,
                                     {.params = input.params,
                                      .position = input.position,
                                      .logit_bias = input.logit_bias,
                                      .counts = history.counts(),
                                      .later = later,
                                      .stop_ids = input.stop_ids},
                                     logprobs);
  EXPECT_TRUE(testing::EqualBytes(row, before));
  return token;
}

SamplingParams RandomParams(std::mt19937_64* random, size_t n) {
  const auto pick = [&](std::initializer_list<float> values) {
    return values.begin()[(*random)() % values.size()];
  };
  SamplingParams params;
  params.temperature = pick({0, 1e-4f, 0.2f, 0.7f, 1, 1, 1.9f, 100});
  params.top_p = pick({1, 1, 0.9999f, 0.95f, 0.5f, 1e-6f});
  params.min_p = pick({0, 0, 0, 1e-9f, 0.01f, 0.3f, 1});
  const uint32_t ks[] = {0,
                         0,
                         0,
                         1,
                         2,
                         5,
                         40,
                         static_cast<uint32_t>(n) - 1,
                         static_cast<uint32_t>(n),
                         static_cast<uint32_t>(n) + 5};
  params.top_k = ks[(*random)() % std::size(ks)];
  params.seed = (*random)();
  return params;
}

// Ties, rows of one value, -inf, one huge logit, denormals: whatever the filters, the threshold
// finds what a full sort finds, with every instruction set.
TEST(SamplerTest, ChoosesTheTokenOfAFullSort) {
  std::mt19937_64 random(5);
  for (const SamplerKernels* kernels : SamplerTables()) {
    SCOPED_TRACE(kernels->name);
    Sampler sampler(kernels, {});
    for (const auto& row : AdversarialRows()) {
      for (int i = 0; i < 40; ++i) {
        NaiveInput input;
        input.params = RandomParams(&random, row.logits.size());
        input.position = static_cast<uint32_t>(i);
        const auto token = RunSampler(&sampler, row.logits, input);
        ASSERT_TRUE(token.ok()) << token.status();
        ASSERT_EQ(*token, NaiveSample(row.logits, input))
            << row.name << " of " << row.logits.size() << ", temperature "
            << input.params.temperature << ", top_k " << input.params.top_k << ", top_p "
            << input.params.top_p << ", min_p " << input.params.min_p;
      }
    }
  }
}

TEST(SamplerTest, ChoosesTheTokenOfAFullSortOfARealVocabulary) {
  constexpr size_t kVocab = 49152;
  std::mt19937_64 random(6);
  for (const float deviation : {0.3f, 2.5f, 6.0f}) {
    std::vector<float> row = RandomLogits(kVocab, 11, deviation);
    // As a head with few distinct values would give them: many ties.
    if (deviation > 5) {
      for (float& x : row) x = std::round(x * 4) / 4;
    }
    for (const SamplerKernels* kernels : SamplerTables()) {
      Sampler sampler(kernels, {});
      for (int i = 0; i < 25; ++i) {
        NaiveInput input;
        input.params = RandomParams(&random, i % 2 == 0 ? 300 : kVocab);
        input.position = static_cast<uint32_t>(i);
        ASSERT_EQ(*RunSampler(&sampler, row, input), NaiveSample(row, input)) << kernels->name;
      }
    }
  }
}

TEST(SamplerTest, PenaltiesBiasAndMaskAreTheDefinitions) {
  std::mt19937_64 random(7);
  const auto some = [&](size_t count, size_t below) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % below);
    return ids;
  };
  const auto within = [&](float lo, float hi) {
    return std::uniform_real_distribution<float>(lo, hi)(random);
  };
  Sampler sampler(SamplerTables().front(), {3, 0});
  uint32_t differs = 0;
  for (int i = 0; i < 2000; ++i) {
    const size_t vocab = i % 3 == 0 ? 20 : 700;
    const std::vector<float> row = RandomLogits(vocab, random(), 2);
    NaiveInput input;
    input.params = RandomParams(&random, vocab);
    input.position = static_cast<uint32_t>(random() % 20);
    input.params.min_tokens_until = i % 2 == 0 ? 10 : 0;
    input.eos_ids = {3, 0};
    if (i % 3 == 1) input.stop_ids = {5, 4, 0, 5};
    if (i % 4 != 0) input.params.presence_penalty = within(-2, 2);
    if (i % 5 != 0) input.params.frequency_penalty = within(-2, 2);
    if (i % 6 != 0) input.params.repetition_penalty = within(0.1f, 2);
    if (input.params.has_penalties()) {
      input.prompt = some(random() % 40, vocab);
      input.output = some(random() % 40, vocab);
    }
    int32_t token = 0;
    for (uint32_t b = static_cast<uint32_t>(random() % 8); b > 0; --b, token += 2) {
      input.logit_bias.push_back({token, within(-100, 100)});
    }
    ASSERT_EQ(*RunSampler(&sampler, row, input), NaiveSample(row, input)) << i;
    NaiveInput plain = input;
    plain.params.presence_penalty = plain.params.frequency_penalty = 0;
    plain.params.repetition_penalty = 1;
    plain.params.min_tokens_until = 0;
    plain.logit_bias.clear();
    differs += NaiveSample(row, plain) != NaiveSample(row, input);
  }
  EXPECT_GT(differs, 500u) << "the adjustments change what is drawn";
}

// Small enough to follow by hand; greedy shows the order of the adjusted logits.
TEST(SamplerTest, PenaltiesByHand) {
  Sampler sampler(SamplerTables().front(), {});
  NaiveInput input;
  input.params.temperature = 0;
  const auto token = [&](std::vector<float> row) {
    return *RunSampler(&sampler, std::move(row), input);
  };
  input.prompt = {0};
  input.output = {1, 1, 1};
  input.params.presence_penalty = 2;
  EXPECT_EQ(token({1, 5, 2.9f}), 1);  // 5 - 2, once however often it occurred
  EXPECT_EQ(token({3.5f, 5, 2.9f}), 0) << "the prompt is not penalised";
  input.params.presence_penalty = 0;
  input.params.frequency_penalty = 1;
  EXPECT_EQ(token({1, 5, 2.1f}), 2);  // 5 - 3 · 1
  EXPECT_EQ(token({3, 5, 2.1f}), 0) << "the prompt is not penalised";
  input.params.frequency_penalty = -1;
  EXPECT_EQ(token({7.9f, 5, 0}), 1);
  input.params.frequency_penalty = 0;
  input.params.repetition_penalty = 2;
  EXPECT_EQ(token({4, 4.2f, 2.2f}), 2);     // prompt and output: 4 / 2, 4.2 / 2
  EXPECT_EQ(token({-1, -1.2f, -1.9f}), 2);  // below 0: -1 · 2, -1.2 · 2
  input.params.repetition_penalty = 1;
  input.logit_bias = {{0, 100}, {2, -100}};
  EXPECT_EQ(token({-50, 20, 90}), 0);
  // The bias comes before the repetition penalty: (-1 + 3) / 2 = 1, not -1 · 2 + 3.
  input.params.repetition_penalty = 2;
  input.logit_bias = {{0, 3}};
  EXPECT_EQ(token({-1, -9, 0.9f}), 0);
  EXPECT_EQ(token({-1, -9, 1.1f}), 2);
}

TEST(SamplerTest, GreedyTakesTheLowestIdAmongEquals) {
  Sampler sampler(SamplerTables().front(), {});
  NaiveInput input;
  input.params.temperature = 0;
  EXPECT_EQ(*RunSampler(&sampler, {1, 5, 2, 5, 5}, input), 1);
  EXPECT_EQ(*RunSampler(&sampler, {-3, -1, -1}, input), 1);
  std::vector<float> row(1000, -1);
  row[700] = row[300] = row[999] = 4;
  EXPECT_EQ(*RunSampler(&sampler, row, input), 300);
}

TEST(SamplerTest, MinTokensMasksEosUntilItsPosition) {
  Sampler sampler(SamplerTables().front(), {2, 1, 99, -1});
  NaiveInput input;
  input.params.min_tokens_until = 10;
  const std::vector<float> logits = {1, 30, 40, 2};
  for (float temperature : {0.0f, 1.0f, 0.01f}) {
    input.params.temperature = temperature;
    for (input.position = 0; input.position < 10; ++input.position) {
      const int32_t token = *RunSampler(&sampler, logits, input);
      EXPECT_TRUE(token == 0 || token == 3) << token;
    }
    EXPECT_EQ(*RunSampler(&sampler, logits, input), 2);
  }
}

std::vector<uint32_t> MaskOf(size_t n, const std::function<bool(size_t)>& allowed) {
  std::vector<uint32_t> mask((n + 31) / 32);
  for (size_t i = 0; i < n; ++i) {
    if (allowed(i)) mask[i / 32] |= 1u << (i % 32);
  }
  return mask;
}

// A mask of many tokens, of some, of one: the token is that of a full sort of the masked row, and
// the logprobs are those of the row as it came.
TEST(SamplerTest, AMaskComesBeforeEverythingElse) {
  constexpr size_t kVocab = 5003;
  std::mt19937_64 random(8);
  const std::vector<float> row = RandomLogits(kVocab, 12, 4);
  for (const SamplerKernels* kernels : SamplerTables()) {
    Sampler sampler(kernels, {});
    for (int i = 0; i < 60; ++i) {
      const size_t every = i % 3 == 0 ? 2 : i % 3 == 1 ? 97 : kVocab;
      const size_t first = random() % every % kVocab;
      const auto mask = MaskOf(kVocab, [&](size_t t) { return t % every == first; });
      NaiveInput input;
      input.params = RandomParams(&random, kVocab);
      input.params.num_logprobs = 3;
      input.position = static_cast<uint32_t>(i);
      std::vector<float> masked = row;
      for (size_t t = 0; t < kVocab; ++t) {
        if (t % every != first) masked[t] = -kInf;
      }
      std::vector<float> given = row;
      PositionLogprobs logprobs;
      const auto token = sampler.Sample(
          given, {.params = input.params, .position = input.position, .mask = mask}, &logprobs);
      ASSERT_TRUE(token.ok()) << token.status();
      EXPECT_EQ(*token, NaiveSample(masked, input)) << kernels->name << " " << i;
      EXPECT_EQ(given, row);
      const PositionLogprobs raw = testing::LogprobsOf(&sampler, row, *token, 3);
      EXPECT_EQ(logprobs.logprob, raw.logprob);
      EXPECT_EQ(logprobs.rank, raw.rank);
    }
  }
}

TEST(SamplerTest, MinTokensYieldsWhereTheMaskLeavesOnlyEos) {
  const std::vector<float> row = {9, 1, 2, 3};
  Sampler sampler(SamplerTables()[0], {0});
  SamplingParams params;
  params.temperature = 0;
  params.min_tokens_until = 10;
  const auto sample = [&](const std::vector<uint32_t>& mask) {
    std::vector<float> given = row;
    return *sampler.Sample(given, {.params = params, .position = 5, .mask = mask}, nullptr);
  };
  EXPECT_EQ(sample(MaskOf(4, [](size_t t) { return t == 0; })), 0);
  EXPECT_EQ(sample(MaskOf(4, [](size_t t) { return t <= 2; })), 2);
}

TEST(SamplerTest, LogitsThatAreNotFiniteAreAnError) {
  const float nan = std::nanf("");
  Sampler sampler(SamplerTables().front(), {1});
  NaiveInput input;
  const auto code = [&](const std::vector<float>& row) {
    return RunSampler(&sampler, row, input).status().code();
  };
  for (const bool adjusted : {false, true}) {
    input.params.min_tokens_until = adjusted ? 5 : 0;
    if (adjusted) input.logit_bias = {{0, 1}};
    EXPECT_EQ(code({nan, nan}), absl::StatusCode::kDataLoss);
    EXPECT_EQ(code({1, nan, 2}), absl::StatusCode::kDataLoss);
    EXPECT_EQ(code({1, kInf, 2}), absl::StatusCode::kDataLoss);
    EXPECT_EQ(code({-kInf, -kInf}), absl::StatusCode::kDataLoss);
    EXPECT_EQ(code({1, -kInf}), absl::StatusCode::kOk);
  }
  PositionLogprobs logprobs;
  EXPECT_FALSE(RunSampler(&sampler, {1, nan}, input, &logprobs).ok());
  EXPECT_FALSE(sampler.Logprobs(std::vector<float>{1, nan}, 0, 1, &logprobs).ok());
  EXPECT_FALSE(sampler.Logprobs(std::vector<float>{1, kInf}, 0, 1, &logprobs).ok());
  EXPECT_FALSE(sampler.Logprobs(std::vector<float>{-kInf, -kInf}, 0, 1, &logprobs).ok());
}

TEST(SamplerTest, ADrawDependsOnSeedAndPositionOnly) {
  const auto logits = RandomLogits(1000, 9, 3);
  NaiveInput input;
  input.params.seed = 7;
  input.params.top_p = 0.9f;
  Sampler one(SamplerTables().front(), {});
  Sampler other(SamplerTables().back(), {});
  const auto draw = [&](Sampler* sampler, uint32_t position) {
    input.position = position;
    return *RunSampler(sampler, logits, input);
  };
  std::vector<int32_t> first;
  for (uint32_t p = 0; p < 200; ++p) first.push_back(draw(&one, p));
  for (uint32_t p = 200; p-- > 0;) {
    // Someone else's row in between, with what leaves the most behind.
    NaiveInput noise;
    noise.params.repetition_penalty = 1.5f;
    noise.output = {1, 2, 3};
    noise.params.num_logprobs = 4;
    PositionLogprobs logprobs;
    ASSERT_TRUE(RunSampler(&other, RandomLogits(50 + p, p, 3), noise, &logprobs).ok());
    EXPECT_EQ(draw(&other, p), first[p]);
  }
  input.params.seed = 8;
  std::vector<int32_t> second;
  for (uint32_t p = 0; p < 200; ++p) second.push_back(draw(&one, p));
  EXPECT_NE(first, second);
}

TEST(LogprobsTest, RankTopAndTies) {
  Sampler sampler(SamplerTables().front(), {});
  const std::vector<float> logits = {0, 2, 1, 2, -1};
  const PositionLogprobs logprobs = testing::LogprobsOf(&sampler, logits, 3, 3);
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  EXPECT_NEAR(logprobs.logprob, 2 - std::log(sum), 1e-6);
  EXPECT_EQ(logprobs.token, 3);
  EXPECT_EQ(logprobs.rank, 2u);  // token 1 has the same logit and a lower id
  ASSERT_EQ(logprobs.top.size(), 3u);
  EXPECT_EQ(logprobs.top[0].token, 1);
  EXPECT_EQ(logprobs.top[1].token, 3);
  EXPECT_EQ(logprobs.top[2].token, 2);
  EXPECT_EQ(logprobs.top[1].logprob, logprobs.logprob);
  EXPECT_EQ(testing::LogprobsOf(&sampler, logits, 4, 0).rank, 5u);
  EXPECT_TRUE(testing::LogprobsOf(&sampler, logits, 4, 0).top.empty());
}

TEST(LogprobsTest, AreTheDefinitionOnEveryRow) {
  for (const SamplerKernels* kernels : SamplerTables()) {
    Sampler sampler(kernels, {});
    for (const auto& row : AdversarialRows()) {
      SCOPED_TRACE(::testing::Message() << row.name << " of " << row.logits.size());
      const std::vector<size_t> order = testing::ByLikelihood(row.logits);
      const double max = row.logits[order[0]];
      double sum = 0;
      for (float x : row.logits) sum += std::exp(x - max);
      const double log_sum = max + std::log(sum);
      const auto expect_logprob = [&](float got, float logit) {
        const double exact = logit - log_sum;
        if (std::isfinite(static_cast<float>(exact))) {
          EXPECT_NEAR(got, exact, 1e-6 + 2e-7 * std::abs(exact));
        } else {
          EXPECT_EQ(got, -kInf);
        }
      };
      for (size_t rank = 0; rank < order.size(); rank += 1 + rank / 3) {
        const auto token = static_cast<int32_t>(order[rank]);
        const PositionLogprobs got = testing::LogprobsOf(&sampler, row.logits, token, 20);
        EXPECT_EQ(got.rank, rank + 1);
        expect_logprob(got.logprob, row.logits[order[rank]]);
        ASSERT_EQ(got.top.size(), std::min<size_t>(20, order.size()));
        for (size_t i = 0; i < got.top.size(); ++i) {
          EXPECT_EQ(got.top[i].token, static_cast<int32_t>(order[i]));
          expect_logprob(got.top[i].logprob, row.logits[order[i]]);
        }
      }
    }
  }
}

// Beside a drawn token they are of the raw logits, to the bit, whatever was adjusted and drawn.
TEST(LogprobsTest, OfADrawnTokenAreThoseOfTheRawRow) {
  const std::vector<float> row = RandomLogits(3000, 12, 3);
  NaiveInput input;
  input.params.num_logprobs = 5;
  Sampler sampler(SamplerTables().front(), {7});
  Sampler apart(SamplerTables().back(), {});
  for (const float temperature : {0.0f, 1.0f, 0.7f}) {
    for (const bool adjusted : {false, true}) {
      input.params.temperature = temperature;
      input.params.frequency_penalty = adjusted ? 1.5f : 0;
      input.params.min_tokens_until = adjusted ? 1000 : 0;
      input.logit_bias.clear();
      if (adjusted) input.logit_bias = {{4, 12}, {9, -50}};
      input.output = adjusted ? std::vector<int32_t>{1, 1, 4} : std::vector<int32_t>{};
      for (input.position = 0; input.position < 30; ++input.position) {
        PositionLogprobs got;
        const auto token = RunSampler(&sampler, row, input, &got);
        ASSERT_TRUE(token.ok());
        EXPECT_EQ(got.token, *token);
        const PositionLogprobs expected = testing::LogprobsOf(&apart, row, *token, 5);
        EXPECT_TRUE(testing::EqualBytes(got.logprob, expected.logprob));
        EXPECT_EQ(got.rank, expected.rank);
        ASSERT_EQ(got.top.size(), 5u);
        EXPECT_TRUE(testing::EqualBytes(got.top, expected.top));
      }
    }
  }
}

}  // namespace
}  // namespace flotilla
