// A core that is led through its own recording decides the same; one that would not is found out.
#include "scheduler_proc/flight/replay.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <random>

#include "shm/flight_ring.h"
#include "tests/scheduler_proc/recorded_calls.h"

namespace flotilla {
namespace {

using testing::KindOf;
using testing::Record;
using testing::RecordSome;

void Ignore(const ReplayMoment&) {}

// And key frames, without answers and parts.
size_t NumCalls(const std::vector<std::string>& records) {
  return static_cast<size_t>(std::count_if(records.begin(), records.end(), [](const auto& bytes) {
    const FlightKind kind = KindOf(bytes);
    return kind != FlightKind::kAnswer && kind != FlightKind::kKeyFramePart;
  }));
}

TEST(ReplayTest, DecidesTheSameCallByCall) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<std::string> records = RecordSome(seed);
    uint64_t visited = 0;
    const auto report = Replay(records, [&](const ReplayMoment&) { ++visited; });
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->difference, "") << "seed " << seed;
    EXPECT_EQ(report->records, NumCalls(records));
    EXPECT_EQ(visited, NumCalls(records));
    EXPECT_EQ(report->ended_in, "");
    EXPECT_GT(report->steps, 300u);
    EXPECT_GT(report->requests, 100u);
  }
}

// Whatever changed in the input must show: else the recorder has left something out.
TEST(ReplayTest, NoticesAnotherDecision) {
  const std::vector<std::string> records = RecordSome(7);
  FlightRecord record, answer;
  // The nth call of the kind, answered with yes, or what grammars said in one, or a plan's
  // answer.
  const auto spoiled = [&](FlightKind kind, void (*spoil)(FlightRecord*), bool grammar = false,
                           size_t nth = 0) {
    std::vector<std::string> copy = records;
    for (size_t i = copy.size() / 3; i + 1 < copy.size(); ++i) {
      EXPECT_TRUE(ParseFlightRecord(copy[i], &record).ok());
      EXPECT_TRUE(ParseFlightRecord(copy[i + 1], &answer).ok());
      const bool is_answer = record.kind == FlightKind::kAnswer;
      if (record.kind != kind || !(is_answer ? record.ok : answer.ok)) continue;
      if (is_answer && (grammar ? record.answers.empty() : record.plan_hash == 0)) continue;
      if (nth-- > 0) continue;
      spoil(&record);
      BuildFlightRecord(record, &copy[i]);
      break;
    }
    const auto report = Replay(copy, Ignore);
    return report.ok() && !report->difference.empty();
  };
  EXPECT_TRUE(spoiled(FlightKind::kAnswer, [](FlightRecord* r) { ++r->plan_hash; }));
  EXPECT_TRUE(spoiled(FlightKind::kAnswer, [](FlightRecord* r) { ++r->step_id; }));
  EXPECT_TRUE(spoiled(FlightKind::kAnswer, [](FlightRecord* r) { r->ok = false; }));
  EXPECT_TRUE(spoiled(FlightKind::kAdd, [](FlightRecord* r) { r->spec.prompt_ids.push_back(1); }));
  EXPECT_TRUE(spoiled(FlightKind::kAdd, [](FlightRecord* r) { r->spec.sampling.seed = 99; }));
  EXPECT_TRUE(spoiled(FlightKind::kAdd, [](FlightRecord* r) {
    const bool pooled = r->spec.pooling != Pooling::kNone;
    r->spec.pooling = pooled ? Pooling::kNone : Pooling::kMean;
    r->spec.max_new_tokens = pooled ? 1 : 0;
    r->spec.sampling.num_prompt_logprobs = kNoLogprobs;
  }));
  const auto ends = [](FlightRecord* r) {
    for (RowResult& row : r->result.rows) row.token = row.token < 0 ? -1 : 0;
  };
  // But where it is no end (ignore_eos), or nothing was sampled.
  size_t noticed = 0;
  for (size_t nth = 0; nth < 8; ++nth) noticed += spoiled(FlightKind::kResult, ends, false, nth);
  EXPECT_GE(noticed, 1u);
  EXPECT_TRUE(spoiled(FlightKind::kAdd, [](FlightRecord* r) { r->has_grammar ^= true; }));
  EXPECT_TRUE(spoiled(
      FlightKind::kAnswer, [](FlightRecord* r) { r->answers.pop_back(); }, true));
  EXPECT_TRUE(spoiled(
      FlightKind::kAnswer, [](FlightRecord* r) { r->answers.push_back(0); }, true));
  EXPECT_TRUE(spoiled(
      FlightKind::kAnswer, [](FlightRecord* r) { r->answers.back() ^= 3; }, true));
  EXPECT_FALSE(spoiled(FlightKind::kAnswer, [](FlightRecord*) {}));
}

// The scheduler was killed between a result and what came of it.
TEST(ReplayTest, EndsInACallWhoseGrammarsAnswersAreMissing) {
  std::vector<std::string> records = RecordSome(11);
  FlightRecord record;
  do {
    ASSERT_TRUE(ParseFlightRecord(records.back(), &record).ok());
    records.pop_back();
  } while (record.kind != FlightKind::kAnswer || record.answers.empty());
  auto report = Replay(records, Ignore);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->difference, "");
  EXPECT_EQ(report->ended_in, CallName(KindOf(records.back())));
  EXPECT_EQ(report->records + 1, NumCalls(records)) << "it is not run";
  report = Replay(records, Ignore, [](FlightKind) {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->lacks_grammars);
  record.answers.clear();
  BuildFlightRecord(record, &records.emplace_back());
  report = Replay(records, Ignore);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->difference, "the recording lacks what a grammar answered");
}

TEST(ReplayTest, CallsAndAnswersAlternate) {
  const std::vector<std::string> records = RecordSome(13);
  ASSERT_TRUE(IsCall(KindOf(records[1])) && KindOf(records[2]) == FlightKind::kAnswer);
  for (const ptrdiff_t missing : {1, 2}) {
    std::vector<std::string> copy = records;
    copy.erase(copy.begin() + missing);
    EXPECT_TRUE(absl::IsDataLoss(Replay(copy, Ignore).status())) << missing;
  }
}

TEST(ReplayTest, RecordingsHaveGrammarsOfAllKinds) {
  FlightRecord record;
  uint32_t refused = 0, ended = 0, failed = 0, requests = 0, guessed = 0;
  for (uint64_t seed = 15; seed <= 18; ++seed) {
    bool has_grammar = false;  // the call before
    for (const std::string& bytes : RecordSome(seed)) {
      ASSERT_TRUE(ParseFlightRecord(bytes, &record).ok());
      if (record.kind != FlightKind::kAnswer) {
        has_grammar = record.kind == FlightKind::kAdd && record.has_grammar;
        continue;
      }
      if (has_grammar) ++(record.ok ? requests : refused);
      const auto has = [&](char answer) {
        return record.answers.find(answer) != std::string::npos;
      };
      ended += has('\1');
      failed += has(static_cast<char>(absl::StatusCode::kInvalidArgument));
      guessed += has(64 + 1) || has(64 + 2);
    }
  }
  EXPECT_GT(requests, 10u);
  EXPECT_GT(refused, 0u);
  EXPECT_GT(ended, 3u);
  EXPECT_GT(failed, 1u);
  EXPECT_GT(guessed, 0u);
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
      EXPECT_EQ(report->skipped + visited, NumCalls(records));
      EXPECT_LT(report->skipped, records.size() / 2);
      EXPECT_EQ(began, 1u);
      EXPECT_GE(report->key_frames, 1u);
      EXPECT_GT(report->steps, 100u);
    }
  }
}

// Wherever its beginning and its end are cut off.
TEST(ReplayTest, EveryPieceWithAKeyFrameReplays) {
  const std::vector<std::string> all =
      RecordSome(3, {.policy = "vtc", .ring_bytes = 256 << 10, .key_frames = true});
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
  const testing::RecordOptions options{
      .policy = "lpm", .ring_bytes = 160 << 10, .key_frames = true, .requests = UINT64_MAX};
  std::mt19937_64 random(4);
  for (int round = 0; round < 25; ++round) {
    auto segment = Segment::Create("replay-test", options.ring_bytes);
    ASSERT_TRUE(segment.ok());
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Record(static_cast<uint64_t>(round), options, *segment);
      _exit(1);  // not before it is killed
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
    ASSERT_TRUE(records.ok()) << records.status();
    const auto report = Replay(*records, Ignore);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->difference, "");
    EXPECT_EQ(report->ended_in.empty(), !IsCall(KindOf(records->back())));
    EXPECT_TRUE(report->from_key_frame);
  }
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
      RecordSome(6, {.ring_bytes = 2 << 20, .key_frames = true, .long_prompt = 540'000});
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

}  // namespace
}  // namespace flotilla
