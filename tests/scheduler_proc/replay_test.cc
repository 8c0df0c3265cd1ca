// A core that is led through its own recording decides the same; one that would not is found out.
#include "scheduler_proc/replay.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <random>

#include "boost/json.hpp"
#include "scheduler_proc/recorded_scheduler.h"
#include "shm/flight_ring.h"
#include "tests/fakes/sim_grammar.h"

namespace flotilla {
namespace {

constexpr uint32_t kVocab = 97;

SchedulerConfig Config() {
  SchedulerConfig config;
  config.num_pages = 80;
  config.init_new_token_ratio = 0;
  config.page_size = 4;
  config.max_running_requests = 8;
  config.chunked_prefill_size = 32;
  config.context_length = 300;
  config.vocab_size = kVocab;
  config.eos_ids = {0};
  return config;
}

// What a worker might sample under the next of the masks; now and then something else.
int32_t Masked(std::span<const uint32_t>* masks, std::mt19937_64* random) {
  const auto mask = masks->first(MaskWords(kVocab));
  *masks = masks->subspan(MaskWords(kVocab));
  auto token = static_cast<uint32_t>((*random)() % kVocab);
  if ((*random)() % 200 == 0) return static_cast<int32_t>(token);
  while ((mask[token / 32] >> (token % 32) & 1) == 0) token = (token + 1) % kVocab;
  return static_cast<int32_t>(token);
}

struct Options {
  std::string policy = "fcfs";
  size_t ring_bytes = 8 << 20;
  bool key_frames = false;
  uint32_t long_prompt = 0;  // tokens of one request's
};

struct Recorded {
  uint64_t records_lost = 0, key_frames = 0, key_frames_lost = 0, retractions = 0;
};

// A few thousand calls with everything that can come: aborts, ends, epochs, retractions, grammars.
Recorded Record(uint64_t seed, const Options& options, const Segment& segment) {
  FlightRingWriter ring = *FlightRingWriter::Attach(&segment);
  SchedulerConfig config = Config();
  config.schedule_policy = options.policy;
  config.eviction_policy = seed % 2 == 0 ? "lru" : "lfu";
  config.priority_scheduling_preemption_threshold = 1;
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
  for (ReqId id = 1; id <= 150; ++id) {
    ReqSpec spec;
    spec.id = id;
    spec.prompt_ids.assign(1 + random() % 100, static_cast<int32_t>(random() % 3));
    if (id == 75) spec.prompt_ids.resize(std::max<size_t>(options.long_prompt, 1));
    spec.priority = static_cast<int32_t>(random() % 3);
    spec.max_new_tokens = 1 + random() % 60;
    spec.sampling.num_prompt_logprobs = random() % 5 == 0 ? 0 : kNoLogprobs;
    spec.sampling.presence_penalty = random() % 4 == 0 ? 1 : 0;
    spec.logit_bias = {{3, 1.5f}};
    spec.cache_salt = random() % 3 == 0 ? "tenant" : "";
    spec.stop_token_ids = {5};
    spec.deadline_ns = random() % 9 == 0 ? now + 40'000 : INT64_MAX;
    if (random() % 6 == 0) {
      spec.pooling = random() % 2 == 0 ? Pooling::kMean : Pooling::kLast;
      spec.max_new_tokens = 0;
      spec.sampling = {};
    } else if (random() % 5 == 0) {
      spec.grammar = std::make_shared<testing::SimGrammar>(testing::SimGrammar::Shape{
          .seed = id,
          .vocab_size = kVocab,
          .most = random() % 3 == 0 ? 1 + static_cast<uint32_t>(random() % 9) : 60,
          .fails_at = random() % 9 == 0 ? static_cast<uint32_t>(random() % 9) : UINT32_MAX});
      if (random() % 5 == 0) spec.resumed_ids = {static_cast<int32_t>(random() % kVocab)};
      spec.max_new_tokens += 1;
      spec.ignore_eos = random() % 2 == 0;  // then the grammar says that it has ended
    }
    (void)scheduler.Add(spec, ++now);
    for (int i = 0; i < 12; ++i, now += 1000) {
      if (scheduler.PlanStep(now, &plan)) {
        StepResult& result = in_flight.emplace_back();
        result.step_id = plan.step_id;
        result.epoch = plan.epoch;
        result.start_ns = now;
        result.end_ns = now + 900;
        std::span<const uint32_t> masks = plan.masks;
        for (const PlanRow& row : plan.rows) {
          RowResult& out = result.rows.emplace_back();
          out.slot = row.slot;
          if (row.flags & kRowMask) {
            out.token = Masked(&masks, &random);
          } else if (row.flags & kRowSample) {
            out.token = static_cast<int32_t>(random() % kVocab);
          }
          if (row.flags & kRowEmbed) out.embedding = {1.5f, -2};
          if (!(row.flags & kRowPromptLogprobs)) continue;
          out.prompt_start = row.start_pos + 1;
          out.prompt_logprobs.resize(row.num_tokens - (row.next_token < 0 ? 1 : 0));
        }
      }
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
          scheduler.core().stats().retractions};
}

std::vector<std::string> RecordSome(uint64_t seed, const Options& options = {}) {
  auto segment = Segment::Create("replay-test", options.ring_bytes);
  EXPECT_TRUE(segment.ok());
  const Recorded recorded = Record(seed, options, *segment);
  EXPECT_EQ(recorded.records_lost > 0, options.long_prompt > 0);
  EXPECT_EQ(recorded.key_frames > 0, options.key_frames);
  EXPECT_EQ(recorded.key_frames_lost, 0u);
  EXPECT_TRUE(recorded.retractions > 0 || options.long_prompt > 0);
  return *ReadFlightRing(*segment);
}

FlightKind KindOf(const std::string& bytes) {
  FlightRecord record;
  EXPECT_TRUE(ParseFlightRecord(bytes, &record).ok());
  return record.kind;
}

void Ignore(const ReplayMoment&) {}

TEST(ReplayTest, DecidesTheSameCallByCall) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<std::string> records = RecordSome(seed);
    uint64_t visited = 0;
    const auto report = Replay(records, [&](const ReplayMoment&) { ++visited; });
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->difference, "") << "seed " << seed;
    EXPECT_EQ(report->records, records.size());
    EXPECT_EQ(visited, records.size());
    EXPECT_GT(report->steps, 300u);
    EXPECT_GT(report->requests, 100u);
  }
}

// Whatever changed in the input must show: else the recorder has left something out.
TEST(ReplayTest, NoticesAnotherDecision) {
  const std::vector<std::string> records = RecordSome(7);
  FlightRecord record;
  const auto spoiled = [&](FlightKind kind, void (*spoil)(FlightRecord*)) {
    std::vector<std::string> copy = records;
    for (size_t i = copy.size() / 3; i < copy.size(); ++i) {
      EXPECT_TRUE(ParseFlightRecord(copy[i], &record).ok());
      const bool has_ok = kind != FlightKind::kResult && kind != FlightKind::kGrammar;
      if (record.kind != kind || (has_ok && !record.ok)) continue;
      spoil(&record);
      BuildFlightRecord(record, &copy[i]);
      break;
    }
    const auto report = Replay(copy, [](const ReplayMoment&) {});
    return report.ok() && !report->difference.empty();
  };
  EXPECT_TRUE(spoiled(FlightKind::kPlan, [](FlightRecord* r) { ++r->plan_hash; }));
  EXPECT_TRUE(spoiled(FlightKind::kAdd, [](FlightRecord* r) { r->spec.prompt_ids.push_back(1); }));
  EXPECT_TRUE(spoiled(FlightKind::kAdd, [](FlightRecord* r) { r->spec.sampling.seed = 99; }));
  EXPECT_TRUE(spoiled(FlightKind::kAdd, [](FlightRecord* r) {
    const bool pooled = r->spec.pooling != Pooling::kNone;
    r->spec.pooling = pooled ? Pooling::kNone : Pooling::kMean;
    r->spec.max_new_tokens = pooled ? 1 : 0;
    r->spec.sampling.num_prompt_logprobs = kNoLogprobs;
  }));
  EXPECT_TRUE(spoiled(FlightKind::kResult, [](FlightRecord* r) {
    for (RowResult& row : r->result.rows) row.token = row.token < 0 ? -1 : 0;
  }));
  EXPECT_TRUE(spoiled(FlightKind::kAdd, [](FlightRecord* r) { r->has_grammar ^= true; }));
  EXPECT_TRUE(spoiled(FlightKind::kGrammar, [](FlightRecord* r) { r->answers.pop_back(); }));
  EXPECT_TRUE(spoiled(FlightKind::kGrammar, [](FlightRecord* r) { r->answers.push_back(0); }));
  EXPECT_TRUE(spoiled(FlightKind::kGrammar, [](FlightRecord* r) { r->answers.back() ^= 3; }));
  EXPECT_FALSE(spoiled(FlightKind::kPlan, [](FlightRecord*) {}));
}

// The scheduler was killed between a result and what came of it.
TEST(ReplayTest, EndsBeforeACallWhoseGrammarsAnswersAreMissing) {
  std::vector<std::string> records = RecordSome(11);
  FlightRecord record;
  do {
    ASSERT_TRUE(ParseFlightRecord(records.back(), &record).ok());
    records.pop_back();
  } while (record.kind != FlightKind::kGrammar);
  auto report = Replay(records, Ignore);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->difference, "");
  EXPECT_EQ(report->records + 1, records.size()) << "its last call can't be replayed";
  records.push_back(records.front());
  report = Replay(records, Ignore);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->difference, "the recording lacks what a grammar answered");
}

TEST(ReplayTest, RecordingsHaveGrammarsOfAllKinds) {
  FlightRecord record;
  uint32_t refused = 0, ended = 0, failed = 0, requests = 0;
  for (const std::string& bytes : RecordSome(12)) {
    ASSERT_TRUE(ParseFlightRecord(bytes, &record).ok());
    if (record.kind == FlightKind::kAdd && record.has_grammar) {
      ++(record.ok ? requests : refused);
    }
    if (record.kind != FlightKind::kGrammar) continue;
    ended += record.answers.find('\1') != std::string::npos;
    failed += record.answers.find(static_cast<char>(absl::StatusCode::kInvalidArgument)) !=
              std::string::npos;
  }
  EXPECT_GT(requests, 10u);
  EXPECT_GT(refused, 0u);
  EXPECT_GT(ended, 3u);
  EXPECT_GT(failed, 1u);
}

TEST(ReplayTest, SaysWhenTheBeginningIsGone) {
  const std::vector<std::string> records = RecordSome(8, {.ring_bytes = kMinFlightRingBytes});
  const auto report = Replay(records, Ignore);
  EXPECT_TRUE(absl::IsDataLoss(report.status())) << report.status();
}

// What no longer has its beginning begins at its oldest key frame, and agrees with the later ones.
TEST(ReplayTest, ARecordingThatHasWrappedReplays) {
  for (const char* policy : {"fcfs", "lpm", "dfs-weight", "lof", "random", "priority", "vtc"}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      SCOPED_TRACE(StrCat(policy, " ", seed));
      const std::vector<std::string> records =
          RecordSome(seed, {.policy = policy, .ring_bytes = 160 << 10, .key_frames = true});
      ASSERT_NE(KindOf(records[0]), FlightKind::kConfig);
      uint64_t visited = 0, began = 0;
      const auto report = Replay(records, [&](const ReplayMoment& moment) {
        ++visited;
        began += moment.begins;
        EXPECT_TRUE(moment.core.CheckLedger().ok());
      });
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->difference, "");
      EXPECT_TRUE(report->from_key_frame);
      EXPECT_EQ(report->skipped + visited, records.size());
      EXPECT_LT(report->skipped, records.size() / 2);
      EXPECT_EQ(began, 1u);
      EXPECT_GE(report->key_frames, 1u);
      EXPECT_GT(report->steps, 100u);
      EXPECT_TRUE(TraceJson(records).ok());
    }
  }
}

// Wherever its beginning and its end are cut off.
TEST(ReplayTest, EveryPieceWithAKeyFrameReplays) {
  const std::vector<std::string> all =
      RecordSome(3, {.policy = "vtc", .ring_bytes = 512 << 10, .key_frames = true});
  size_t beginnings = 0, replayed = 0;
  for (const std::string& record : all) {
    const FlightKind kind = KindOf(record);
    beginnings += kind == FlightKind::kConfig || kind == FlightKind::kKeyFrame;
  }
  for (size_t begin = 0; begin < all.size(); begin += 61) {
    for (const size_t end : {all.size(), begin + (all.size() - begin) / 2}) {
      const std::vector<std::string> piece(all.begin() + static_cast<ptrdiff_t>(begin),
                                           all.begin() + static_cast<ptrdiff_t>(end));
      const auto report = Replay(piece, Ignore);
      if (!report.ok()) {
        EXPECT_TRUE(absl::IsDataLoss(report.status()));
        continue;
      }
      EXPECT_EQ(report->difference, "") << "from " << begin << " to " << end;
      ++replayed;
    }
  }
  EXPECT_GE(beginnings, 3u);
  EXPECT_GT(replayed, all.size() / 61);
}

TEST(ReplayTest, AKilledSchedulersRecordingReplays) {
  const Options options{.policy = "lpm", .ring_bytes = 160 << 10, .key_frames = true};
  auto segment = Segment::Create("replay-test", options.ring_bytes);
  ASSERT_TRUE(segment.ok());
  std::mt19937_64 random(4);
  uint64_t from_key_frame = 0;
  for (int round = 0; round < 25; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      while (true) Record(random(), options, *segment);
    }
    // Until it has gone around, then a little longer.
    const auto wrapped = [&] {
      const auto records = ReadFlightRing(*segment);
      return records.ok() && !records->empty() && KindOf(records->front()) != FlightKind::kConfig;
    };
    while (!wrapped()) continue;
    for (uint64_t looks = random() % 20; looks > 0; --looks) (void)wrapped();
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    const auto records = ReadFlightRing(*segment);
    if (!records.ok() || records->empty()) continue;  // it was about to empty the ring
    const auto report = Replay(*records, Ignore);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->difference, "");
    from_key_frame += report->from_key_frame;
  }
  EXPECT_GT(from_key_frame, 5u);
}

TEST(ReplayTest, NoticesAStateThatIsNotTheKeyFrames) {
  std::vector<std::string> records = RecordSome(5, {.ring_bytes = 512 << 10, .key_frames = true});
  FlightRecord record;
  bool spoiled = false;
  for (size_t i = 1; i < records.size() && !spoiled; ++i) {
    ASSERT_TRUE(ParseFlightRecord(records[i], &record).ok());
    if (record.kind != FlightKind::kKeyFrame) continue;
    record.snapshot[record.snapshot.size() / 2] ^= 1;
    BuildFlightRecord(record, &records[i]);
    spoiled = true;
  }
  ASSERT_TRUE(spoiled);
  const auto report = Replay(records, Ignore);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_NE(report->difference.find("key frame"), std::string::npos) << report->difference;
}

// A call that the ring does not take: what follows begins with a key frame again.
TEST(ReplayTest, GoesOnBehindAGap) {
  const std::vector<std::string> records =
      RecordSome(6, {.ring_bytes = 2 << 20, .key_frames = true, .long_prompt = 150'000});
  uint64_t began = 0;
  const auto report = Replay(records, [&](const ReplayMoment& moment) { began += moment.begins; });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->difference, "");
  EXPECT_EQ(began, 2u);
}

TEST(ReplayTest, BrokenRecordsAreRefused) {
  std::vector<std::string> records = RecordSome(9);
  FlightRecord record;
  for (size_t i = 0; i < records.size(); i += 7) {
    ASSERT_TRUE(ParseFlightRecord(records[i], &record).ok());
    std::string again;
    BuildFlightRecord(record, &again);
    ASSERT_EQ(again, records[i]) << "one spelling";
    for (size_t length = 0; length < records[i].size(); length += 11) {
      EXPECT_FALSE(ParseFlightRecord(std::string_view(records[i]).substr(0, length), &record).ok());
    }
  }
  records[3].resize(9);
  EXPECT_TRUE(absl::IsDataLoss(Replay(records, [](const ReplayMoment&) {}).status()));
}

TEST(ReplayTest, TracesAreJsonWithEveryStepAndRequest) {
  const auto text = TraceJson(RecordSome(10));
  ASSERT_TRUE(text.ok()) << text.status();
  const auto trace = boost::json::parse(*text);
  size_t steps = 0, requests = 0;
  for (const auto& event : trace.at("traceEvents").as_array()) {
    if (event.at("ph").as_string() != "X") continue;
    EXPECT_GE(event.at("dur").as_double(), 0);
    (event.at("pid").as_int64() == 1 ? steps : requests) += 1;
  }
  EXPECT_GT(steps, 300u);
  EXPECT_GT(requests, 100u);
}

}  // namespace
}  // namespace flotilla
