#include "router/fleet/stream_progress.h"

#include <algorithm>

namespace flotilla {
namespace {

template <typename Field>
void DropFirst(size_t count, Field* field) {
  field->erase(field->begin(), field->begin() + static_cast<int>(count));
}

Status Differs() {
  return absl::InternalError(
      "The replica that took over from a lost one went on differently; the answer can't be "
      "completed.");
}

// Its end came from outside, wherever the output was.
bool IsCutOff(const v1::Delta& delta) {
  return std::any_of(delta.choices().begin(), delta.choices().end(), [](const auto& choice) {
    return choice.finish_reason() == v1::FINISH_REASON_DEADLINE ||
           choice.finish_reason() == v1::FINISH_REASON_ABORT;
  });
}

}  // namespace

std::optional<v1::ResumeChoice> StreamProgress::BeginAttempt(bool from_start) {
  if (from_start) resume_point_ = {};
  received_tokens_ = resume_point_.tokens;
  received_prompt_logprobs_ = 0;
  repeated_tokens_ = output_ids_.size() - resume_point_.tokens;
  repeated_bytes_ = text_bytes_ - resume_point_.text_bytes;
  repeated_prompt_logprobs_ = prompt_logprobs_;
  if (resume_point_.tokens == 0) return std::nullopt;
  v1::ResumeChoice resume;
  resume.mutable_output_ids()->Add(
      output_ids_.begin(), output_ids_.begin() + static_cast<int64_t>(resume_point_.tokens));
  resume.set_emitted_bytes(resume_point_.text_bytes);
  resume.set_cumulative_logprob(resume_point_.cumulative_logprob);
  return resume;
}

void StreamProgress::OnReceived(const v1::Delta& delta) {
  received_prompt_logprobs_ += static_cast<size_t>(delta.prompt_logprobs_size());
  for (const v1::ChoiceDelta& choice : delta.choices())
    received_tokens_ += static_cast<size_t>(choice.token_ids_size());
}

Status StreamProgress::Deliver(v1::Delta* delta) {
  const size_t entries =
      std::min(repeated_prompt_logprobs_, static_cast<size_t>(delta->prompt_logprobs_size()));
  DropFirst(entries, delta->mutable_prompt_logprobs());
  repeated_prompt_logprobs_ -= entries;
  prompt_logprobs_ += static_cast<size_t>(delta->prompt_logprobs_size());
  for (v1::ChoiceDelta& choice : *delta->mutable_choices()) {
    RETURN_IF_ERROR(DropRepeated(&choice));
    if (choice.token_ids_size() > 0) resume_point_ = now();
    output_ids_.insert(output_ids_.end(), choice.token_ids().begin(), choice.token_ids().end());
    text_bytes_ += choice.text().size();
    for (const v1::TokenLogprobs& entry : choice.logprobs()) cumulative_logprob_ += entry.logprob();
  }
  const bool repeats = repeated_tokens_ + repeated_bytes_ + repeated_prompt_logprobs_ > 0;
  if (!delta->last() || !repeats) return OkStatus();
  if (!IsCutOff(*delta)) return Differs();
  // Of what was generated before its client has had all.
  delta->mutable_usage()->set_completion_tokens(static_cast<int32_t>(num_tokens()));
  return OkStatus();
}

Status StreamProgress::DropRepeated(v1::ChoiceDelta* choice) {
  if (repeated_tokens_ == 0 && repeated_bytes_ == 0) return OkStatus();
  const auto tokens = std::min(repeated_tokens_, static_cast<size_t>(choice->token_ids_size()));
  const auto known = output_ids_.end() - static_cast<int64_t>(repeated_tokens_);
  if (!std::equal(known, known + static_cast<int64_t>(tokens), choice->token_ids().begin()))
    return Differs();
  DropFirst(tokens, choice->mutable_token_ids());
  DropFirst(std::min(tokens, static_cast<size_t>(choice->logprobs_size())),
            choice->mutable_logprobs());
  repeated_tokens_ -= tokens;
  const uint64_t bytes = std::min<uint64_t>(repeated_bytes_, choice->text().size());
  choice->mutable_text()->erase(0, bytes);
  repeated_bytes_ -= bytes;
  // Text goes with its tokens: once those are all there, so is it.
  return repeated_tokens_ == 0 && repeated_bytes_ > 0 ? Differs() : OkStatus();
}

bool IsEmpty(const v1::Delta& delta) {
  if (delta.last() || delta.prompt_logprobs_size() > 0 || delta.embedding_size() > 0) return false;
  return std::all_of(delta.choices().begin(), delta.choices().end(), [](const auto& choice) {
    return choice.token_ids_size() == 0 && choice.text().empty();
  });
}

}  // namespace flotilla
