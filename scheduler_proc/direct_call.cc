#include "scheduler_proc/direct_call.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/text/incremental_detokenizer.h"
#include "scheduler_proc/errors.h"

namespace flotilla {
namespace {

int32_t CountCodePoints(std::string_view text) {
  return static_cast<int32_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

DirectCall::DirectCall(const ServiceDeps* deps, ReqId id, Options options, GenerateReactor* reactor)
    : deps_(deps),
      id_(id),
      options_(std::move(options)),
      created_(static_cast<int64_t>(std::time(nullptr))),
      reactor_(reactor),
      log_(0, 0) {
  if (options_.echo)
    echo_chars_ = CountCodePoints(
        deps_->front->tokenizer().Decode(options_.prompt_ids, options_.skip_special));
}

void DirectCall::Append(uint64_t, v1::Delta&& piece) {
  std::lock_guard lock(mutex_);
  if (reactor_ == nullptr) return;
  log_.Append(std::move(piece));
  if (log_.unsent_bytes() > deps_->max_call_unsent_bytes)
    AbandonLocked({grpc::StatusCode::RESOURCE_EXHAUSTED,
                   StrCat("the client left ", log_.unsent_bytes(), " bytes unread")});
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

void DirectCall::Refuse(const grpc::Status& status) {
  std::lock_guard lock(mutex_);
  FinishLocked(status);
}

void DirectCall::AbandonLocked(const grpc::Status& status) {
  if (reactor_ == nullptr) return;
  deps_->front->Abort(id_, Finish::kAbort);
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
  if (prompt_sent_ < prompt_logprobs_.size()) {
    TakePiece(&prompt_logprobs_, &prompt_sent_, response);
  } else if (log_.HasUnsent()) {
    v1::Delta delta;
    log_.Take(kMaxFrameBytes, &delta);
    if (delta.has_error()) {
      FinishLocked(ToGrpc(delta.error()));
      return false;
    }
    FillLocked(std::move(delta), response);
  } else {
    if (log_.last_sent()) FinishLocked(grpc::Status::OK);
    return false;
  }
  response->set_request_id(options_.request_id);
  response->set_model(options_.model);
  response->set_created(created_);
  return true;
}

void DirectCall::FillLocked(v1::Delta&& delta, v1::GenerateResponse* response) {
  TakePromptLogprobsLocked(&delta);
  if (delta.has_usage()) *response->mutable_usage() = delta.usage();
  if (delta.has_timing()) *response->mutable_timing() = delta.timing();
  *response->mutable_choices() = std::move(*delta.mutable_choices());
  v1::ChoiceDelta* choice = response->mutable_choices(0);
  for (v1::TokenLogprobs& entry : *choice->mutable_logprobs())
    entry.set_text_offset(entry.text_offset() + echo_chars_);
  if (first_) {
    first_ = false;
    if (options_.return_token_ids)
      response->mutable_prompt_token_ids()->Add(options_.prompt_ids.begin(),
                                                options_.prompt_ids.end());
    if (options_.echo) AddEchoLocked(response);
  }
  if (!options_.return_token_ids) choice->clear_token_ids();
  if (!options_.want_prompt_logprobs) {
    prompt_logprobs_.clear();
    prompt_sent_ = 0;
  }
}

// All of them come with the first delta, or as a large result beside it.
void DirectCall::TakePromptLogprobsLocked(v1::Delta* delta) {
  for (v1::TokenLogprobs& entry : *delta->mutable_prompt_logprobs())
    prompt_logprobs_.push_back(std::move(entry));
  if (delta->large_result_id() == 0) return;
  auto entries = deps_->large_results->Take(delta->large_result_id());
  if (entries.has_value()) prompt_logprobs_ = *std::move(entries);
}

// The prompt goes before the first output: its text, its tokens and, with logprobs, theirs.
void DirectCall::AddEchoLocked(v1::GenerateResponse* response) {
  const Tokenizer& tokenizer = deps_->front->tokenizer();
  const v1::ChoiceDelta output = response->choices(0);
  v1::ChoiceDelta* choice = response->mutable_choices(0);
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
    if (i > 0 && i <= prompt_logprobs_.size()) *entry = prompt_logprobs_[i - 1];
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
  options.want_logprobs = checked->options.want_logprobs;
  options.want_prompt_logprobs = request.output().has_prompt_logprobs();
  options.return_token_ids = checked->return_token_ids;
  if (options.echo && options.want_logprobs && !options.want_prompt_logprobs)
    checked->spec.sampling.num_prompt_logprobs = checked->spec.sampling.num_logprobs;
  const ReqId id = deps->front->NewId();
  call_ = std::make_shared<DirectCall>(deps, id, std::move(options), this);
  const Status status = deps->front->Enqueue(id, *std::move(checked), /*tenant=*/"",
                                             /*elapsed_ms=*/0, call_, /*stream=*/0);
  if (!status.ok()) call_->Refuse(ToGrpc(status));
}

void GenerateReactor::OnCancel() {
  if (call_ != nullptr) call_->Cancel();
}

}  // namespace flotilla
