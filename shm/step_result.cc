#include "shm/step_result.h"

#include <cmath>

#include "common/base/wire.h"

namespace flotilla {
namespace {

constexpr uint32_t kResultMagic = 0x524c5446;  // "FTLR"
constexpr uint32_t kMaxMessageBytes = 64 * 1024;
constexpr uint32_t kMaxStatusCode = 16;  // absl::StatusCode::kUnauthenticated
// The smallest encodings: a hostile count is compared with what is left before memory is taken.
constexpr uint64_t kMinRowBytes = 28;
constexpr uint64_t kMinPositionBytes = 16;

static_assert(sizeof(TokenLogprob) == 8);

Status Bad(absl::string_view field) {
  return absl::InvalidArgumentError(absl::StrCat("step result: ", field));
}

bool IsToken(int32_t token, uint32_t vocab_size) {
  return token >= 0 && static_cast<uint32_t>(token) < vocab_size;
}

void PutPosition(const PositionLogprobs& position, WireWriter* out) {
  out->Put(position.token);
  out->Put(position.logprob);
  out->Put(position.rank);
  out->PutSpan(std::span<const TokenLogprob>(position.top));
}

Status GetPosition(uint32_t vocab_size, WireReader* in, PositionLogprobs* position) {
  position->token = in->Get<int32_t>();
  position->logprob = in->Get<float>();
  position->rank = in->Get<uint32_t>();
  if (!in->GetSpanInto(kMaxLogprobs, &position->top)) return Bad("logprobs.top");
  if (!IsToken(position->token, vocab_size)) return Bad("logprobs.token");
  if (std::isnan(position->logprob)) return Bad("logprobs.logprob");
  if (position->rank == 0 || position->rank > vocab_size) return Bad("logprobs.rank");
  for (const TokenLogprob& entry : position->top)
    if (!IsToken(entry.token, vocab_size) || std::isnan(entry.logprob)) return Bad("logprobs.top");
  return OkStatus();
}

Status GetRow(uint32_t max_slots, uint32_t vocab_size, WireReader* in, RowResult* row) {
  row->slot = in->Get<uint32_t>();
  row->token = in->Get<int32_t>();
  const uint32_t has_logprobs = in->Get<uint32_t>();
  row->prompt_start = in->Get<uint32_t>();
  const uint32_t num_prompt = in->Get<uint32_t>();
  if (!in->ok()) return Bad("rows: truncated");
  if (row->slot >= max_slots) return Bad("rows.slot");
  if (row->token != -1 && !IsToken(row->token, vocab_size)) return Bad("rows.token");
  if (has_logprobs > 1) return Bad("rows.has_logprobs");
  row->has_logprobs = has_logprobs == 1;
  row->logprobs = {};
  if (row->has_logprobs) RETURN_IF_ERROR(GetPosition(vocab_size, in, &row->logprobs));
  if (!in->GetSpanInto(kMaxDraftTokens, &row->accepted)) return Bad("rows.accepted");
  for (const int32_t token : row->accepted)
    if (row->token == -1 || !IsToken(token, vocab_size)) return Bad("rows.accepted");
  row->accepted_logprobs.resize(row->has_logprobs ? row->accepted.size() : 0);
  for (PositionLogprobs& position : row->accepted_logprobs)
    RETURN_IF_ERROR(GetPosition(vocab_size, in, &position));
  if (num_prompt * kMinPositionBytes > in->remaining()) return Bad("rows.prompt_logprobs");
  row->prompt_logprobs.resize(num_prompt);
  for (PositionLogprobs& position : row->prompt_logprobs)
    RETURN_IF_ERROR(GetPosition(vocab_size, in, &position));
  if (!in->GetSpanInto(in->remaining(), &row->embedding)) return Bad("rows.embedding");
  for (float value : row->embedding)
    if (!std::isfinite(value)) return Bad("rows.embedding");
  return OkStatus();
}

}  // namespace

void BuildStepResult(const StepResult& result, std::string* frame) {
  frame->clear();
  WireWriter out(frame);
  out.Put(kResultMagic);
  out.Put(kStepResultVersion);
  out.Put(result.step_id);
  out.Put(result.epoch);
  out.Put(result.code);
  out.Put(result.start_ns);
  out.Put(result.end_ns);
  out.Put(static_cast<uint32_t>(result.cuda_graph));
  out.PutBytes(std::string_view(result.message).substr(0, kMaxMessageBytes));
  out.Put(static_cast<uint32_t>(result.rows.size()));
  for (const RowResult& row : result.rows) {
    out.Put(row.slot);
    out.Put(row.token);
    out.Put(static_cast<uint32_t>(row.has_logprobs));
    out.Put(row.prompt_start);
    out.Put(static_cast<uint32_t>(row.prompt_logprobs.size()));
    if (row.has_logprobs) PutPosition(row.logprobs, &out);
    out.PutSpan(std::span<const int32_t>(row.accepted));
    for (const PositionLogprobs& position : row.accepted_logprobs) PutPosition(position, &out);
    for (const PositionLogprobs& position : row.prompt_logprobs) PutPosition(position, &out);
    out.PutSpan(std::span<const float>(row.embedding));
  }
}

Status ParseStepResult(std::string_view frame, uint32_t max_slots, uint32_t vocab_size,
                       StepResult* result) {
  WireReader in(frame);
  if (in.Get<uint32_t>() != kResultMagic) return Bad("magic");
  if (in.Get<uint32_t>() != kStepResultVersion) return Bad("version");
  result->step_id = in.Get<uint64_t>();
  result->epoch = in.Get<uint32_t>();
  result->code = in.Get<uint32_t>();
  result->start_ns = in.Get<int64_t>();
  result->end_ns = in.Get<int64_t>();
  const uint32_t cuda_graph = in.Get<uint32_t>();
  const std::string_view message = in.GetBytes();
  const uint32_t num_rows = in.Get<uint32_t>();
  if (!in.ok()) return Bad("truncated header");
  if (result->code > kMaxStatusCode) return Bad("code");
  if (cuda_graph > 1) return Bad("cuda_graph");
  result->cuda_graph = cuda_graph == 1;
  if (message.size() > kMaxMessageBytes) return Bad("message");
  result->message.assign(message.data(), message.size());
  if (num_rows > max_slots || num_rows * kMinRowBytes > in.remaining()) return Bad("rows");
  result->rows.resize(num_rows);
  for (RowResult& row : result->rows) RETURN_IF_ERROR(GetRow(max_slots, vocab_size, &in, &row));
  if (!in.AtEnd()) return Bad("trailing bytes");
  return OkStatus();
}

}  // namespace flotilla
