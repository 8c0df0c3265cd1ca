#include "tests/scheduler_proc/recorded_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "tests/fakes/sim_grammar.h"

namespace flotilla::testing {
namespace {

constexpr uint32_t kVocab = 97;

// What a worker might sample under the first of the masks; now and then something else.
int32_t Masked(std::span<const uint32_t> masks, std::mt19937_64* random) {
  const auto mask = masks.first(MaskWords(kVocab));
  uint32_t token = (*random)() % kVocab;
  if ((*random)() % 200 == 0) return static_cast<int32_t>(token);
  if ((*random)() % 4 != 0) token = 1;  // much is repeated
  while ((mask[token / 32] >> (token % 32) & 1) == 0) token = (token + 1) % kVocab;
  return static_cast<int32_t>(token);
}

ReqSpec RandomSpec(ReqId id, int64_t now, uint32_t long_prompt, std::mt19937_64* random) {
  ReqSpec spec;
  spec.id = id;
  spec.prompt_ids.assign(1 + (*random)() % 100, static_cast<int32_t>((*random)() % 3));
  if (id == 75) spec.prompt_ids.resize(std::max<size_t>(long_prompt, 1));
  spec.priority = static_cast<int32_t>((*random)() % 3);
  spec.max_new_tokens = 1 + (*random)() % 60;
  spec.sampling.num_prompt_logprobs = (*random)() % 5 == 0 ? 0 : kNoLogprobs;
  spec.sampling.presence_penalty = (*random)() % 4 == 0 ? 1 : 0;
  spec.logit_bias = {{3, 1.5f}};
  spec.cache_salt = (*random)() % 3 == 0 ? "tenant" : "";
  spec.stop_token_ids = {5};
  spec.deadline_ns = (*random)() % 9 == 0 ? now + 40'000 : INT64_MAX;
  if ((*random)() % 6 == 0) {
    spec.pooling = (*random)() % 2 == 0 ? Pooling::kMean : Pooling::kLast;
    spec.max_new_tokens = 0;
    spec.sampling = {};
  } else if ((*random)() % 5 == 0) {
    spec.grammar = std::make_shared<SimGrammar>(SimGrammar::Shape{
        .seed = id,
        .vocab_size = kVocab,
        .most = (*random)() % 3 == 0 ? 1 + static_cast<uint32_t>((*random)() % 9) : 60,
        .sixteenths = id % 2 == 0 ? 15u : 4u,
        .fails_at = (*random)() % 9 == 0 ? static_cast<uint32_t>((*random)() % 9) : UINT32_MAX});
    if ((*random)() % 5 == 0) spec.resumed_ids = {static_cast<int32_t>((*random)() % kVocab)};
    spec.max_new_tokens += 1;
    spec.ignore_eos = (*random)() % 2 == 0;  // then the grammar says that it has ended
  }
  return spec;
}

// What the workers might say.
StepResult RandomResult(const StepPlan& plan, int64_t now, std::mt19937_64* random) {
  StepResult result;
  result.step_id = plan.step_id;
  result.epoch = plan.epoch;
  result.start_ns = now;
  result.end_ns = now + 900;
  std::span<const uint32_t> masks = plan.masks;
  const int32_t* ids = plan.input_ids.data();
  for (const PlanRow& row : plan.rows) {
    RowResult& out = result.rows.emplace_back();
    out.slot = row.slot;
    const auto num_accepted = (row.flags & kRowVerify) != 0 ? (*random)() % row.num_tokens : 0;
    out.accepted.assign(ids + 1, ids + 1 + num_accepted);
    if (row.flags & kRowMask) {
      const size_t words = MaskWords(kVocab);
      out.token = Masked(masks.subspan(num_accepted * words, words), random);
      masks = masks.subspan(NumMasks(row) * words);
    } else if (row.flags & kRowSample) {
      // Much is repeated.
      out.token = static_cast<int32_t>((*random)() % 4 != 0 ? 1 : (*random)() % kVocab);
    }
    ids += row.num_tokens;
    if (row.flags & kRowEmbed) out.embedding = {1.5f, -2};
    if (!(row.flags & kRowPromptLogprobs)) continue;
    out.prompt_start = row.start_pos + 1;
    out.prompt_logprobs.resize(row.num_tokens - (row.next_token < 0 ? 1 : 0));
  }
  return result;
}

}  // namespace

SchedulerConfig RecordedConfig() {
  SchedulerConfig config;
  config.num_pages = 60;
  config.init_new_token_ratio = 0;
  config.page_size = 4;
  config.max_running_requests = 8;
  config.chunked_prefill_size = 32;
  config.context_length = 300;
  config.vocab_size = kVocab;
  config.speculative_num_draft_tokens = 4;
  config.eos_ids = {0};
  return config;
}

Recorded Record(uint64_t seed, const RecordOptions& options, const Segment& segment) {
  FlightRingWriter ring = *FlightRingWriter::Attach(&segment);
  SchedulerConfig config = RecordedConfig();
  config.schedule_policy = options.policy;
  config.eviction_policy = seed % 2 == 0 ? "lru" : "lfu";
  config.priority_scheduling_preemption_threshold = 1;
  if (options.long_prompt > 0) config.page_size = 16;
  config.context_length = std::max(config.context_length, options.long_prompt + 100);
  config.num_pages += (options.long_prompt + config.page_size - 1) / config.page_size;
  RecordedScheduler scheduler(config, &ring);
  std::mt19937_64 random(seed);
  std::vector<ReqOutput> outputs;
  std::deque<StepResult> in_flight;
  StepPlan plan;
  uint32_t epoch = 1;
  scheduler.BeginEpoch(epoch, config.num_pages);
  int64_t now = 1;
  for (ReqId id = 1; id <= options.requests; ++id) {
    (void)scheduler.Add(RandomSpec(id, now, options.long_prompt, &random), now + 1);
    ++now;
    for (int i = 0; i < 12; ++i, now += 1000) {
      if (scheduler.PlanStep(now, &plan)) in_flight.push_back(RandomResult(plan, now, &random));
      if (!in_flight.empty() && random() % 3 != 0) {
        scheduler.OnResult(in_flight.front(), now, &outputs);
        in_flight.pop_front();
      }
      if (random() % 40 == 0) scheduler.Abort(1 + random() % id, Finish::kAbort);
      if (random() % 40 == 0) scheduler.Truncate(1 + random() % id, 1, now, &outputs);
      if (random() % 20 == 0) scheduler.ExpireDeadlines(now, &outputs);
      if (random() % 300 == 0) {
        in_flight.clear();
        scheduler.BeginEpoch(++epoch, config.num_pages);
      }
      if (options.key_frames) scheduler.WriteKeyFrameIfDue();
    }
  }
  return {scheduler.records_lost(), scheduler.key_frames(), scheduler.key_frames_lost(),
          scheduler.core().stats().retractions, scheduler.core().stats().accepted_draft_tokens};
}

std::vector<std::string> RecordSome(uint64_t seed, const RecordOptions& options) {
  auto segment = Segment::Create("replay-test", options.ring_bytes);
  EXPECT_TRUE(segment.ok());
  const Recorded recorded = Record(seed, options, *segment);
  EXPECT_EQ(recorded.records_lost > 0, options.long_prompt > 0);
  EXPECT_EQ(recorded.key_frames > 0, options.key_frames);
  EXPECT_EQ(recorded.key_frames_lost, 0u);
  EXPECT_TRUE(recorded.retractions > 0 || options.long_prompt > 0);
  EXPECT_GT(recorded.accepted_draft_tokens, 0u);
  return *ReadFlightRing(*segment);
}

FlightKind KindOf(const std::string& bytes) {
  FlightRecord record;
  EXPECT_TRUE(ParseFlightRecord(bytes, &record).ok());
  return record.kind;
}

}  // namespace flotilla::testing
