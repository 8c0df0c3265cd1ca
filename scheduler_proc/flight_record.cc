#include "scheduler_proc/flight_record.h"

#include "scheduler_proc/core/field_archive.h"

namespace flotilla {
namespace {

constexpr uint8_t kFlightRecordVersion = 6;

struct RowRecord {
  uint32_t slot = 0;
  int32_t token = -1;
  uint32_t prompt_start = 0;
  uint32_t num_prompt_logprobs = 0;
  uint32_t embedding_size = 0;
};

void PutResult(const StepResult& result, WireWriter* out) {
  out->Put(result.step_id);
  out->Put(result.epoch);
  out->Put(result.start_ns);
  out->Put(result.end_ns);
  out->Put(static_cast<uint32_t>(result.rows.size()));
  for (const RowResult& row : result.rows) {
    out->Put(RowRecord{row.slot, row.token, row.prompt_start,
                       static_cast<uint32_t>(row.prompt_logprobs.size()),
                       static_cast<uint32_t>(row.embedding.size())});
  }
}

// Logprobs and embeddings are not kept: the core only counts them.
bool GetResult(WireReader* in, StepResult* result) {
  *result = StepResult();
  result->step_id = in->Get<uint64_t>();
  result->epoch = in->Get<uint32_t>();
  result->start_ns = in->Get<int64_t>();
  result->end_ns = in->Get<int64_t>();
  const auto rows = in->GetSpan<RowRecord>();
  for (const RowRecord& row : rows) {
    if (row.num_prompt_logprobs > (1u << 20) || row.embedding_size > (1u << 20)) return false;
    RowResult& out = result->rows.emplace_back();
    out.slot = row.slot;
    out.token = row.token;
    out.prompt_start = row.prompt_start;
    out.prompt_logprobs.resize(row.num_prompt_logprobs);
    out.embedding.resize(row.embedding_size);
  }
  return true;
}

constexpr bool HasTime(FlightKind kind) {
  return IsCall(kind) && kind != FlightKind::kBeginEpoch && kind != FlightKind::kAbort;
}

// What a kind has; a result is written apart.
template <typename Archive, typename Record>
void KindFields(Archive& field, Record& r) {
  if (HasTime(r.kind)) field(r.now_ns);
  switch (r.kind) {
    case FlightKind::kConfig:
      return ConfigFields(field, r.config);
    case FlightKind::kBeginEpoch:
      return field(r.epoch), field(r.num_pages);
    case FlightKind::kAdd:
      field(r.spec.prompt_ids), field(r.spec.resumed_ids), field(r.has_grammar);
      return SpecFields(field, r.spec);
    case FlightKind::kAbort:
      return field(r.id), field(r.reason);
    case FlightKind::kTruncate:
      return field(r.id), field(r.num_tokens);
    case FlightKind::kExpire:
    case FlightKind::kPlan:
    case FlightKind::kResult:
      return;
    case FlightKind::kKeyFrame:
      field(r.ok), ConfigFields(field, r.config);
      return field(r.snapshot);
    case FlightKind::kAnswer:
      field(r.ok), field(r.step_id), field(r.plan_hash);
      return field(r.answers);
  }
}

}  // namespace

const char* CallName(FlightKind kind) {
  switch (kind) {
    case FlightKind::kBeginEpoch:
      return "BeginEpoch";
    case FlightKind::kAdd:
      return "Add";
    case FlightKind::kAbort:
      return "Abort";
    case FlightKind::kTruncate:
      return "Truncate";
    case FlightKind::kExpire:
      return "ExpireDeadlines";
    case FlightKind::kPlan:
      return "PlanStep";
    case FlightKind::kResult:
      return "OnResult";
    default:
      return "no call";
  }
}

void BuildFlightRecord(const FlightRecord& record, std::string* bytes) {
  bytes->clear();
  WireWriter out(bytes);
  FieldSaver field(bytes);
  out.Put(kFlightRecordVersion);
  out.Put(record.kind);
  KindFields(field, record);
  if (record.kind == FlightKind::kResult) PutResult(record.result, &out);
}

Status ParseFlightRecord(std::string_view bytes, FlightRecord* record) {
  WireReader in(bytes);
  const auto broken = [](const char* what) {
    return absl::DataLossError(StrCat("flight record: ", what));
  };
  const uint8_t version = in.Get<uint8_t>();
  if (in.ok() && version != kFlightRecordVersion) {
    return broken("of another version of Flotilla; use the one that recorded it");
  }
  record->kind = in.Get<FlightKind>();
  if (record->kind < FlightKind::kConfig || record->kind > FlightKind::kAnswer) {
    return broken("unknown kind");
  }
  FieldLoader field(&in);
  record->now_ns = 0;
  record->ok = false;
  record->reason = Finish::kNone;
  KindFields(field, *record);
  bool good = IsTime(record->now_ns) && record->reason <= Finish::kError;
  if (record->kind == FlightKind::kResult) {
    good = good && GetResult(&in, &record->result) && IsTime(record->result.start_ns) &&
           IsTime(record->result.end_ns);
  }
  if (!good || !field.good() || !in.AtEnd()) return broken("malformed");
  return OkStatus();
}

}  // namespace flotilla
