#include "scheduler_proc/flight_record.h"

#include <span>
#include <type_traits>
#include <vector>

#include "common/base/wire.h"

namespace flotilla {
namespace {

constexpr uint32_t kFlightRecordVersion = 2;

// One list of fields serves both directions.
class Saver {
 public:
  explicit Saver(std::string* out) : out_(out) {}
  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      out_.PutBytes(value);
    } else if constexpr (std::is_trivially_copyable_v<T>) {
      out_.Put(value);
    } else {
      out_.PutSpan(std::span(value.data(), value.size()));
    }
  }

 private:
  WireWriter out_;
};

class Loader {
 public:
  explicit Loader(WireReader* in) : in_(*in) {}
  bool good() const { return good_; }
  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      value.assign(in_.GetBytes());
    } else if constexpr (std::is_same_v<T, bool>) {
      const auto byte = in_.Get<uint8_t>();
      if (byte > 1) good_ = false;
      value = byte == 1;
    } else if constexpr (std::is_trivially_copyable_v<T>) {
      value = in_.Get<T>();
    } else {
      in_.GetSpanInto(UINT32_MAX, &value);
    }
  }

 private:
  WireReader& in_;
  bool good_ = true;  // no flag is neither 0 nor 1
};

// A field that is added must be added here: then these sizes change.
static_assert(sizeof(SchedulerConfig) == 224 && sizeof(ReqSpec) == 224);

template <typename Archive, typename Config>
void Fields(Archive&& field, Config& c) {
  field(c.num_pages), field(c.page_size), field(c.max_running_requests);
  field(c.max_queued_requests), field(c.chunked_prefill_size), field(c.max_prefill_tokens);
  field(c.context_length), field(c.vocab_size), field(c.enable_mixed_chunk);
  field(c.max_plans_in_flight), field(c.max_step_ns), field(c.enable_prefix_cache);
  field(c.eviction_policy), field(c.schedule_policy), field(c.schedule_max_overtakes);
  field(c.schedule_random_seed), field(c.vtc_input_weight), field(c.vtc_output_weight);
  field(c.priority_scheduling_preemption_threshold), field(c.init_new_token_ratio);
  field(c.min_new_token_ratio_factor), field(c.new_token_ratio_decay_steps);
  field(c.schedule_conservativeness), field(c.clip_max_new_tokens), field(c.eos_ids);
}

template <typename Archive, typename Spec>
void SpecFields(Archive&& field, Spec& s) {
  field(s.id), field(s.prompt_ids), field(s.resumed_ids), field(s.sampling), field(s.logit_bias);
  field(s.max_new_tokens), field(s.pooling), field(s.min_new_tokens), field(s.ignore_eos),
      field(s.stop_token_ids);
  field(s.cache_salt), field(s.priority), field(s.arrival_ns), field(s.deadline_ns);
}

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
void CommonFields(Archive&& field, Record& r) {
  field(r.now_ns), field(r.ok), field(r.id), field(r.reason), field(r.num_tokens), field(r.epoch);
  field(r.num_pages), field(r.step_id), field(r.plan_hash);
}

}  // namespace

void BuildFlightRecord(const FlightRecord& record, std::string* bytes) {
  bytes->clear();
  WireWriter out(bytes);
  out.Put(kFlightRecordVersion);
  out.Put(record.kind);
  CommonFields(Saver(bytes), record);
  if (record.kind == FlightKind::kConfig) Fields(Saver(bytes), record.config);
  if (record.kind == FlightKind::kAdd) SpecFields(Saver(bytes), record.spec);
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
  if (record->kind < FlightKind::kConfig || record->kind > FlightKind::kResult) {
    return broken("unknown kind");
  }
  Loader loader(&in);
  CommonFields(loader, *record);
  bool good = true;
  if (record->kind == FlightKind::kConfig) Fields(loader, record->config);
  if (record->kind == FlightKind::kAdd) SpecFields(loader, record->spec);
  if (record->kind == FlightKind::kResult) good = GetResult(&in, &record->result);
  if (!good || !loader.good() || !in.AtEnd()) return broken("malformed");
  return OkStatus();
}

}  // namespace flotilla
