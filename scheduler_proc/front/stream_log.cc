#include "scheduler_proc/front/stream_log.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace flotilla {
namespace {

constexpr size_t kTokenBytes = 8;   // of an id on the wire, rounded up
constexpr size_t kTailBytes = 128;  // usage, timing, finish

}  // namespace

size_t StreamLog::Append(v1::Delta&& piece) {
  const size_t before = unsent_bytes_;
  for (int i = 0; i < piece.prompt_logprobs_size(); ++i) {
    Keep(piece.prompt_logprobs(i), &prompt_logprobs_);
  }
  piece.clear_prompt_logprobs();
  if (piece.large_result_id() != 0) large_result_id_ = piece.large_result_id();
  if (piece.choices_size() > 0) {
    v1::ChoiceDelta& choice = *piece.mutable_choices(0);
    const uint32_t text_before = static_cast<uint32_t>(text_.size());
    text_ += choice.text();
    unsent_bytes_ += choice.text().size();
    const int count = choice.token_ids_size();
    for (int i = 0; i < count; ++i) {
      const bool ends_piece = i + 1 == count;
      tokens_.push_back({choice.token_ids(i),
                         ends_piece ? static_cast<uint32_t>(text_.size()) : text_before,
                         ends_piece});
      unsent_bytes_ += kTokenBytes;
    }
    for (int i = 0; i < choice.logprobs_size(); ++i) {
      Keep(choice.logprobs(i), &logprobs_);
    }
    choice.clear_text();
    choice.clear_token_ids();
    choice.clear_logprobs();
  }
  complete_ = complete_ || piece.last();
  tail_ = std::move(piece);
  if (complete_) unsent_bytes_ += CountTail();
  return unsent_bytes_ - before;
}

void StreamLog::Keep(const v1::TokenLogprobs& entry, Logprobs* entries) {
  const std::string& kept = entries->emplace_back(entry.SerializeAsString());
  unsent_bytes_ += kept.size();
  logprob_bytes_ += kept.size() + 1;
}

size_t StreamLog::kept_bytes() const {
  return sizeof(*this) + tokens_.capacity() * sizeof(Token) + text_.capacity() + logprob_bytes_ +
         (logprobs_.capacity() + prompt_logprobs_.capacity()) * sizeof(std::string) +
         tail_.SpaceUsedLong();
}

bool StreamLog::HasUnsent() const {
  return sent_tokens_ < tokens_.size() || (complete_ && !last_sent_);
}

// Without its text.
size_t StreamLog::TokenBytes(size_t index) const {
  return kTokenBytes + (logprobs_.empty() ? 0 : logprobs_[index].size());
}

void StreamLog::TakeTokens(size_t max_bytes, v1::Delta* delta) {
  v1::ChoiceDelta* choice = delta->add_choices();
  size_t bytes = 0, text_begin = sent_text_, end = sent_tokens_;
  const auto may_stop = [&] { return end > sent_tokens_ && tokens_[end - 1].ends_piece; };
  while (end < tokens_.size() && (bytes < max_bytes || !may_stop())) {
    const size_t token_bytes = TokenBytes(end);
    unsent_bytes_ -= token_bytes;
    bytes +=
        token_bytes + tokens_[end].text_end - std::min<size_t>(text_begin, tokens_[end].text_end);
    text_begin = tokens_[end].text_end;
    choice->add_token_ids(tokens_[end].id);
    if (!logprobs_.empty()) {
      CHECK(choice->add_logprobs()->ParseFromString(logprobs_[end]));
      sent_logprob_bytes_ += logprobs_[end].size();
    }
    ++end;
  }
  const bool everything = end == tokens_.size();
  size_t text_end = everything ? text_.size() : tokens_[end - 1].text_end;
  text_end = std::max(text_end, sent_text_);
  choice->set_text(text_.substr(sent_text_, text_end - sent_text_));
  unsent_bytes_ -= text_end - sent_text_;
  sent_tokens_ = end;
  sent_text_ = text_end;
  ForgetSentLogprobs();
}

void StreamLog::ForgetSentLogprobs() {
  while (sent_logprob_bytes_ > kSentLogprobBytes) {
    std::string& entry = logprobs_[num_forgotten_++];
    sent_logprob_bytes_ -= entry.size();
    logprob_bytes_ -= entry.size() + 1;
    std::string().swap(entry);
  }
}

void StreamLog::Take(size_t max_bytes, v1::Delta* delta) {
  delta->set_stream_id(stream_id_);
  while (sent_prompt_ < prompt_logprobs_.size()) {
    const std::string& entry = prompt_logprobs_[sent_prompt_++];
    unsent_bytes_ -= entry.size();
    CHECK(delta->add_prompt_logprobs()->ParseFromString(entry));
  }
  if (!large_result_sent_ && large_result_id_ != 0) {
    delta->set_large_result_id(large_result_id_);
    large_result_sent_ = true;
  }
  TakeTokens(max_bytes, delta);
  delta->set_repeats(tail_.repeats());
  if (sent_tokens_ == tokens_.size()) {
    delta->set_held_back(tail_.held_back());
    if (complete_) {
      v1::ChoiceDelta* choice = delta->mutable_choices(0);
      if (tail_.choices_size() > 0) {
        choice->set_finish_reason(tail_.choices(0).finish_reason());
        choice->set_stop_reason(tail_.choices(0).stop_reason());
      }
      if (tail_.has_usage()) *delta->mutable_usage() = tail_.usage();
      if (tail_.has_timing()) *delta->mutable_timing() = tail_.timing();
      if (tail_.has_error()) *delta->mutable_error() = tail_.error();
      *delta->mutable_embedding() = tail_.embedding();
      if (tail_.has_computed_tokens()) delta->set_computed_tokens(tail_.computed_tokens());
      delta->set_last(true);
      if (!std::exchange(last_sent_, true)) unsent_bytes_ -= CountTail();
    }
  }
}

bool StreamLog::Rewind(uint32_t token_offset, uint32_t prompt_logprobs) {
  if (!HasTokens(token_offset)) return false;
  const size_t index = token_offset - first_token_;
  if (!logprobs_.empty()) {
    for (size_t i = index; i < sent_tokens_; ++i) sent_logprob_bytes_ -= logprobs_[i].size();
    for (size_t i = sent_tokens_; i < index; ++i) sent_logprob_bytes_ += logprobs_[i].size();
  }
  sent_tokens_ = index;
  sent_text_ = index == 0 ? 0 : tokens_[index - 1].text_end;
  sent_prompt_ = std::min<size_t>(prompt_logprobs, prompt_logprobs_.size());
  large_result_sent_ = index > 0;
  last_sent_ = false;
  unsent_bytes_ = CountUnsent();
  return true;
}

bool StreamLog::HasTokens(uint32_t token_offset) const {
  return token_offset >= first_token_ && token_offset - first_token_ >= num_forgotten_ &&
         token_offset - first_token_ <= tokens_.size();
}

bool StreamLog::Has(uint32_t token_offset, uint64_t text_bytes) const {
  return HasTokens(token_offset) && text_bytes <= text_.size();
}

bool StreamLog::RewindTo(uint32_t token_offset, uint64_t text_bytes) {
  if (!Has(token_offset, text_bytes) || !Rewind(token_offset, 0)) return false;
  sent_text_ = text_bytes;
  unsent_bytes_ = CountUnsent();
  return true;
}

size_t StreamLog::CountTail() const {
  return kTailBytes + sizeof(float) * static_cast<size_t>(tail_.embedding_size());
}

size_t StreamLog::CountUnsent() const {
  size_t bytes = complete_ && !last_sent_ ? CountTail() : 0;
  bytes += text_.size() - std::min(sent_text_, text_.size());
  for (size_t i = sent_tokens_; i < tokens_.size(); ++i) bytes += TokenBytes(i);
  for (size_t i = sent_prompt_; i < prompt_logprobs_.size(); ++i)
    bytes += prompt_logprobs_[i].size();
  return bytes;
}

}  // namespace flotilla
