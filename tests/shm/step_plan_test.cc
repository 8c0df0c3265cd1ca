#include "shm/step_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

namespace flotilla {
namespace {

constexpr StepPlanLimits kLimits{
    .max_slots = 8, .max_tokens = 64, .num_pages = 100, .vocab_size = 1000, .max_positions = 512};

StepPlan SamplePlan() {
  StepPlan plan;
  plan.step_id = 0x123456789abcdef0;
  plan.epoch = 3;
  PlanOpen open;
  open.slot = 2;
  open.sampling.temperature = 0.7f;
  open.sampling.top_p = 0.9f;
  open.sampling.top_k = 40;
  open.sampling.seed = 99;
  open.sampling.num_logprobs = 20;
  open.sampling.repetition_penalty = 1.2f;
  open.sampling.presence_penalty = -2;
  open.output_start = 18;
  open.num_logit_bias = 2;
  open.num_history = 16;
  open.num_stop_ids = 2;
  plan.opens.push_back(open);
  open = PlanOpen();
  open.slot = 7;
  open.num_logit_bias = 1;
  plan.opens.push_back(open);
  plan.logit_bias = {{3, -100}, {999, 100}, {0, 0.5f}};
  plan.history = {5, 5, 0, 999, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  plan.stop_ids = {999, 0};
  plan.rows.push_back({.slot = 2,
                       .start_pos = 16,
                       .num_tokens = 3,
                       .num_new_pages = 2,
                       .flags = kRowPromptLogprobs,
                       .next_token = 999});
  plan.rows.push_back({.slot = 7,
                       .start_pos = 511,
                       .num_tokens = 1,
                       .num_new_pages = 0,
                       .flags = kRowSample | kRowMask,
                       .next_token = -1});
  plan.rows.push_back({.slot = 1,
                       .start_pos = 9,
                       .num_tokens = 3,
                       .num_new_pages = 0,
                       .flags = kRowSample | kRowVerify,
                       .next_token = -1});
  plan.input_ids = {0, 5, 999, kLastToken, 7, 8, 9};
  plan.masks.assign(32, 0x80000001);  // of 1000 tokens
  plan.new_pages = {0, 99};
  plan.closes = {7, 0};
  return plan;
}

std::string Built(const StepPlan& plan) {
  std::string frame;
  BuildStepPlan(plan, &frame);
  return frame;
}

Status Check(const StepPlan& plan) {
  StepPlan out;
  return ParseStepPlan(Built(plan), kLimits, &out);
}

// What a worker relies on after a parse that succeeded.
void ExpectWithinLimits(const StepPlan& plan) {
  if (plan.command != StepCommand::kForward) {
    EXPECT_TRUE(plan.rows.empty() && plan.opens.empty() && plan.closes.empty());
    return;
  }
  size_t tokens = 0, pages = 0, biases = 0, history = 0;
  for (const PlanOpen& open : plan.opens) {
    EXPECT_LT(open.slot, kLimits.max_slots);
    EXPECT_TRUE(open.sampling.temperature >= 0 && open.sampling.top_p > 0);
    EXPECT_TRUE(open.sampling.repetition_penalty >= 0.01f && open.sampling.repetition_penalty <= 2);
    EXPECT_LE(std::abs(open.sampling.presence_penalty), 2);
    EXPECT_LE(std::abs(open.sampling.frequency_penalty), 2);
    EXPECT_LE(open.output_start, kLimits.max_positions);
    EXPECT_TRUE(open.num_history == 0 || open.sampling.has_penalties());
    for (uint32_t i = 0; i < open.num_logit_bias; ++i) {
      const LogitBias& entry = plan.logit_bias.at(biases + i);
      EXPECT_TRUE(entry.token >= 0 && entry.token < 1000 && std::abs(entry.bias) <= 100);
      EXPECT_TRUE(i == 0 || entry.token > plan.logit_bias[biases + i - 1].token);
    }
    biases += open.num_logit_bias;
    history += open.num_history;
  }
  EXPECT_EQ(biases, plan.logit_bias.size());
  EXPECT_EQ(history, plan.history.size());
  for (int32_t id : plan.history) EXPECT_TRUE(id >= 0 && id < 1000);
  for (const PlanRow& row : plan.rows) {
    EXPECT_LT(row.slot, kLimits.max_slots);
    EXPECT_GE(row.num_tokens, 1u);
    EXPECT_LE(uint64_t{row.start_pos} + row.num_tokens, kLimits.max_positions);
    tokens += row.num_tokens;
    pages += row.num_new_pages;
  }
  EXPECT_EQ(tokens, plan.input_ids.size());
  EXPECT_EQ(pages, plan.new_pages.size());
  for (int32_t id : plan.input_ids) EXPECT_TRUE(id >= kLastToken && id < 1000);
  for (uint32_t page : plan.new_pages) EXPECT_LT(page, kLimits.num_pages);
  for (uint32_t slot : plan.closes) EXPECT_LT(slot, kLimits.max_slots);
}

TEST(StepPlanTest, RoundTrips) {
  const StepPlan plan = SamplePlan();
  const std::string frame = Built(plan);
  StepPlan out;
  ASSERT_TRUE(ParseStepPlan(frame, kLimits, &out).ok()) << ParseStepPlan(frame, kLimits, &out);
  EXPECT_EQ(Built(out), frame);
  EXPECT_EQ(out.step_id, plan.step_id);
  EXPECT_EQ(out.epoch, 3u);
  EXPECT_EQ(out.opens[0].sampling.seed, 99u);
  EXPECT_EQ(out.rows[0].next_token, 999);
  EXPECT_EQ(out.input_ids, plan.input_ids);
  EXPECT_EQ(out.new_pages, plan.new_pages);
  EXPECT_EQ(out.closes, plan.closes);
  EXPECT_EQ(out.opens[0].sampling.repetition_penalty, 1.2f);
  EXPECT_EQ(out.opens[0].output_start, 18u);
  EXPECT_EQ(out.stop_ids, (std::vector<int32_t>{999, 0}));
  ASSERT_EQ(out.logit_bias.size(), 3u);
  EXPECT_EQ(out.logit_bias[1].token, 999);
  EXPECT_EQ(out.logit_bias[1].bias, 100);
  EXPECT_EQ(out.history, plan.history);
  EXPECT_EQ(out.masks, plan.masks);

  StepPlan reset;
  reset.command = StepCommand::kReset;
  reset.num_pages = 5000;
  ASSERT_TRUE(ParseStepPlan(Built(reset), kLimits, &out).ok());
  EXPECT_EQ(out.num_pages, 5000u);
  EXPECT_TRUE(out.rows.empty()) << "nothing of the plan before";
}

TEST(StepPlanTest, ADraftHasAMaskForEachOfItsTokens) {
  StepPlan plan = SamplePlan();
  plan.rows[2].flags |= kRowMask;
  plan.masks.assign(size_t{4} * 32, 0x80000001);
  EXPECT_TRUE(Check(plan).ok()) << Check(plan);
  std::string without;
  ASSERT_TRUE(DropMasks(Built(plan), &without));
  StepPlan out;
  ASSERT_TRUE(ParseStepPlan(without, kLimits, &out).ok());
  EXPECT_EQ(out.rows[2].flags, kRowSample | kRowVerify);
  plan.masks.resize(size_t{2} * 32);
  EXPECT_FALSE(Check(plan).ok());
}

TEST(StepPlanTest, MasksCanBeLeftOut) {
  StepPlan plan = SamplePlan();
  std::string frame, without, expected;
  BuildStepPlan(plan, &frame);
  ASSERT_TRUE(DropMasks(frame, &without));
  plan.rows[1].flags = kRowSample;
  plan.masks.clear();
  BuildStepPlan(plan, &expected);
  EXPECT_EQ(without, expected);
  EXPECT_FALSE(DropMasks(expected, &without)) << "there are none";
  for (size_t n = 0; n < frame.size(); ++n) {
    // Each on a heap of its own, so that a sanitizer sees a byte too many.
    const std::string cut(frame, 0, n);
    EXPECT_FALSE(DropMasks(cut, &without)) << n;
  }
  for (size_t at = 0; at + sizeof(uint32_t) <= frame.size(); at += sizeof(uint32_t)) {
    std::string hostile = frame;
    std::memset(hostile.data() + at, 0xff, sizeof(uint32_t));
    EXPECT_TRUE(!DropMasks(hostile, &without) || without.size() < hostile.size()) << at;
  }
}

TEST(StepPlanTest, ReusesMemory) {
  StepPlan out;
  const std::string frame = Built(SamplePlan());
  ASSERT_TRUE(ParseStepPlan(frame, kLimits, &out).ok());
  const void* ids = out.input_ids.data();
  ASSERT_TRUE(ParseStepPlan(frame, kLimits, &out).ok());
  EXPECT_EQ(out.input_ids.data(), ids);
}

TEST(StepPlanTest, TruncatedAnywhereIsInvalid) {
  const std::string frame = Built(SamplePlan());
  StepPlan out;
  for (size_t bytes = 0; bytes < frame.size(); ++bytes) {
    const std::string cut = frame.substr(0, bytes);  // its own allocation: asan sees an overrun
    EXPECT_EQ(ParseStepPlan(cut, kLimits, &out).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(ParseStepPlan(frame + '\0', kLimits, &out).code(), absl::StatusCode::kInvalidArgument);
}

TEST(StepPlanTest, FlippedWordsAreInvalidOrWithinLimits) {
  const std::string frame = Built(SamplePlan());
  std::mt19937 random(1);
  const uint32_t nasty[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffe, 0x7fc00000, 1000};
  for (size_t at = 0; at + 4 <= frame.size(); at += 4) {
    for (int i = 0; i < 40; ++i) {
      std::string bad = frame;
      uint32_t word;
      std::memcpy(&word, bad.data() + at, 4);
      word = i < 8 ? nasty[i] : i < 36 ? word ^ (1u << (random() % 32)) : random();
      std::memcpy(bad.data() + at, &word, 4);
      StepPlan out;
      const Status status = ParseStepPlan(bad, kLimits, &out);
      if (status.ok()) {
        ExpectWithinLimits(out);
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      }
    }
  }
}

TEST(StepPlanTest, HostileCountsNeverAllocate) {
  const std::string frame = Built(StepPlan{});
  ASSERT_EQ(frame.size(), 28u + 9 * 4);
  for (size_t at = 28; at < frame.size(); at += 4) {
    for (uint32_t count : {1u, 0x100u, 0x10000000u, 0xffffffffu}) {
      std::string bad = frame;
      std::memcpy(bad.data() + at, &count, 4);
      StepPlan out;
      StepPlanLimits wide{UINT16_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
      EXPECT_FALSE(ParseStepPlan(bad, wide, &out).ok());
      EXPECT_LT(out.opens.capacity() + out.rows.capacity() + out.input_ids.capacity() +
                    out.new_pages.capacity() + out.closes.capacity() + out.logit_bias.capacity() +
                    out.history.capacity() + out.stop_ids.capacity() + out.masks.capacity(),
                16u);
    }
  }
}

TEST(StepPlanTest, NamesTheBadField) {
  struct Case {
    const char* field;
    void (*spoil)(StepPlan*);
  };
  const Case cases[] = {
      {"opens.slot", [](StepPlan* p) { p->opens[0].slot = 8; }},
      {"opens.slot", [](StepPlan* p) { p->opens[1].slot = p->opens[0].slot; }},
      {"opens.output_start", [](StepPlan* p) { p->opens[0].output_start = 513; }},
      {"opens.num_history", [](StepPlan* p) { p->opens[0].num_history = 513; }},
      {"opens.num_history", [](StepPlan* p) { p->opens[1].num_history = 1; }},
      {"opens.num_history",
       [](StepPlan* p) {
         p->opens[0].sampling.repetition_penalty = 1;
         p->opens[0].sampling.presence_penalty = 0;
       }},
      {"opens.num_logit_bias", [](StepPlan* p) { p->opens[0].num_logit_bias = 1025; }},
      {"logit_bias: the opens", [](StepPlan* p) { p->opens[0].num_logit_bias = 1; }},
      {"logit_bias: the opens", [](StepPlan* p) { p->logit_bias.pop_back(); }},
      {"logit_bias.token", [](StepPlan* p) { p->logit_bias[1].token = 1000; }},
      {"logit_bias.token", [](StepPlan* p) { p->logit_bias[0].token = -1; }},
      {"logit_bias.token", [](StepPlan* p) { p->logit_bias[1].token = 3; }},
      {"logit_bias.token", [](StepPlan* p) { p->logit_bias[1].token = 2; }},
      {"logit_bias.bias", [](StepPlan* p) { p->logit_bias[2].bias = 100.1f; }},
      {"logit_bias.bias", [](StepPlan* p) { p->logit_bias[2].bias = NAN; }},
      {"history: the opens", [](StepPlan* p) { p->opens[0].num_history = 15; }},
      {"history: the opens", [](StepPlan* p) { p->history.push_back(1); }},
      {"history", [](StepPlan* p) { p->history[15] = 1000; }},
      {"history", [](StepPlan* p) { p->history[0] = -1; }},
      {"opens.num_stop_ids", [](StepPlan* p) { p->opens[1].num_stop_ids = 65; }},
      {"opens.reserved", [](StepPlan* p) { p->opens[0].reserved = 1; }},
      {"stop_ids: the opens", [](StepPlan* p) { p->stop_ids.pop_back(); }},
      {"stop_ids", [](StepPlan* p) { p->stop_ids[0] = 1000; }},
      {"stop_ids", [](StepPlan* p) { p->stop_ids[1] = -1; }},
      {"presence_penalty", [](StepPlan* p) { p->opens[0].sampling.presence_penalty = 2.01f; }},
      {"frequency_penalty", [](StepPlan* p) { p->opens[0].sampling.frequency_penalty = NAN; }},
      {"repetition_penalty", [](StepPlan* p) { p->opens[0].sampling.repetition_penalty = 0; }},
      {"repetition_penalty", [](StepPlan* p) { p->opens[0].sampling.repetition_penalty = 1e-40f; }},
      {"repetition_penalty", [](StepPlan* p) { p->opens[0].sampling.repetition_penalty = 2.1f; }},
      {"repetition_penalty", [](StepPlan* p) { p->opens[0].sampling.repetition_penalty = NAN; }},
      {"temperature", [](StepPlan* p) { p->opens[0].sampling.temperature = -1; }},
      {"temperature", [](StepPlan* p) { p->opens[0].sampling.temperature = NAN; }},
      {"temperature", [](StepPlan* p) { p->opens[0].sampling.temperature = INFINITY; }},
      {"top_p", [](StepPlan* p) { p->opens[0].sampling.top_p = 0; }},
      {"top_p", [](StepPlan* p) { p->opens[0].sampling.top_p = 1.01f; }},
      {"min_p", [](StepPlan* p) { p->opens[0].sampling.min_p = NAN; }},
      {"num_logprobs", [](StepPlan* p) { p->opens[0].sampling.num_logprobs = 21; }},
      {"num_prompt_logprobs", [](StepPlan* p) { p->opens[0].sampling.num_prompt_logprobs = 21; }},
      {"rows.slot", [](StepPlan* p) { p->rows[0].slot = 8; }},
      {"rows.slot", [](StepPlan* p) { p->rows[0].slot = 7; }},
      {"rows.num_tokens", [](StepPlan* p) { p->rows[0].num_tokens = 0; }},
      {"rows.start_pos", [](StepPlan* p) { p->rows[0].start_pos = 510; }},
      {"rows.start_pos", [](StepPlan* p) { p->rows[0].start_pos = UINT32_MAX; }},
      {"rows.num_new_pages", [](StepPlan* p) { p->rows[0].num_new_pages = 101; }},
      {"rows.flags", [](StepPlan* p) { p->rows[0].flags = 64; }},
      {"rows.flags: a draft", [](StepPlan* p) { p->rows[2].flags = kRowVerify; }},
      {"rows.flags: a draft", [](StepPlan* p) { p->rows[2].flags |= kRowPromptLogprobs; }},
      {"rows.flags: a draft", [](StepPlan* p) { p->rows[2].start_pos = 0; }},
      {"rows.flags: a draft", [](StepPlan* p) { p->rows[2].num_tokens = 1; }},
      {"rows.flags: a draft",
       [](StepPlan* p) {
         p->rows[2].num_tokens = 2 + kMaxDraftTokens;
         p->input_ids.resize(p->input_ids.size() + kMaxDraftTokens - 1, 1);
       }},
      {"input_ids", [](StepPlan* p) { p->input_ids[5] = kLastToken; }},
      {"rows.flags", [](StepPlan* p) { p->rows[0].flags = kRowSample | kRowEmbed; }},
      {"rows.flags", [](StepPlan* p) { p->rows[0].flags = kRowPromptLogprobs | kRowPoolMean; }},
      {"rows.flags: a mask without", [](StepPlan* p) { p->rows[0].flags = kRowMask; }},
      {"masks: the rows need", [](StepPlan* p) { p->masks.pop_back(); }},
      {"masks: the rows need", [](StepPlan* p) { p->rows[0].flags = kRowSample | kRowMask; }},
      {"masks: the rows need words 128", [](StepPlan* p) { p->rows[2].flags |= kRowMask; }},
      {"rows.next_token", [](StepPlan* p) { p->rows[0].next_token = 1000; }},
      {"rows.next_token", [](StepPlan* p) { p->rows[0].next_token = -2; }},
      {"input_ids", [](StepPlan* p) { p->input_ids[1] = 1000; }},
      {"input_ids", [](StepPlan* p) { p->input_ids[1] = kLastToken; }},
      {"input_ids", [](StepPlan* p) { p->input_ids[3] = -2; }},
      {"input_ids", [](StepPlan* p) { p->input_ids.pop_back(); }},
      {"new_pages", [](StepPlan* p) { p->new_pages[0] = 100; }},
      {"new_pages", [](StepPlan* p) { p->new_pages.push_back(1); }},
      {"closes", [](StepPlan* p) { p->closes[0] = 8; }},
      {"closes", [](StepPlan* p) { p->closes[0] = 0; }},
      {"num_pages", [](StepPlan* p) { p->num_pages = 1; }},
      {"command", [](StepPlan* p) { p->command = static_cast<StepCommand>(4); }},
      {"only a forward", [](StepPlan* p) { p->command = StepCommand::kShutdown; }},
      {"only a forward",
       [](StepPlan* p) {
         *p = StepPlan();
         p->command = StepCommand::kShutdown;
         p->logit_bias = {{1, 1}};
       }},
      {"only a forward",
       [](StepPlan* p) {
         *p = StepPlan();
         p->command = StepCommand::kReset;
         p->history = {1};
       }},
  };
  ASSERT_TRUE(Check(SamplePlan()).ok());
  for (const Case& c : cases) {
    StepPlan plan = SamplePlan();
    c.spoil(&plan);
    const Status status = Check(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(c.field), std::string::npos)
        << c.field << " vs " << status;
  }
}

}  // namespace
}  // namespace flotilla
