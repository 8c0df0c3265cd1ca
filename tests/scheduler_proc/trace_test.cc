// A trace shows what is in the recording, also what was not over when that ends.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "boost/json.hpp"
#include "scheduler_proc/flight/replay.h"
#include "tests/scheduler_proc/recorded_calls.h"

namespace flotilla {
namespace {

using testing::RecordSome;

struct Seen {
  size_t steps = 0, plans = 0, unanswered = 0, waits = 0;
  uint64_t retracted = 0;
  std::map<std::string, std::set<ReqId>> requests;  // by how they ended
  std::set<ReqId> ids;
  std::vector<std::string> marks;
};

Seen Look(const Trace& trace) {
  Seen seen;
  const auto json = boost::json::parse(trace.json);
  for (const auto& event : json.at("traceEvents").as_array()) {
    const std::string phase(event.at("ph").as_string());
    if (phase == "i" && event.at("s").as_string() == "g")
      seen.marks.emplace_back(event.at("name").as_string());
    if (phase != "X") continue;
    EXPECT_GE(event.at("dur").as_double(), 0);
    EXPECT_GE(event.at("ts").as_double(), 0);
    const auto& args = event.at("args").as_object();
    switch (event.at("pid").as_int64()) {
      case 1:
        ++seen.steps;
        break;
      case 2: {
        const auto id = static_cast<ReqId>(event.at("tid").as_int64());
        seen.ids.insert(id);
        seen.requests[std::string(args.at("finish").as_string())].insert(id);
        break;
      }
      case 3:
        ++seen.plans;
        seen.unanswered += args.contains("answered");
        seen.waits += args.contains("first_waits_for");
        EXPECT_EQ(args.contains("first_waits_for"), args.at("waiting").as_int64() > 0);
        EXPECT_GT(args.at("rows").as_int64(), 0);
        seen.retracted += static_cast<uint64_t>(args.at("retracted").as_int64());
        break;
      default:
        ADD_FAILURE() << "an unknown track";
    }
  }
  return seen;
}

// That were taken.
std::set<ReqId> Added(const std::vector<std::string>& records) {
  std::set<ReqId> ids;
  FlightRecord record;
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_TRUE(ParseFlightRecord(records[i], &record).ok());
    if (record.kind != FlightKind::kAdd || i + 1 == records.size()) continue;
    const ReqId id = record.spec.id;
    EXPECT_TRUE(ParseFlightRecord(records[i + 1], &record).ok());
    if (record.ok) ids.insert(id);
  }
  return ids;
}

TEST(TraceTest, HasEveryRequestThatWasAddedAndEveryPlan) {
  std::set<std::string> finishes;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<std::string> records = RecordSome(seed);
    records.resize(1 + records.size() / 4 * 2);  // some wait and run there
    const auto trace = TraceRecords(records);
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->error, "");
    const Seen seen = Look(*trace);
    EXPECT_EQ(seen.ids, Added(records)) << seed;
    const auto report = Replay(records, [](const ReplayMoment&) {});
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(seen.plans, report->steps);
    EXPECT_GT(seen.steps, 300u);
    EXPECT_GT(seen.retracted, 0u);
    EXPECT_GT(seen.waits, 10u);
    std::set<ReqId> live;
    for (const Scheduler::Progress& progress : report->live) live.insert(progress.spec.id);
    EXPECT_FALSE(live.empty());
    const auto open = seen.requests.find("none");
    ASSERT_NE(open, seen.requests.end());
    EXPECT_EQ(open->second, live);
    for (const auto& [finish, ids] : seen.requests) finishes.insert(finish);
    EXPECT_TRUE(seen.marks.empty());
  }
  for (const char* finish : {"stop", "length", "abort", "deadline"})
    EXPECT_TRUE(finishes.contains(finish)) << finish;
}

// What was there at the key frame too.
TEST(TraceTest, ARecordingThatHasLostItsBeginningHasAllFromItsKeyFrameOn) {
  const std::vector<std::string> records =
      RecordSome(3, {.policy = "vtc", .ring_bytes = 160 << 10, .key_frames = true});
  std::set<ReqId> expected;
  bool began = false;
  const auto report = Replay(records, [&](const ReplayMoment& moment) {
    if (moment.begins)
      for (const auto& live : moment.core.LiveRequests()) expected.insert(live.spec.id);
    began = began || moment.begins;
    if (moment.record.kind == FlightKind::kAdd && moment.record.ok)
      expected.insert(moment.record.spec.id);
  });
  ASSERT_TRUE(report.ok() && report->from_key_frame) << report.status();
  const auto trace = TraceRecords(records);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(Look(*trace).ids, expected);
}

TEST(TraceTest, EndsWithAMarkWhereADecisionDiffers) {
  std::vector<std::string> records = RecordSome(10);
  FlightRecord record;
  for (size_t i = records.size() / 2; i < records.size(); ++i) {
    ASSERT_TRUE(ParseFlightRecord(records[i], &record).ok());
    if (record.kind != FlightKind::kAnswer || record.plan_hash == 0) continue;
    ++record.plan_hash;
    BuildFlightRecord(record, &records[i]);
    break;
  }
  const auto trace = TraceRecords(records);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_NE(trace->error.find("was planned otherwise"), std::string::npos) << trace->error;
  const Seen seen = Look(*trace);
  ASSERT_EQ(seen.marks.size(), 1u);
  EXPECT_EQ(seen.marks[0], "DIFFERENT: " + trace->error);
  EXPECT_GT(seen.steps, 100u) << "up to there";
  EXPECT_TRUE(seen.requests.contains("none")) << "who lived then";
}

TEST(TraceTest, EndsWithAMarkAtABrokenRecord) {
  std::vector<std::string> records = RecordSome(10);
  records[records.size() / 2].resize(1);
  const auto trace = TraceRecords(records);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_NE(trace->error, "");
  const Seen seen = Look(*trace);
  EXPECT_EQ(seen.marks, std::vector<std::string>{trace->error});
  EXPECT_GT(seen.steps, 100u);
  EXPECT_FALSE(TraceRecords({"x"}).ok()) << "there is nothing before";
}

TEST(TraceTest, SaysInWhichCallTheRecordingEnds) {
  std::vector<std::string> records = RecordSome(10);
  while (testing::KindOf(records.back()) != FlightKind::kPlan) records.pop_back();
  const auto trace = TraceRecords(records);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->error, "");
  EXPECT_EQ(Look(*trace).marks, std::vector<std::string>{"the recording ends inside PlanStep"});
}

}  // namespace
}  // namespace flotilla
