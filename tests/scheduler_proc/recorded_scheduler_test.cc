// A call is in the recording before it is made.
#include "scheduler_proc/recorded_scheduler.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

#include "common/base/check.h"
#include "scheduler_proc/replay.h"
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

}  // namespace
}  // namespace flotilla
