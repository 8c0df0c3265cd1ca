#include <cstring>

#include "common/base/check.h"
#include "scheduler_proc/flight_record.h"
#include "shm/flight_ring.h"
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
  records.push_back(Built(record));
  record.spec.pooling = Pooling::kMean;
  records.push_back(Built(record));
  record.kind = FlightKind::kPlan;
  record.step_id = 1;
  record.plan_hash = 99;
  records.push_back(Built(record));
  record.kind = FlightKind::kResult;
  record.result.rows.resize(2);
  record.result.rows[0].embedding.resize(4);
  record.result.rows[1].prompt_logprobs.resize(3);
  records.push_back(Built(record));
  return records;
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

}  // namespace

void SaveFlights() {
  Save("flight", "records", Raw<uint8_t>(1) + Pieces(Records()));
  Save("flight", "written", Raw<uint8_t>(2) + Raw<uint8_t>(255) + Pieces(Records()));
  Save("flight", "too-long",
       Raw<uint8_t>(2) + Raw<uint8_t>(0) + Raw<uint16_t>(20'000) + std::string(20'000, 'x'));
  std::string unknown = Records()[0], future = unknown;
  unknown[4] = 99;
  future[0] = 99;
  Save("flight", "strange", Raw<uint8_t>(1) + Pieces({unknown, future}));
  Save("flight", "empty", Raw<uint8_t>(0) + Ring(0));
  Save("flight", "ring", Raw<uint8_t>(0) + Ring(1));
  Save("flight", "around", Raw<uint8_t>(0) + Ring(200));
}

}  // namespace flotilla::fuzz
