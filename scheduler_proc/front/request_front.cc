#include "scheduler_proc/front/request_front.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "scheduler_proc/exchange/errors.h"
#include "scheduler_proc/exchange/output_event.h"

namespace flotilla {

void RequestFront::SetServing(const RequestLimits& limits) {
  if (phase_.load() != Phase::kLoading) return;
  limits_ = limits;
  served_.store(true);
  Phase loading = Phase::kLoading;
  phase_.compare_exchange_strong(loading, Phase::kServing);
}

void RequestFront::SetDraining() {
  phase_.store(Phase::kDraining);
  deps_.load->SetDraining();
}

Status RequestFront::Ready() const {
  switch (phase_.load()) {
    case Phase::kLoading:
      return absl::UnavailableError("the replica is still loading its model");
    case Phase::kDraining:
      return absl::UnavailableError("the replica is draining and takes no new requests");
    case Phase::kServing:
      break;
  }
  return OkStatus();
}

StatusOr<CheckedRequest> RequestFront::Check(
    const v1::GenerateRequest& request,
    const google::protobuf::RepeatedPtrField<v1::ResumeChoice>& resume, bool text_allowed) const {
  const Status ready = Ready();
  if (!ready.ok()) return Noted(request.request_id(), ready);
  const Tokenizer* const tokenizer = text_allowed ? deps_.tokenizer : nullptr;
  StatusOr<CheckedRequest> checked = CheckRequest(request, resume, limits_, tokenizer);
  if (checked.ok() && checked->grammar.has_value() && deps_.grammars == nullptr)
    checked = absl::UnimplementedError("structured: this replica compiles no grammars");
  return Noted(request.request_id(), std::move(checked));
}

StatusOr<CheckedRequest> RequestFront::CheckEmbed(const v1::GenerateRequest& request,
                                                  const v1::EmbedOptions& embed,
                                                  bool text_allowed) const {
  const Status ready = Ready();
  if (!ready.ok()) return Noted(request.request_id(), ready);
  const Tokenizer* const tokenizer = text_allowed ? deps_.tokenizer : nullptr;
  return Noted(request.request_id(), flotilla::CheckEmbed(request, embed, limits_, tokenizer));
}

StatusOr<CheckedRequest> RequestFront::Noted(const std::string& request_id,
                                             StatusOr<CheckedRequest> checked) const {
  if (!checked.ok()) {
    deps_.on_refused(checked.status().code());
    Log().debug("refused {} {}", Kv("request_id", request_id),
                Kv("reason", std::string(checked.status().message())));
  }
  return checked;
}

Status RequestFront::Enqueue(ReqId id, CheckedRequest&& checked, const std::string& tenant,
                             int64_t elapsed_ms, std::shared_ptr<OutputSink> sink,
                             uint64_t stream) {
  SubmitCommand command;
  command.spec = std::move(checked.spec);
  command.spec.id = id;
  command.spec.cache_salt = tenant;
  command.spec.arrival_ns = deps_.clock->NowNs();
  if (checked.deadline_ms != 0)
    command.spec.deadline_ns =
        command.spec.arrival_ns +
        std::max<int64_t>(0, checked.deadline_ms - std::max<int64_t>(0, elapsed_ms)) * kNsPerMs;
  command.options = std::move(checked.options);
  command.options.request_id = checked.request_id;
  command.sink = std::move(sink);
  command.stream = stream;
  {
    std::lock_guard lock(mutex_);
    live_.emplace(id, checked.request_id);
    by_request_id_.emplace(std::move(checked.request_id), id);
    entering_.emplace(id, Finish::kNone);
  }
  deps_.load->AddSubmitted(command.spec.prompt_ids.size());
  if (!checked.grammar.has_value()) return Enter(std::move(command));
  // std::function wants what can be copied.
  auto shared = std::make_shared<SubmitCommand>(std::move(command));
  const auto whom = shared->spec.resumed_ids.empty() ? GrammarCompiler::For::kNewRequest
                                                     : GrammarCompiler::For::kBegunElsewhere;
  deps_.grammars->Compile(*checked.grammar, whom, [this, shared](GrammarCompiler::Result grammar) {
    OnGrammar(std::move(*shared), std::move(grammar));
  });
  return OkStatus();
}

Status RequestFront::Enter(SubmitCommand&& command) {
  const ReqId id = command.spec.id;
  Status status = Submit(std::move(command));
  Finish aborted = Finish::kNone;
  {
    std::lock_guard lock(mutex_);
    aborted = entering_.extract(id).mapped();
  }
  if (status.ok() && aborted != Finish::kNone) deps_.inbox->Abort(id, aborted);
  return status;
}

Status RequestFront::Submit(SubmitCommand&& command) {
  const ReqId id = command.spec.id;
  const uint64_t tokens = command.spec.prompt_ids.size();
  const std::string request_id = command.options.request_id;
  Log().debug("queued {} {} {}", Kv("request_id", request_id), Kv("req", id),
              Kv("prompt_tokens", tokens));
  Status status = deps_.inbox->Submit(std::move(command));
  if (!status.ok()) Refuse(id, request_id, tokens, status);
  return status;
}

void RequestFront::Refuse(ReqId id, const std::string& request_id, uint64_t tokens,
                          const Status& status) {
  Log().debug("refused {} {}", Kv("request_id", request_id),
              Kv("reason", std::string(status.message())));
  deps_.load->RemoveSubmitted(tokens);
  deps_.on_refused(status.code());
  OnFinished(id);
}

// On a thread of the compiler's, or within Enqueue.
void RequestFront::OnGrammar(SubmitCommand&& command, GrammarCompiler::Result grammar) {
  const ReqId id = command.spec.id;
  const std::shared_ptr<OutputSink> sink = command.sink;
  const uint64_t stream = command.stream;
  Status status = grammar.status();
  if (status.ok()) {
    command.spec.grammar = *std::move(grammar);
    status = Enter(std::move(command));
  } else {
    Refuse(id, command.options.request_id, command.spec.prompt_ids.size(), status);
    std::lock_guard lock(mutex_);
    entering_.erase(id);
  }
  if (status.ok()) return;
  sink->Append(stream, RefusalDelta(status));
  sink->Flush();
}

void RequestFront::Abort(ReqId id, Finish reason) {
  {
    std::lock_guard lock(mutex_);
    const auto it = entering_.find(id);
    if (it != entering_.end()) {
      it->second = reason;
      return;
    }
  }
  deps_.inbox->Abort(id, reason);
}

bool RequestFront::AbortByRequestId(const std::string& request_id) {
  std::vector<ReqId> ids;
  {
    std::lock_guard lock(mutex_);
    const auto [begin, end] = by_request_id_.equal_range(request_id);
    for (auto it = begin; it != end; ++it) ids.push_back(it->second);
  }
  for (ReqId id : ids) Abort(id, Finish::kAbort);
  return !ids.empty();
}

void RequestFront::OnFinished(ReqId id) {
  std::lock_guard lock(mutex_);
  auto it = live_.find(id);
  if (it == live_.end()) return;
  Log().debug("ended {} {}", Kv("request_id", it->second), Kv("req", id));
  const auto [begin, end] = by_request_id_.equal_range(it->second);
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->second != id) continue;
    by_request_id_.erase(entry);
    break;
  }
  live_.erase(it);
  if (live_.empty()) idle_.notify_all();
}

size_t RequestFront::live() const {
  std::lock_guard lock(mutex_);
  return live_.size();
}

bool RequestFront::WaitIdle(int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  const int64_t left = std::max<int64_t>(0, deadline_ns - deps_.clock->NowNs());
  return idle_.wait_for(lock, std::chrono::nanoseconds(left), [&] { return live_.empty(); });
}

}  // namespace flotilla
