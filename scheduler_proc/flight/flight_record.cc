#include "scheduler_proc/flight/flight_record.h"

#include "scheduler_proc/core/field_archive.h"

namespace flotilla {
namespace {

constexpr uint8_t kFlightRecordVersion = 9;

// A result's, all rows together.
constexpr uint64_t kMostPromptLogprobs = 1 << 20, kMostEmbeddingFloats = 1 << 24;

// Appends numbers, 7 bits a byte, the low ones first.
class Packer {
 public:
  static constexpr size_t kMostBytes = 5;  // of a number below 2^35

  Packer(size_t most_numbers, std::string* out) : out_(*out), at_(out->size()) {
    out_.resize(at_ + most_numbers * kMostBytes);
  }
  ~Packer() { out_.resize(at_); }
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;
  void Put(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_[at_++] = static_cast<char>(value | 0x80);
    out_[at_++] = static_cast<char>(value);
  }

 private:
  std::string& out_;
  size_t at_;
};

// A number of at most `bits`, in its one spelling.
bool Unpack(WireReader* in, uint32_t bits, uint64_t* value) {
  *value = 0;
  for (uint32_t shift = 0; shift < 7 * Packer::kMostBytes; shift += 7) {
    const auto byte = in->Get<uint8_t>();
    *value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return in->ok() && (shift == 0 || byte != 0) && *value >> bits == 0;
  }
  return false;
}
bool Unpack(WireReader* in, uint32_t* value) {
  uint64_t wide = 0;
  if (!Unpack(in, 32, &wide)) return false;
  *value = static_cast<uint32_t>(wide);
  return true;
}

void PutIds(const std::vector<int32_t>& ids, std::string* out) {
  Packer packer(1 + ids.size(), out);
  packer.Put(ids.size());
  for (const int32_t id : ids) packer.Put(static_cast<uint32_t>(id));
}

bool GetIds(WireReader* in, std::vector<int32_t>* ids) {
  ids->clear();
  uint32_t count = 0, id = 0;
  if (!Unpack(in, &count) || count > in->remaining()) return false;
  ids->reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (!Unpack(in, &id)) return false;
    ids->push_back(static_cast<int32_t>(id));
  }
  return true;
}

// How far a slot is from the one after the last row's, small numbers of either sign, and whether
// the row has more than a token; the token, from -1 on; what more there is, a draft's tokens last.
void PutRows(const std::vector<RowResult>& rows, std::string* out) {
  size_t num_accepted = 0;
  for (const RowResult& row : rows) num_accepted += row.accepted.size();
  Packer packer(1 + rows.size() * 6 + num_accepted, out);
  packer.Put(rows.size());
  uint32_t expected = 0;
  for (const RowResult& row : rows) {
    const uint32_t far = row.slot - expected;
    const uint32_t folded = far << 1 ^ (far >> 31 == 0 ? 0 : UINT32_MAX);
    const bool more = row.prompt_start != 0 || !row.prompt_logprobs.empty() ||
                      !row.embedding.empty() || !row.accepted.empty();
    packer.Put(uint64_t{folded} << 1 | (more ? 1 : 0));
    packer.Put(static_cast<uint32_t>(row.token) + 1);
    expected = row.slot + 1;
    if (!more) continue;
    packer.Put(row.prompt_start);
    packer.Put(row.prompt_logprobs.size());
    packer.Put(row.embedding.size());
    packer.Put(row.accepted.size());
    for (const int32_t accepted : row.accepted) packer.Put(static_cast<uint32_t>(accepted));
  }
}

// Logprobs and embeddings are not kept: the core only counts them.
bool GetRows(WireReader* in, std::vector<RowResult>* rows) {
  uint32_t count = 0, expected = 0;
  if (!Unpack(in, &count) || count > in->remaining()) return false;
  uint64_t logprobs = 0, floats = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t head = 0;
    uint32_t token = 0, num_logprobs = 0, num_floats = 0, num_accepted = 0;
    if (!Unpack(in, 33, &head) || !Unpack(in, &token)) return false;
    RowResult& row = rows->emplace_back();
    const auto folded = static_cast<uint32_t>(head >> 1);
    row.slot = expected + (folded >> 1 ^ ((folded & 1) == 0 ? 0 : UINT32_MAX));
    row.token = static_cast<int32_t>(token - 1);
    expected = row.slot + 1;
    if ((head & 1) == 0) continue;
    if (!Unpack(in, &row.prompt_start) || !Unpack(in, &num_logprobs) || !Unpack(in, &num_floats) ||
        !Unpack(in, &num_accepted) || num_accepted > kMaxDraftTokens)
      return false;
    logprobs += num_logprobs;
    floats += num_floats;
    if (logprobs > kMostPromptLogprobs || floats > kMostEmbeddingFloats ||
        (row.prompt_start == 0 && num_logprobs == 0 && num_floats == 0 && num_accepted == 0))
      return false;
    for (; num_accepted > 0; --num_accepted) {
      if (!Unpack(in, &token)) return false;
      row.accepted.push_back(static_cast<int32_t>(token));
    }
    row.prompt_logprobs.resize(num_logprobs);
    row.embedding.resize(num_floats);
  }
  return true;
}

bool GetResult(WireReader* in, StepResult* result) {
  *result = StepResult();
  result->step_id = in->Get<uint64_t>();
  result->epoch = in->Get<uint32_t>();
  result->start_ns = in->Get<int64_t>();
  result->end_ns = in->Get<int64_t>();
  return GetRows(in, &result->rows) && IsTime(result->start_ns) && IsTime(result->end_ns);
}

constexpr bool HasTime(FlightKind kind) {
  return IsCall(kind) && kind != FlightKind::kBeginEpoch && kind != FlightKind::kAbort;
}

// What a kind has; what is packed is written apart.
template <typename Archive, typename Record>
void KindFields(Archive& field, Record& r) {
  if (HasTime(r.kind)) field(r.now_ns);
  switch (r.kind) {
    case FlightKind::kConfig:
      return ConfigFields(field, r.config);
    case FlightKind::kBeginEpoch:
      return field(r.epoch), field(r.num_pages);
    case FlightKind::kAdd:
      field(r.has_grammar);
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
      return field(r.parts_left), field(r.snapshot);
    case FlightKind::kKeyFramePart:
      return field(r.parts_left), field(r.snapshot);
    case FlightKind::kAnswer:
      field(r.ok), field(r.step_id), field(r.plan_hash);
      return field(r.answers);
  }
}

}  // namespace

void BuildFlightRecord(const FlightRecord& record, std::string* bytes) {
  if (record.kind == FlightKind::kResult)
    return BuildResultRecord(record.result, record.now_ns, bytes);
  bytes->clear();
  WireWriter out(bytes);
  FieldSaver field(bytes);
  out.Put(kFlightRecordVersion);
  out.Put(record.kind);
  KindFields(field, record);
  if (record.kind != FlightKind::kAdd) return;
  PutIds(record.spec.prompt_ids, bytes);
  PutIds(record.spec.resumed_ids, bytes);
}

void BuildResultRecord(const StepResult& result, int64_t now_ns, std::string* bytes) {
  bytes->clear();
  WireWriter out(bytes);
  out.Put(kFlightRecordVersion);
  out.Put(FlightKind::kResult);
  out.Put(now_ns);
  out.Put(result.step_id);
  out.Put(result.epoch);
  out.Put(result.start_ns);
  out.Put(result.end_ns);
  PutRows(result.rows, bytes);
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
  if (record->kind < FlightKind::kConfig || record->kind > FlightKind::kKeyFramePart) {
    return broken("unknown kind");
  }
  FieldLoader field(&in);
  record->now_ns = 0;
  record->ok = false;
  record->reason = Finish::kNone;
  KindFields(field, *record);
  bool good = IsTime(record->now_ns) && record->reason <= Finish::kError;
  if (record->kind == FlightKind::kResult) good = good && GetResult(&in, &record->result);
  if (record->kind == FlightKind::kAdd) {
    good = good && GetIds(&in, &record->spec.prompt_ids) && GetIds(&in, &record->spec.resumed_ids);
  }
  if (!good || !field.good() || !in.AtEnd()) return broken("malformed");
  return OkStatus();
}

}  // namespace flotilla
