#include <cstring>
#include <set>

#include "common/base/check.h"
#include "scheduler_proc/flight/flight_record.h"
#include "shm/flight_ring.h"
#include "tests/fakes/answer_plan.h"
#include "tests/fuzz/make_seeds.h"

namespace flotilla::fuzz {
namespace {

std::string Built(const FlightRecord& record) {
  std::string bytes;
  BuildFlightRecord(record, &bytes);
  return bytes;
}

std::vector<std::string> Records() {
  FlightRecord record;
  record.config.num_pages = 8;
  record.config.eos_ids = {2};
  std::vector<std::string> records = {Built(record)};
  record.kind = FlightKind::kBeginEpoch;
  record.epoch = 1;
  records.push_back(Built(record));
  record.kind = FlightKind::kAdd;
  record.ok = true;
  record.spec.prompt_ids = {1, 2, 3};
  record.spec.logit_bias = {{1, 1.0f}};
  record.spec.cache_salt = "tenant";
  record.has_grammar = true;
  records.push_back(Built(record));
  record.kind = FlightKind::kAnswer;
  record.answers = std::string("\0\3\1", 3);
  records.push_back(Built(record));
  record.answers.clear();
  record.kind = FlightKind::kAdd;
  record.has_grammar = false;
  record.spec.pooling = Pooling::kMean;
  records.push_back(Built(record));
  record.kind = FlightKind::kAbort;
  records.push_back(Built(record));
  record.kind = FlightKind::kTruncate;
  records.push_back(Built(record));
  record.kind = FlightKind::kExpire;
  records.push_back(Built(record));
  record.kind = FlightKind::kPlan;
  records.push_back(Built(record));
  record.kind = FlightKind::kAnswer;
  record.step_id = 1;
  record.plan_hash = 99;
  records.push_back(Built(record));
  record.kind = FlightKind::kResult;
  record.result.rows.resize(2);
  record.result.rows[0].embedding.resize(4);
  record.result.rows[1].prompt_logprobs.resize(3);
  record.result.rows[1].slot = 200;
  record.result.rows[1].token = 150'000;
  records.push_back(Built(record));
  record.kind = FlightKind::kKeyFrame;
  record.parts_left = 1;
  record.snapshot = "part";
  records.push_back(Built(record));
  record.kind = FlightKind::kKeyFramePart;
  record.parts_left = 0;
  records.push_back(Built(record));
  return records;
}

// A core that has requests which wait, run, and have ended in flight; plans in flight; a tree with
// a split node, and tenants.
FlightRecord KeyFrame(const std::string& policy) {
  FlightRecord record;
  record.kind = FlightKind::kKeyFrame;
  record.ok = true;
  SchedulerConfig& config = record.config;
  config.num_pages = 24;
  config.page_size = 2;
  config.max_running_requests = 3;
  config.max_queued_requests = 16;
  config.chunked_prefill_size = 8;
  config.context_length = 40;
  config.vocab_size = 300;
  config.speculative_num_draft_tokens = 4;
  config.eos_ids = {2};
  config.schedule_policy = policy;
  config.eviction_policy = policy == "vtc" ? "lfu" : "lru";
  Scheduler core(config);
  core.BeginEpoch(1, config.num_pages);
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  for (ReqId id = 1; id <= 8; ++id) {
    ReqSpec spec;
    spec.id = id;
    spec.prompt_ids = {7, 8, 9, 10, 11, static_cast<int32_t>(id), 13};
    if (id == 4) spec.prompt_ids[1] = 99;
    spec.max_new_tokens = static_cast<uint32_t>(2 + id % 5);
    spec.cache_salt = id % 3 == 0 ? "a" : "";
    spec.deadline_ns = id == 7 ? 5000 : INT64_MAX;
    CHECK_OK(core.Add(spec, 100));
    if (!core.PlanStep(200, &plan)) continue;
    core.OnResult(testing::AnswerPlan(plan, 5), 300, &outputs);
  }
  while (core.PlanStep(400, &plan)) continue;
  const std::vector<Scheduler::Progress> live = core.LiveRequests();
  core.Abort(live[0].spec.id, Finish::kAbort);
  core.Save(&record.snapshot);
  CHECK_OK(Scheduler::Restore(config, record.snapshot).status());
  return record;
}

// Good ones; and of those in which one byte is another, one for each reason to refuse it.
void SaveKeyFrames() {
  for (const char* policy : {"vtc", "random", "dfs-weight"}) {
    Save("flight", StrCat("key-frame-", policy),
         Raw<uint8_t>(1) + Pieces({Built(KeyFrame(policy))}));
  }
  const FlightRecord good = KeyFrame("vtc");
  std::set<std::string> reasons;
  for (size_t i = 0; i < good.snapshot.size(); ++i) {
    FlightRecord record = good;
    record.snapshot[i] = static_cast<char>(record.snapshot[i] ^ (i % 2 == 0 ? 0xff : 1));
    std::string reason(Scheduler::Restore(record.config, record.snapshot).status().message());
    std::erase_if(reason, [](char c) { return c >= '0' && c <= '9'; });
    if (!reasons.insert(reason).second) continue;
    Save("flight", StrCat("key-frame-", i), Raw<uint8_t>(1) + Pieces({Built(record)}));
  }
}

// The first bytes of a ring, after `rounds` times the records.
std::string Ring(int rounds) {
  const auto segment = Segment::Create("flight-seed", kMinFlightRingBytes);
  CHECK_OK(segment.status());
  auto ring = FlightRingWriter::Attach(&*segment);
  CHECK_OK(ring.status());
  for (int i = 0; i < rounds; ++i)
    for (const std::string& record : Records()) CHECK(ring->Append(record));
  return {static_cast<const char*>(segment->data()), 4000};
}

// The same ring as if it had gone around many times: what a position counts is far beyond the ring.
std::string OldRing() {
  constexpr size_t kOldestAt = 64, kWrittenAt = 128;  // FlightRingWriter::Header
  std::string bytes = Ring(1);
  uint64_t capacity = 0;
  std::memcpy(&capacity, bytes.data() + 8, sizeof(capacity));
  for (const size_t at : {kOldestAt, kWrittenAt}) {
    uint64_t position = 0;
    std::memcpy(&position, bytes.data() + at, sizeof(position));
    position += 1000 * capacity;
    std::memcpy(bytes.data() + at, &position, sizeof(position));
  }
  return bytes;
}

}  // namespace

void SaveFlights() {
  SaveKeyFrames();
  Save("flight", "records", Raw<uint8_t>(1) + Pieces(Records()));
  Save("flight", "written", Raw<uint8_t>(2) + Raw<uint8_t>(255) + Pieces(Records()));
  Save("flight", "too-long",
       Raw<uint8_t>(2) + Raw<uint8_t>(0) + Raw<uint16_t>(20'000) + std::string(20'000, 'x'));
  std::string unknown = Records()[0], future = unknown;
  unknown[1] = 99;
  future[0] = 99;
  Save("flight", "strange", Raw<uint8_t>(1) + Pieces({unknown, future}));
  Save("flight", "empty", Raw<uint8_t>(0) + Ring(0));
  Save("flight", "ring", Raw<uint8_t>(0) + Ring(1));
  Save("flight", "old-ring", Raw<uint8_t>(0) + OldRing());
  Save("flight", "around", Raw<uint8_t>(0) + Ring(200));
}

}  // namespace flotilla::fuzz
