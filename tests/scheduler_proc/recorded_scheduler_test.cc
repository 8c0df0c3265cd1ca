// A call is in the recording before it is made.
#include "scheduler_proc/flight/recorded_scheduler.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "scheduler_proc/flight/replay.h"
#include "tests/fakes/answer_plan.h"
#include "tests/scheduler_proc/recorded_calls.h"

namespace flotilla {
namespace {

ReqSpec Spec(ReqId id) {
  ReqSpec spec;
  spec.id = id;
  spec.prompt_ids.assign(20, static_cast<int32_t>(id));
  spec.max_new_tokens = 30;
  return spec;
}

// Runs what records into a segment, in a child, which must die of it.
template <typename Run>
std::vector<std::string> RecordADeath(Run run) {
  auto segment = Segment::Create("recorded-scheduler-test", 1 << 20);
  CHECK_OK(segment.status());
  const pid_t child = fork();
  if (child == 0) {
    close(STDERR_FILENO);
    FlightRingWriter ring = *FlightRingWriter::Attach(&*segment);
    const SchedulerConfig config = testing::RecordedConfig();
    RecordedScheduler scheduler(config, &ring);
    scheduler.BeginEpoch(1, config.num_pages);
    run(&scheduler);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_NE(status, 0) << "it came through";
  return *ReadFlightRing(*segment);
}

// The third plan is where nothing can be written.
void DieInPlanStep(RecordedScheduler* scheduler) {
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  for (ReqId id = 1; id <= 2; ++id) {
    CHECK_OK(scheduler->Add(Spec(id), static_cast<int64_t>(id) * 1000));
    CHECK(scheduler->PlanStep(static_cast<int64_t>(id) * 1000 + 1, &plan));
    scheduler->OnResult(testing::AnswerPlan(plan, 7), static_cast<int64_t>(id) * 1000 + 2,
                        &outputs);
  }
  constexpr size_t kPage = 1 << 16;
  static_assert(sizeof(StepPlan) < kPage);
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  auto* unwritable = new (page) StepPlan();
  CHECK(mprotect(page, kPage, PROT_READ) == 0);
  (void)scheduler->PlanStep(3000, unwritable);
}

TEST(RecordedSchedulerTest, TheCallInWhichTheCoreDiesIsRecordedAndRunsAgain) {
  const std::vector<std::string> records = RecordADeath(DieInPlanStep);
  FlightRecord last;
  ASSERT_TRUE(ParseFlightRecord(records.back(), &last).ok());
  EXPECT_EQ(last.kind, FlightKind::kPlan);
  EXPECT_EQ(last.now_ns, 3000);

  size_t rows = 0, told = 0;
  const auto visit = [&](const ReplayMoment& moment) {
    EXPECT_EQ(moment.answered, told == 0);
    if (moment.answered) return;
    EXPECT_TRUE(moment.record.ok);
    EXPECT_EQ(moment.record.step_id, 3u);
    rows = moment.plan.rows.size();
  };
  auto report = Replay(records, visit, [&](FlightKind call) {
    EXPECT_EQ(call, FlightKind::kPlan);
    EXPECT_EQ(rows, 0u) << "told before it runs";
    ++told;
  });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->difference, "");
  EXPECT_EQ(report->ended_in, "PlanStep");
  EXPECT_FALSE(report->lacks_grammars);
  EXPECT_EQ(report->steps, 2u) << "that were answered";
  EXPECT_EQ(told, 1u);
  EXPECT_EQ(rows, 2u) << "here it can be planned";

  told = 0;
  report = Replay(records, visit);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->ended_in, "PlanStep") << "but it is not run unless asked for";
}

TEST(RecordedSchedulerTest, ACallThatKillsTheCoreIsNotMadeByAReplay) {
  const std::vector<std::string> records = RecordADeath([](RecordedScheduler* scheduler) {
    scheduler->BeginEpoch(2, testing::RecordedConfig().num_pages + 1);  // CHECK
  });
  const auto report = Replay(
      records, [](const ReplayMoment&) {}, [](FlightKind) {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->ended_in, "BeginEpoch");
  EXPECT_EQ(report->difference, "an epoch with another number of pages");
}

// Every call, and an answer to each.
TEST(RecordedSchedulerTest, AnAnswerFollowsEachCall) {
  const std::vector<std::string> records = testing::RecordSome(2);
  ASSERT_EQ(testing::KindOf(records[0]), FlightKind::kConfig);
  ASSERT_EQ(records.size() % 2, 1u);
  for (size_t i = 1; i < records.size(); i += 2) {
    ASSERT_TRUE(IsCall(testing::KindOf(records[i]))) << i;
    ASSERT_EQ(testing::KindOf(records[i + 1]), FlightKind::kAnswer) << i;
  }
}

// A GPU's: more than a million tokens, of a large vocabulary.
SchedulerConfig LargeConfig() {
  SchedulerConfig config = testing::RecordedConfig();
  config.page_size = 16;
  config.num_pages = 90'000;
  config.context_length = 131'072;
  config.chunked_prefill_size = config.max_prefill_tokens = 131'072;
  config.vocab_size = 151'936;
  return config;
}

TEST(RecordedSchedulerTest, AKeyFrameOfAMillionCachedTokensFits) {
  auto segment = Segment::Create("recorded-scheduler-test", 16 << 20);
  ASSERT_TRUE(segment.ok());
  FlightRingWriter ring = *FlightRingWriter::Attach(&*segment);
  const SchedulerConfig config = LargeConfig();
  RecordedScheduler scheduler(config, &ring);
  scheduler.BeginEpoch(1, config.num_pages);
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  int64_t now = 1'000'000;
  uint32_t token = 1;
  const auto run = [&](ReqId id, size_t prompt_tokens) {
    ReqSpec spec;
    spec.id = id;
    spec.prompt_ids.resize(prompt_tokens);
    for (int32_t& prompt_id : spec.prompt_ids)
      prompt_id = static_cast<int32_t>(1 + (token = token * 1'664'525 + 1'013'904'223) % 151'000);
    spec.max_new_tokens = 3;
    CHECK_OK(scheduler.Add(spec, ++now));
    while (scheduler.PlanStep(now += 1000, &plan)) {
      scheduler.OnResult(testing::AnswerPlan(plan, 100'000), now += 1000, &outputs);
      scheduler.WriteKeyFrameIfDue();
    }
  };
  ReqId id = 0;
  while (scheduler.core().stats().evictable_pages * config.page_size < 1'250'000) run(++id, 65'536);
  while (scheduler.key_frames() < 4 || ring.overwritten_bytes() == 0) run(++id, 2'048);
  EXPECT_EQ(scheduler.key_frames_lost(), 0u);
  EXPECT_EQ(scheduler.records_lost(), 0u);
  EXPECT_GE(scheduler.core().stats().evictable_pages * config.page_size, 1'200'000u);
  EXPECT_GT(scheduler.covered_ns(), 0);

  std::vector<std::string> records = *ReadFlightRing(*segment);
  ASSERT_NE(testing::KindOf(records[0]), FlightKind::kConfig) << "it has wrapped";
  int64_t began_ns = 0, ended_ns = 0;
  const auto visit = [&](const ReplayMoment& moment) {
    if (moment.record.now_ns > 0 && began_ns == 0) began_ns = moment.record.now_ns;
    ended_ns = std::max(ended_ns, moment.record.now_ns);
  };
  auto report = Replay(records, visit);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->difference, "");
  EXPECT_TRUE(report->from_key_frame);
  EXPECT_NEAR(static_cast<double>(scheduler.covered_ns()), static_cast<double>(ended_ns - began_ns),
              2000);

  // Killed while it wrote one: what is before is there.
  size_t last = records.size() - 1;
  while (testing::KindOf(records[last]) != FlightKind::kKeyFramePart) --last;
  records.resize(last);
  report = Replay(records, visit);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->difference, "");
  while (testing::KindOf(records.back()) != FlightKind::kKeyFrame) records.pop_back();
  FlightRecord other;
  other.kind = FlightKind::kExpire;
  BuildFlightRecord(other, &records.emplace_back());
  EXPECT_TRUE(absl::IsDataLoss(Replay(records, visit).status())) << "a part is missing inside";
}

// docs/observability.md: 256 rows a step of 6.6 ms, prompts of 562 tokens for outputs of as many.
TEST(RecordedSchedulerTest, TheDefaultRingHasTwoMinutesAtAGpusRate) {
  constexpr uint32_t kRows = 256;
  StepResult result;
  result.step_id = 1'000'000;
  for (uint32_t i = 0; i < kRows; ++i) {  // slots in no order
    RowResult& row = result.rows.emplace_back();
    row.slot = i * 77 % kRows;
    row.token = 151'000 - static_cast<int32_t>(i);
  }
  result.rows[3].accepted = {0, 151'935};
  const auto in_ring = [](size_t bytes) { return (8 + bytes + 7) / 8 * 8; };
  std::string bytes;
  BuildResultRecord(result, 1, &bytes);
  EXPECT_LE(bytes.size(), 64 + kRows * 5);
  size_t a_step = in_ring(bytes.size());
  FlightRecord record;
  ASSERT_TRUE(ParseFlightRecord(bytes, &record).ok());
  for (uint32_t i = 0; i < kRows; ++i) {
    ASSERT_EQ(record.result.rows[i].slot, result.rows[i].slot);
    ASSERT_EQ(record.result.rows[i].token, result.rows[i].token);
    ASSERT_EQ(record.result.rows[i].accepted, result.rows[i].accepted);
  }
  record.kind = FlightKind::kAnswer;
  BuildFlightRecord(record, &bytes);
  a_step += 2 * in_ring(bytes.size());
  record.kind = FlightKind::kPlan;
  BuildFlightRecord(record, &bytes);
  a_step += in_ring(bytes.size());
  record.kind = FlightKind::kAdd;
  record.spec = Spec(1);
  record.spec.prompt_ids.assign(562, 150'000);
  BuildFlightRecord(record, &bytes);
  const double a_second =
      (static_cast<double>(a_step) + static_cast<double>(in_ring(bytes.size())) * kRows / 562) /
      6.6e-3;
  EXPECT_LT(a_second, 350e3);
  // A quarter of the 64 MiB may be before the oldest key frame, and an eighth be key frames of 0.8
  // million cached tokens.
  EXPECT_GT((64 << 20) * 0.625 / a_second, 120);
}

TEST(RecordedSchedulerTest, TellsHowFarBackAReplayCanGo) {
  auto segment = Segment::Create("recorded-scheduler-test", kMinFlightRingBytes);
  ASSERT_TRUE(segment.ok());
  FlightRingWriter ring = *FlightRingWriter::Attach(&*segment);
  const SchedulerConfig config = testing::RecordedConfig();
  RecordedScheduler scheduler(config, &ring);
  scheduler.BeginEpoch(1, config.num_pages);
  EXPECT_EQ(scheduler.covered_ns(), 0);
  StepPlan plan;
  int64_t now = kNsPerSecond;
  (void)scheduler.PlanStep(now, &plan);
  EXPECT_EQ(scheduler.covered_ns(), 0);
  (void)scheduler.PlanStep(now += kNsPerSecond, &plan);
  EXPECT_EQ(scheduler.covered_ns(), kNsPerSecond);
  while (ring.overwritten_bytes() == 0) (void)scheduler.PlanStep(now += kNsPerSecond, &plan);
  EXPECT_EQ(scheduler.covered_ns(), 0) << "no key frame was written";
  for (int i = 0; i < 5000; ++i) {
    (void)scheduler.PlanStep(now += kNsPerSecond, &plan);
    scheduler.WriteKeyFrameIfDue();
    if (scheduler.key_frames() == 0) continue;
    int64_t began_ns = 0;
    if (i % 500 == 499) {
      const auto report = Replay(*ReadFlightRing(*segment), [&](const ReplayMoment& moment) {
        if (moment.record.now_ns > 0 && began_ns == 0) began_ns = moment.record.now_ns;
      });
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_NEAR(static_cast<double>(scheduler.covered_ns()), static_cast<double>(now - began_ns),
                  static_cast<double>(kNsPerSecond));
    }
  }
  EXPECT_GT(scheduler.key_frames(), 3u);
}

TEST(RecordedSchedulerTest, RecordsOfAnotherVersionAreRefusedByName) {
  std::vector<std::string> records = testing::RecordSome(2);
  for (std::string& record : records) record[0] = 6;
  const Status status = Replay(records, [](const ReplayMoment&) {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_NE(status.message().find("another version of Flotilla"), std::string::npos) << status;
}

}  // namespace
}  // namespace flotilla
