#include "shm/step_result.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace flotilla {
namespace {

constexpr uint32_t kSlots = 8, kVocab = 1000;

PositionLogprobs Position(int32_t token, size_t top) {
  PositionLogprobs position{.token = token, .logprob = -1.5f, .rank = 3, .top = {}};
  for (size_t i = 0; i < top; ++i)
    position.top.push_back({static_cast<int32_t>(i), -0.1f * static_cast<float>(i)});
  return position;
}

StepResult Sample() {
  StepResult result;
  result.step_id = 77;
  result.epoch = 2;
  result.start_ns = 1000;
  result.end_ns = 2000;
  result.rows.resize(3);
  result.rows[0].slot = 7;
  result.rows[0].token = 999;
  result.rows[1].slot = 1;
  result.rows[1].token = 5;
  result.rows[1].has_logprobs = true;
  result.rows[1].logprobs = Position(5, kMaxLogprobs);
  result.rows[1].accepted = {7, 8};
  result.rows[1].accepted_logprobs = {Position(7, 1), Position(8, 0)};
  result.rows[2].slot = 2;
  result.rows[2].prompt_start = 17;
  result.rows[2].prompt_logprobs = {Position(1, 0), Position(2, 2)};
  result.rows[2].embedding = {0.5f, -2.0f, 0.0f};
  return result;
}

std::string Built(const StepResult& result) {
  std::string frame;
  BuildStepResult(result, &frame);
  return frame;
}

TEST(StepResultTest, RoundTrips) {
  const StepResult result = Sample();
  StepResult out;
  out.rows.resize(9);
  const std::string frame = Built(result);
  const Status status = ParseStepResult(frame, kSlots, kVocab, &out);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Built(out), frame);
  ASSERT_EQ(out.rows.size(), 3u);
  EXPECT_EQ(out.rows[1].logprobs.top.size(), kMaxLogprobs);
  EXPECT_EQ(out.rows[1].accepted, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(out.rows[1].accepted_logprobs[0].top.size(), 1u);
  EXPECT_EQ(out.rows[2].prompt_logprobs[1].top[1].token, 1);
  EXPECT_EQ(out.rows[2].token, -1);

  StepResult failed;
  failed.code = 10;
  failed.message = "collective: aborted";
  ASSERT_TRUE(ParseStepResult(Built(failed), kSlots, kVocab, &out).ok());
  EXPECT_EQ(out.message, failed.message);
  EXPECT_TRUE(out.rows.empty());
}

TEST(StepResultTest, TruncatedAnywhereIsInvalid) {
  const std::string frame = Built(Sample());
  StepResult out;
  for (size_t bytes = 0; bytes < frame.size(); ++bytes)
    EXPECT_EQ(ParseStepResult(frame.substr(0, bytes), kSlots, kVocab, &out).code(),
              absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ParseStepResult(frame + 'x', kSlots, kVocab, &out).ok());
}

TEST(StepResultTest, FlippedWordsAreInvalidOrWithinLimits) {
  const std::string frame = Built(Sample());
  std::mt19937 random(2);
  const uint32_t nasty[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x7fc00000, 1000, 0x10000000};
  for (size_t at = 0; at + 4 <= frame.size(); at += 4) {
    for (int i = 0; i < 40; ++i) {
      std::string bad = frame;
      uint32_t word;
      std::memcpy(&word, bad.data() + at, 4);
      word = i < 8 ? nasty[i] : i < 36 ? word ^ (1u << (random() % 32)) : random();
      std::memcpy(bad.data() + at, &word, 4);
      StepResult out;
      const Status status = ParseStepResult(bad, kSlots, kVocab, &out);
      if (!status.ok()) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        continue;
      }
      for (const RowResult& row : out.rows) {
        EXPECT_LT(row.slot, kSlots);
        EXPECT_TRUE(row.token >= -1 && row.token < 1000);
        EXPECT_LE(row.accepted.size(), row.token < 0 ? 0 : kMaxDraftTokens);
        for (const PositionLogprobs& p : row.prompt_logprobs) {
          EXPECT_TRUE(p.token >= 0 && p.token < 1000 && !std::isnan(p.logprob));
          EXPECT_LE(p.top.size(), kMaxLogprobs);
        }
      }
    }
  }
}

TEST(StepResultTest, HostileCountsNeverAllocate) {
  StepResult one;
  one.rows.resize(1);
  const std::string frame = Built(one);
  const size_t num_rows = frame.size() - 32, num_prompt = frame.size() - 12,
               accepted = frame.size() - 8, embedding = frame.size() - 4;
  for (size_t at : {num_rows, num_prompt, accepted, embedding}) {
    for (uint32_t count : {2u, 0x1000u, 0x10000000u, 0xffffffffu}) {
      std::string bad = frame;
      std::memcpy(bad.data() + at, &count, 4);
      StepResult out;
      EXPECT_FALSE(ParseStepResult(bad, UINT32_MAX, kVocab, &out).ok());
      EXPECT_LE(out.rows.capacity(), 1u);
      if (!out.rows.empty()) {
        EXPECT_EQ(out.rows[0].prompt_logprobs.capacity(), 0u);
        EXPECT_EQ(out.rows[0].accepted.capacity(), 0u);
        EXPECT_EQ(out.rows[0].embedding.capacity(), 0u);
      }
    }
  }
}

TEST(StepResultTest, RefusesBadFields) {
  void (*const spoils[])(StepResult*) = {
      [](StepResult* r) { r->code = 17; },
      [](StepResult* r) { r->rows[0].slot = kSlots; },
      [](StepResult* r) { r->rows[0].token = kVocab; },
      [](StepResult* r) { r->rows[0].token = -2; },
      [](StepResult* r) { r->rows[1].accepted[1] = -1; },
      [](StepResult* r) { r->rows[1].accepted[0] = kVocab; },
      [](StepResult* r) { r->rows[1].token = -1; },
      [](StepResult* r) { r->rows[1].accepted_logprobs[1].rank = 0; },
      [](StepResult* r) { r->rows[0].accepted.resize(kMaxDraftTokens + 1); },
      [](StepResult* r) { r->rows[1].logprobs.token = -1; },
      [](StepResult* r) { r->rows[1].logprobs.logprob = NAN; },
      [](StepResult* r) { r->rows[1].logprobs.rank = 0; },
      [](StepResult* r) { r->rows[1].logprobs.rank = kVocab + 1; },
      [](StepResult* r) { r->rows[1].logprobs.top[0].token = kVocab; },
      [](StepResult* r) { r->rows[1].logprobs.top.resize(kMaxLogprobs + 1); },
      [](StepResult* r) { r->rows.resize(kSlots + 1); },
  };
  int i = 0;
  for (const auto& spoil : spoils) {
    StepResult result = Sample();
    spoil(&result);
    StepResult out;
    EXPECT_EQ(ParseStepResult(Built(result), kSlots, kVocab, &out).code(),
              absl::StatusCode::kInvalidArgument)
        << "case " << i++;
  }
}

}  // namespace
}  // namespace flotilla
