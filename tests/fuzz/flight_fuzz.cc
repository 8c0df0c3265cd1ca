// libFuzzer: any flight recording, as the launcher finds it in shared memory and as `flotilla
// replay` reads it from a file. Records that are taken have one spelling, and so have the states in
// key frames, which the core goes on from; a ring yields no more than it holds.
//
// The first byte says which: the beginning of a segment, a list of records (fuzz_input.h), or what
// a process records.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "scheduler_proc/flight/flight_record.h"
#include "shm/flight_ring.h"
#include "tests/fakes/answer_plan.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

Segment* TheSegment() {
  static Segment* const segment = new Segment(*Segment::Create("flight-fuzz", kMinFlightRingBytes));
  return segment;
}

// What was written last is read back, as much as there is room for.
void WriteRing(fuzz::FuzzInput* input) {
  auto ring = FlightRingWriter::Attach(TheSegment());
  CHECK(ring.ok());
  std::vector<std::string> written;
  const uint32_t rounds = 1 + input->Get<uint8_t>();
  std::vector<std::string> pieces;
  while (!input->empty() && pieces.size() < 64) pieces.emplace_back(input->GetPiece().view());
  for (uint32_t round = 0; round < rounds; ++round)
    for (const std::string& piece : pieces)
      if (ring->Append(piece)) written.push_back(piece);
  const auto records = ReadFlightRing(*TheSegment());
  CHECK(records.ok() && records->size() <= written.size());
  CHECK(std::equal(records->rbegin(), records->rend(), written.rbegin()));
  if (ring->overwritten_bytes() == 0) CHECK(records->size() == written.size());
}

void ReadRing(std::string_view bytes) {
  Segment* const segment = TheSegment();
  std::memset(segment->data(), 0, segment->size());
  bytes.copy(static_cast<char*>(segment->data()), segment->size());
  const auto records = ReadFlightRing(*segment);
  if (!records.ok()) return;
  size_t total = 0;
  for (const std::string& record : *records) total += record.size();
  CHECK(total < segment->size());
}

// Answers the plan, if there is one, as workers would.
void Step(Scheduler* core, int64_t now_ns) {
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  if (core->plans_in_flight() > 0 || !core->PlanStep(now_ns, &plan)) return;
  core->OnResult(testing::AnswerPlan(plan, 0), now_ns, &outputs);
}

// A core out of a key frame that was taken does whatever is asked of it.
void RunKeyFrame(const FlightRecord& record) {
  constexpr int64_t kNowNs = 1'000'000'000;
  const SchedulerConfig& config = record.config;
  // What the flags allow takes too long to set up.
  if (config.max_queued_requests > 4096 || config.page_size > 4096) return;
  const auto core = Scheduler::Restore(config, record.snapshot);
  if (!core.ok()) {
    CHECK(absl::IsDataLoss(core.status()));
    return;
  }
  std::string again;
  (*core)->Save(&again);
  CHECK(again == record.snapshot);
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  (*core)->ExpireDeadlines(kNowNs, &outputs);
  (void)(*core)->PlanStep(kNowNs, &plan);
  CHECK_OK((*core)->CheckLedger());
  if ((*core)->epoch() == UINT32_MAX) return;
  (*core)->BeginEpoch((*core)->epoch() + 1, static_cast<uint32_t>((*core)->stats().total_pages));
  for (int i = 0; i < 4; ++i) Step(core->get(), kNowNs + i);
  for (const Scheduler::Progress& progress : (*core)->LiveRequests()) {
    (*core)->Abort(progress.spec.id, Finish::kAbort);
  }
  CHECK_OK((*core)->CheckLedger());
  CHECK(!(*core)->HasWork());
}

void ReadRecords(fuzz::FuzzInput* input) {
  FlightRecord record;
  std::string again;
  while (!input->empty()) {
    const fuzz::Piece piece = input->GetPiece();
    if (!ParseFlightRecord(piece.view(), &record).ok()) continue;
    BuildFlightRecord(record, &again);
    CHECK(again == piece.view());
    if (record.kind == FlightKind::kKeyFrame && record.parts_left == 0) RunKeyFrame(record);
  }
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  switch (input.Get<uint8_t>() % 3) {
    case 0:
      ReadRing(input.Rest().view());
      break;
    case 1:
      ReadRecords(&input);
      break;
    case 2:
      WriteRing(&input);
      break;
  }
  return 0;
}
