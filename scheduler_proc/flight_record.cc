#include "scheduler_proc/flight_record.h"

#include "scheduler_proc/core/field_archive.h"

namespace flotilla {
namespace {

constexpr uint32_t kFlightRecordVersion = 6;

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

// The small fields, the same for all kinds.
template <typename Archive, typename Record>
void CommonFields(Archive& field, Record& r) {
  field(r.now_ns), field(r.ok), field(r.id), field(r.reason), field(r.num_tokens), field(r.epoch);
  field(r.num_pages), field(r.step_id), field(r.plan_hash);
}

// What a kind has beside them; a result is written apart.
template <typename Archive, typename Record>
void KindFields(Archive& field, Record& r) {
  if (r.kind == FlightKind::kConfig || r.kind == FlightKind::kKeyFrame) {
    ConfigFields(field, r.config);
  }
  if (r.kind == FlightKind::kKeyFrame) field(r.snapshot);
  if (r.kind == FlightKind::kGrammar) field(r.answers);
  if (r.kind != FlightKind::kAdd) return;
  field(r.spec.prompt_ids), field(r.spec.resumed_ids), field(r.has_grammar);
  SpecFields(field, r.spec);
}

}  // namespace

void BuildFlightRecord(const FlightRecord& record, std::string* bytes) {
  bytes->clear();
  WireWriter out(bytes);
  FieldSaver field(bytes);
  out.Put(kFlightRecordVersion);
  out.Put(record.kind);
  CommonFields(field, record);
  KindFields(field, record);
  if (record.kind == FlightKind::kResult) PutResult(record.result, &out);
}

Status ParseFlightRecord(std::string_view bytes, FlightRecord* record) {
  WireReader in(bytes);
  const auto broken = [](const char* what) {
    return absl::DataLossError(StrCat("flight record: ", what));
  };
  const uint32_t version = in.Get<uint32_t>();
  if (in.ok() && version != kFlightRecordVersion) {
    return broken("of another version of Flotilla; use the one that recorded it");
  }
  record->kind = in.Get<FlightKind>();
  if (record->kind < FlightKind::kConfig || record->kind > FlightKind::kGrammar) {
    return broken("unknown kind");
  }
  FieldLoader field(&in);
  CommonFields(field, *record);
  KindFields(field, *record);
  bool good = IsTime(record->now_ns);
  if (record->kind == FlightKind::kResult) {
    good = good && GetResult(&in, &record->result) && IsTime(record->result.start_ns) &&
           IsTime(record->result.end_ns);
  }
  if (!good || !field.good() || !in.AtEnd()) return broken("malformed");
  return OkStatus();
}

}  // namespace flotilla
