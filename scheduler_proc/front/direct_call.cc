#include "scheduler_proc/front/direct_call.h"

#include <ctime>
#include <utility>

#include "common/base/utf8.h"
#include "common/text/incremental_detokenizer.h"
#include "scheduler_proc/exchange/errors.h"

namespace flotilla {

DirectCall::DirectCall(const ServiceDeps* deps, Options options, GenerateReactor* reactor)
    : deps_(deps),
      options_(std::move(options)),
      created_(static_cast<int64_t>(std::time(nullptr))),
      reactor_(reactor),
      merger_(options_.choices),
      choices_(options_.choices.num_choices) {
  if (options_.echo)
    echo_chars_ = CountCodePoints(
        deps_->front->tokenizer().Decode(options_.prompt_ids, options_.skip_special));
}

void DirectCall::Submit(const std::shared_ptr<DirectCall>& self, const CheckedRequest& checked) {
  std::vector<ReqId> ids;
  for (size_t i = 0; i < options_.choices.num_candidates; ++i) ids.push_back(deps_->front->NewId());
  {
    std::lock_guard lock(mutex_);
    ids_ = ids;
  }
  // Without the lock: a grammar that is known to be none is refused by Append, within Enqueue.
  Status status = OkStatus();
  for (size_t i = 0; i < ids.size() && status.ok(); ++i)
    status = deps_->front->Enqueue(ids[i], ForCandidate(checked, i), /*tenant=*/"",
                                   /*elapsed_ms=*/0, self, /*stream=*/i);
  std::lock_guard lock(mutex_);
  if (!status.ok()) AbandonLocked(ToGrpc(status));
  // Cancelled or refused meanwhile, perhaps before the last of them was there to be aborted.
  if (reactor_ != nullptr) return;
  for (const ReqId id : ids) deps_->front->Abort(id, Finish::kAbort);
}

bool DirectCall::Append(uint64_t stream, v1::Delta&& piece) {
  std::lock_guard lock(mutex_);
  if (reactor_ == nullptr) return false;
  if (piece.has_error() && options_.choices.num_candidates > 1) {
    AbandonLocked(ToGrpc(piece.error()));
    return false;
  }
  std::vector<v1::Delta> merged;
  merger_.Add(stream, std::move(piece), &merged);
  for (v1::Delta& delta : merged) {
    TakePromptLogprobsLocked(&delta);
    if (delta.choices_size() == 0) continue;
    const auto index = static_cast<size_t>(delta.choices(0).index());
    choices_[index].log.Append(std::move(delta));
  }
  if (UnsentBytesLocked() > deps_->max_call_unsent_bytes && !options_.choices.ranked())
    AbandonLocked({grpc::StatusCode::RESOURCE_EXHAUSTED,
                   StrCat("the client left ", UnsentBytesLocked(), " bytes unread")});
  return true;
}

void DirectCall::Flush() {
  std::lock_guard lock(mutex_);
  PumpLocked();
}

void DirectCall::OnWritten(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  if (ok)
    PumpLocked();
  else
    AbandonLocked(grpc::Status::CANCELLED);
}

void DirectCall::Cancel() {
  std::lock_guard lock(mutex_);
  AbandonLocked(grpc::Status::CANCELLED);
}

void DirectCall::AbandonLocked(const grpc::Status& status) {
  if (reactor_ == nullptr) return;
  for (const ReqId id : ids_) deps_->front->Abort(id, Finish::kAbort);
  FinishLocked(status);
}

void DirectCall::FinishLocked(const grpc::Status& status) {
  if (reactor_ == nullptr) return;
  std::exchange(reactor_, nullptr)->Finish(status);
}

void DirectCall::PumpLocked() {
  if (reactor_ == nullptr || writing_) return;
  v1::GenerateResponse response;
  if (!NextLocked(&response)) return;
  writing_ = true;
  reactor_->Write(std::move(response));
}

// The next message; false if there is none yet, or the call was finished here.
bool DirectCall::NextLocked(v1::GenerateResponse* response) {
  if (AllSentLocked()) {
    if (merger_.done()) FinishLocked(grpc::Status::OK);
    return false;
  }
  if (prompt_sent_ < prompt_logprobs_.size()) {
    TakePiece(&prompt_logprobs_, &prompt_sent_, response);
  } else {
    Choice* choice = NextUnsentLocked();
    v1::Delta delta;
    choice->log.Take(kMaxFrameBytes, &delta);
    if (delta.has_error()) {
      FinishLocked(ToGrpc(delta.error()));
      return false;
    }
    FillLocked(choice, std::move(delta), response);
  }
  response->set_request_id(options_.request_id);
  response->set_model(options_.model);
  response->set_created(created_);
  if (std::exchange(first_, false) && options_.return_token_ids)
    response->mutable_prompt_token_ids()->Add(options_.prompt_ids.begin(),
                                              options_.prompt_ids.end());
  if (!merger_.done() || !AllSentLocked()) return true;
  *response->mutable_usage() = merger_.usage();
  if (merger_.timing() != nullptr) *response->mutable_timing() = *merger_.timing();
  return true;
}

// In turn. There is one.
DirectCall::Choice* DirectCall::NextUnsentLocked() {
  while (!choices_[next_choice_].log.HasUnsent())
    next_choice_ = (next_choice_ + 1) % choices_.size();
  Choice* choice = &choices_[next_choice_];
  next_choice_ = (next_choice_ + 1) % choices_.size();
  return choice;
}

size_t DirectCall::UnsentBytesLocked() const {
  size_t bytes = 0;
  for (const Choice& choice : choices_) bytes += choice.log.unsent_bytes();
  return bytes;
}

bool DirectCall::AllSentLocked() const {
  return prompt_sent_ == prompt_logprobs_.size() &&
         std::none_of(choices_.begin(), choices_.end(),
                      [](const Choice& choice) { return choice.log.HasUnsent(); });
}

void DirectCall::FillLocked(Choice* choice, v1::Delta&& delta, v1::GenerateResponse* response) {
  *response->mutable_choices() = std::move(*delta.mutable_choices());
  v1::ChoiceDelta* out = response->mutable_choices(0);
  out->set_index(static_cast<int32_t>(choice - choices_.data()));
  for (v1::TokenLogprobs& entry : *out->mutable_logprobs())
    entry.set_text_offset(entry.text_offset() + echo_chars_);
  if (!std::exchange(choice->begun, true) && options_.echo) AddEchoLocked(out);
  if (!options_.return_token_ids) out->clear_token_ids();
}

// All of them come with candidate 0's first delta, or as a large result beside it.
void DirectCall::TakePromptLogprobsLocked(v1::Delta* delta) {
  std::vector<v1::TokenLogprobs> entries;
  if (delta->large_result_id() != 0)
    entries = deps_->large_results->Take(delta->large_result_id()).value_or(std::move(entries));
  for (v1::TokenLogprobs& entry : *delta->mutable_prompt_logprobs())
    entries.push_back(std::move(entry));
  delta->clear_large_result_id();
  delta->clear_prompt_logprobs();
  if (entries.empty()) return;
  if (options_.echo && options_.want_logprobs) echo_logprobs_ = entries;
  if (options_.want_prompt_logprobs) prompt_logprobs_ = std::move(entries);
}

// The prompt goes before the first output: its text, its tokens and, with logprobs, theirs.
void DirectCall::AddEchoLocked(v1::ChoiceDelta* choice) const {
  const Tokenizer& tokenizer = deps_->front->tokenizer();
  const v1::ChoiceDelta output = *choice;
  choice->set_text(tokenizer.Decode(options_.prompt_ids, options_.skip_special) + output.text());
  choice->clear_token_ids();
  choice->clear_logprobs();
  choice->mutable_token_ids()->Add(options_.prompt_ids.begin(), options_.prompt_ids.end());
  choice->mutable_token_ids()->MergeFrom(output.token_ids());
  if (!options_.want_logprobs) return;
  IncrementalDetokenizer text(&tokenizer, options_.skip_special,
                              IncrementalDetokenizer::Begins::kSequence);
  int32_t offset = 0;
  for (size_t i = 0; i < options_.prompt_ids.size(); ++i) {
    v1::TokenLogprobs* entry = choice->add_logprobs();
    if (i > 0 && i <= echo_logprobs_.size()) *entry = echo_logprobs_[i - 1];
    const int32_t id = options_.prompt_ids[i];
    entry->set_token_id(id);
    entry->set_token(std::string(tokenizer.TokenBytes(id)));
    entry->set_text_offset(offset);
    offset += CountCodePoints(text.Push(id));
  }
  choice->mutable_logprobs()->MergeFrom(output.logprobs());
}

GenerateReactor::GenerateReactor(const ServiceDeps* deps, const v1::GenerateRequest& request) {
  StatusOr<CheckedRequest> checked = deps->front->Check(request, {}, /*text_allowed=*/true);
  if (!checked.ok()) {
    Finish(ToGrpc(checked.status()));
    return;
  }
  DirectCall::Options options;
  options.request_id = checked->request_id;
  options.model = deps->front->limits().model_name;
  options.prompt_ids = checked->spec.prompt_ids;
  options.echo = checked->echo;
  options.skip_special = checked->options.skip_special;
  options.choices = checked->choices;
  options.want_logprobs = request.output().has_logprobs();
  options.want_prompt_logprobs = request.output().has_prompt_logprobs();
  options.return_token_ids = checked->return_token_ids;
  if (options.echo && options.want_logprobs && !options.want_prompt_logprobs)
    checked->spec.sampling.num_prompt_logprobs = checked->spec.sampling.num_logprobs;
  call_ = std::make_shared<DirectCall>(deps, std::move(options), this);
  call_->Submit(call_, *checked);
}

void GenerateReactor::OnCancel() {
  if (call_ != nullptr) call_->Cancel();
}

}  // namespace flotilla
