#include "shm/step_plan.h"

#include <bitset>
#include <cmath>
#include <cstring>

#include "common/base/wire.h"
#include "shm/step_result.h"

namespace flotilla {
namespace {

constexpr uint32_t kPlanMagic = 0x504c5446;  // "FTLP"
constexpr uint32_t kMaxPlanSlots = 65536;
constexpr uint32_t kEmbedFlags = kRowPoolMean | kRowEmbed;
constexpr uint32_t kKnownRowFlags =
    kRowSample | kRowPromptLogprobs | kEmbedFlags | kRowMask | kRowVerify;

// Sent as they lie in memory: no padding, fixed-width members.
static_assert(sizeof(SamplingParams) == 48 && sizeof(PlanOpen) == 72 && sizeof(PlanRow) == 24 &&
              sizeof(LogitBias) == 8);

Status Bad(absl::string_view field, uint64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("step plan: ", field, " ", value));
}
Status Malformed(absl::string_view field) {
  return absl::InvalidArgumentError(absl::StrCat("step plan: truncated or too long at ", field));
}

// Each slot at most once, all below max_slots.
class SlotSet {
 public:
  explicit SlotSet(uint32_t max_slots) : max_slots_(max_slots) {}
  bool Add(uint32_t slot) {
    if (slot >= max_slots_ || seen_[slot]) return false;
    seen_[slot] = true;
    return true;
  }

 private:
  uint32_t max_slots_;
  std::bitset<kMaxPlanSlots> seen_;
};

bool GoodLogprobs(uint32_t n) { return n == kNoLogprobs || n <= kMaxLogprobs; }

// Comparisons are written so that NaN fails.
Status CheckSampling(const SamplingParams& params) {
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature))
    return absl::InvalidArgumentError("step plan: sampling.temperature");
  if (!(params.top_p > 0 && params.top_p <= 1))
    return absl::InvalidArgumentError("step plan: sampling.top_p");
  if (!(params.min_p >= 0 && params.min_p <= 1))
    return absl::InvalidArgumentError("step plan: sampling.min_p");
  if (!GoodLogprobs(params.num_logprobs)) return Bad("sampling.num_logprobs", params.num_logprobs);
  if (!GoodLogprobs(params.num_prompt_logprobs))
    return Bad("sampling.num_prompt_logprobs", params.num_prompt_logprobs);
  if (!(std::abs(params.presence_penalty) <= kMaxPenalty))
    return absl::InvalidArgumentError("step plan: sampling.presence_penalty");
  if (!(std::abs(params.frequency_penalty) <= kMaxPenalty))
    return absl::InvalidArgumentError("step plan: sampling.frequency_penalty");
  if (!(params.repetition_penalty >= kMinRepetitionPenalty &&
        params.repetition_penalty <= kMaxPenalty))
    return absl::InvalidArgumentError("step plan: sampling.repetition_penalty");
  return OkStatus();
}

bool IsToken(int32_t id, const StepPlanLimits& limits) {
  return id >= 0 && static_cast<uint32_t>(id) < limits.vocab_size;
}

Status CheckLogitBias(std::span<const LogitBias> entries, const StepPlanLimits& limits) {
  int32_t before = -1;
  for (const LogitBias& entry : entries) {
    if (entry.token <= before || !IsToken(entry.token, limits))
      return Bad("logit_bias.token", static_cast<uint32_t>(entry.token));
    if (!(std::abs(entry.bias) <= kMaxLogitBiasValue))
      return absl::InvalidArgumentError("step plan: logit_bias.bias");
    before = entry.token;
  }
  return OkStatus();
}

Status CheckOpens(const StepPlan& plan, const StepPlanLimits& limits) {
  SlotSet slots(limits.max_slots);
  uint64_t biases = 0, history = 0, stop_ids = 0;
  for (const PlanOpen& open : plan.opens) {
    if (!slots.Add(open.slot)) return Bad("opens.slot", open.slot);
    if (open.output_start > limits.max_positions)
      return Bad("opens.output_start", open.output_start);
    RETURN_IF_ERROR(CheckSampling(open.sampling));
    if (open.num_logit_bias > kMaxLogitBias)
      return Bad("opens.num_logit_bias", open.num_logit_bias);
    if (open.num_history > (open.sampling.has_penalties() ? limits.max_positions : 0))
      return Bad("opens.num_history", open.num_history);
    if (open.num_stop_ids > kMaxPlanStopIds) return Bad("opens.num_stop_ids", open.num_stop_ids);
    if (open.reserved != 0) return Bad("opens.reserved", open.reserved);
    biases += open.num_logit_bias;
    history += open.num_history;
    stop_ids += open.num_stop_ids;
  }
  if (biases != plan.logit_bias.size()) return Bad("logit_bias: the opens need", biases);
  if (history != plan.history.size()) return Bad("history: the opens need", history);
  if (stop_ids != plan.stop_ids.size()) return Bad("stop_ids: the opens need", stop_ids);
  std::span<const LogitBias> rest = plan.logit_bias;
  for (const PlanOpen& open : plan.opens) {
    RETURN_IF_ERROR(CheckLogitBias(rest.first(open.num_logit_bias), limits));
    rest = rest.subspan(open.num_logit_bias);
  }
  return OkStatus();
}

Status CheckRows(const StepPlan& plan, const StepPlanLimits& limits) {
  SlotSet slots(limits.max_slots);
  uint64_t tokens = 0, pages = 0, masks = 0;
  for (const PlanRow& row : plan.rows) {
    if (!slots.Add(row.slot)) return Bad("rows.slot", row.slot);
    if (row.num_tokens == 0 || row.num_tokens > limits.max_tokens)
      return Bad("rows.num_tokens", row.num_tokens);
    if (uint64_t{row.start_pos} + row.num_tokens > limits.max_positions)
      return Bad("rows.start_pos", row.start_pos);
    if (row.num_new_pages > limits.num_pages) return Bad("rows.num_new_pages", row.num_new_pages);
    if ((row.flags & ~kKnownRowFlags) != 0) return Bad("rows.flags", row.flags);
    if ((row.flags & kEmbedFlags) != 0 && (row.flags & ~kEmbedFlags) != 0)
      return Bad("rows.flags", row.flags);
    if ((row.flags & kRowMask) != 0 && (row.flags & kRowSample) == 0)
      return Bad("rows.flags: a mask without sampling", row.flags);
    if ((row.flags & kRowVerify) != 0 &&
        ((row.flags & ~kRowMask) != (kRowSample | kRowVerify) || row.start_pos == 0 ||
         row.num_tokens < 2 || row.num_tokens > 1 + kMaxDraftTokens))
      return Bad("rows.flags: a draft that can't be verified", row.flags);
    if (row.next_token < -1 || row.next_token >= static_cast<int64_t>(limits.vocab_size))
      return Bad("rows.next_token", static_cast<uint32_t>(row.next_token));
    tokens += row.num_tokens;
    pages += row.num_new_pages;
    masks += NumMasks(row);
  }
  if (tokens != plan.input_ids.size()) return Bad("input_ids: the rows need", tokens);
  if (pages != plan.new_pages.size()) return Bad("new_pages: the rows need", pages);
  const uint64_t mask_words = masks * MaskWords(limits.vocab_size);
  if (mask_words != plan.masks.size()) return Bad("masks: the rows need words", mask_words);
  return OkStatus();
}

Status CheckLists(const StepPlan& plan, const StepPlanLimits& limits) {
  size_t begin = 0;
  for (const PlanRow& row : plan.rows) {
    for (size_t i = 0; i < row.num_tokens; ++i) {
      const int32_t id = plan.input_ids[begin + i];
      const bool last_token = i == 0 && id == kLastToken && row.start_pos > 0;
      if (!last_token && !IsToken(id, limits)) return Bad("input_ids", static_cast<uint32_t>(id));
    }
    begin += row.num_tokens;
  }
  for (int32_t id : plan.history)
    if (!IsToken(id, limits)) return Bad("history", static_cast<uint32_t>(id));
  for (int32_t id : plan.stop_ids)
    if (!IsToken(id, limits)) return Bad("stop_ids", static_cast<uint32_t>(id));
  for (uint32_t page : plan.new_pages)
    if (page >= limits.num_pages) return Bad("new_pages", page);
  SlotSet slots(limits.max_slots);
  for (uint32_t slot : plan.closes)
    if (!slots.Add(slot)) return Bad("closes", slot);
  return OkStatus();
}

Status CheckPlan(const StepPlan& plan, const StepPlanLimits& limits) {
  if (plan.command != StepCommand::kReset && plan.num_pages != 0)
    return Bad("num_pages outside of a reset:", plan.num_pages);
  if (plan.command == StepCommand::kForward) {
    RETURN_IF_ERROR(CheckOpens(plan, limits));
    RETURN_IF_ERROR(CheckRows(plan, limits));
    return CheckLists(plan, limits);
  }
  if (!plan.opens.empty() || !plan.rows.empty() || !plan.input_ids.empty() ||
      !plan.new_pages.empty() || !plan.closes.empty() || !plan.logit_bias.empty() ||
      !plan.history.empty() || !plan.stop_ids.empty() || !plan.masks.empty())
    return absl::InvalidArgumentError("step plan: only a forward has slots, rows and pages");
  return OkStatus();
}

}  // namespace

void BuildStepPlan(const StepPlan& plan, std::string* frame) {
  frame->clear();
  WireWriter out(frame);
  out.Put(kPlanMagic);
  out.Put(kStepPlanVersion);
  out.Put(plan.step_id);
  out.Put(plan.epoch);
  out.Put(static_cast<uint32_t>(plan.command));
  out.Put(plan.num_pages);
  out.PutSpan(std::span<const PlanOpen>(plan.opens));
  out.PutSpan(std::span<const PlanRow>(plan.rows));
  out.PutSpan(std::span<const int32_t>(plan.input_ids));
  out.PutSpan(std::span<const uint32_t>(plan.new_pages));
  out.PutSpan(std::span<const uint32_t>(plan.closes));
  out.PutSpan(std::span<const LogitBias>(plan.logit_bias));
  out.PutSpan(std::span<const int32_t>(plan.history));
  out.PutSpan(std::span<const int32_t>(plan.stop_ids));
  out.PutSpan(std::span<const uint32_t>(plan.masks));
}

bool DropMasks(std::string_view frame, std::string* without) {
  constexpr size_t kHeaderBytes = 28;  // to the opens
  const auto word = [&](uint64_t at) {
    uint32_t value = 0;
    if (at + sizeof(value) <= frame.size()) std::memcpy(&value, frame.data() + at, sizeof(value));
    return value;
  };
  // Where the span behind the one at `at` begins; beyond the end, if the frame is cut off.
  const auto behind = [&](uint64_t at, size_t bytes) {
    return at + sizeof(uint32_t) + uint64_t{word(at)} * bytes;
  };
  if (word(0) != kPlanMagic || word(sizeof(uint32_t)) != kStepPlanVersion) return false;
  const uint64_t rows = behind(kHeaderBytes, sizeof(PlanOpen));
  uint64_t masks = behind(rows, sizeof(PlanRow));
  for (const size_t bytes : {sizeof(int32_t), sizeof(uint32_t), sizeof(uint32_t), sizeof(LogitBias),
                             sizeof(int32_t), sizeof(int32_t)}) {
    masks = behind(masks, bytes);
  }
  if (word(masks) == 0 || behind(masks, sizeof(uint32_t)) != frame.size()) return false;
  without->assign(frame.substr(0, masks));
  without->append(sizeof(uint32_t), '\0');
  for (uint32_t row = 0; row < word(rows); ++row) {
    char* const flags = without->data() + rows + sizeof(uint32_t) + row * sizeof(PlanRow) +
                        offsetof(PlanRow, flags);
    uint32_t value;
    std::memcpy(&value, flags, sizeof(value));
    value &= ~uint32_t{kRowMask};
    std::memcpy(flags, &value, sizeof(value));
  }
  return true;
}

Status ParseStepPlan(std::string_view frame, const StepPlanLimits& limits, StepPlan* plan) {
  if (limits.max_slots > kMaxPlanSlots) return Bad("limits.max_slots", limits.max_slots);
  WireReader in(frame);
  if (in.Get<uint32_t>() != kPlanMagic) return absl::InvalidArgumentError("step plan: magic");
  const uint32_t version = in.Get<uint32_t>();
  if (version != kStepPlanVersion) return Bad("version", version);
  plan->step_id = in.Get<uint64_t>();
  plan->epoch = in.Get<uint32_t>();
  const uint32_t command = in.Get<uint32_t>();
  plan->num_pages = in.Get<uint32_t>();
  if (!in.ok()) return Malformed("header");
  if (command < static_cast<uint32_t>(StepCommand::kReset) ||
      command > static_cast<uint32_t>(StepCommand::kShutdown))
    return Bad("command", command);
  plan->command = static_cast<StepCommand>(command);
  if (!in.GetSpanInto(limits.max_slots, &plan->opens)) return Malformed("opens");
  if (!in.GetSpanInto(limits.max_slots, &plan->rows)) return Malformed("rows");
  if (!in.GetSpanInto(limits.max_tokens, &plan->input_ids)) return Malformed("input_ids");
  // Rows may share prefix pages, so their sum has no bound but the frame.
  if (!in.GetSpanInto(frame.size(), &plan->new_pages)) return Malformed("new_pages");
  if (!in.GetSpanInto(limits.max_slots, &plan->closes)) return Malformed("closes");
  // As long as their counts in the opens say, which CheckOpens sees to.
  if (!in.GetSpanInto(frame.size(), &plan->logit_bias)) return Malformed("logit_bias");
  if (!in.GetSpanInto(frame.size(), &plan->history)) return Malformed("history");
  if (!in.GetSpanInto(frame.size(), &plan->stop_ids)) return Malformed("stop_ids");
  if (!in.GetSpanInto(frame.size(), &plan->masks)) return Malformed("masks");
  if (!in.AtEnd()) return Malformed("end");
  return CheckPlan(*plan, limits);
}

}  // namespace flotilla
