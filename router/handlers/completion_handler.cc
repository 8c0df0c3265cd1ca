#include "router/handlers/completion_handler.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <ctime>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "router/api/generate_check.h"
#include "router/api/structured_fields.h"
#include "router/base/random.h"
#include "router/base/request_timeout.h"
#include "router/observe/request_timing.h"

namespace flotilla {

class CompletionHandler::Sink final : public GenerateSink {
 public:
  Sink(std::shared_ptr<CompletionHandler> handler, size_t prompt)
      : handler_(std::move(handler)), prompt_(prompt) {}
  void OnBegun(const std::string& fingerprint) override { handler_->OnBegun(fingerprint); }
  void OnDelta(size_t choice, v1::Delta&& delta) override {
    handler_->OnDelta(prompt_, choice, std::move(delta));
  }
  void OnError(const ApiError& error) override { handler_->OnError(error); }
  const Caller& caller() const override { return handler_->context_.caller; }
  const std::string& traceparent() const override { return handler_->traceparent_; }

 private:
  const std::shared_ptr<CompletionHandler> handler_;
  const size_t prompt_;
};

CompletionHandler::CompletionHandler(const HandlerContext& context, const ApiForm& form,
                                     std::shared_ptr<HttpExchange> exchange)
    : context_(context),
      form_(form),
      exchange_(std::move(exchange)),
      room_(std::make_shared<AnswerRoom>(context.answers)),
      keep_alive_(*context.io) {
  exchange_->Keep(room_);
  context_.metrics->InFlight(1);
}

CompletionHandler::~CompletionHandler() { context_.metrics->InFlight(-1); }

void CompletionHandler::Start(HttpRequest request) {
  received_ns_ = request.received_ns;
  traceparent_ = std::move(request.head.traceparent);
  exchange_->set_on_disconnect([self = shared_from_this()] { self->OnDisconnect(); });
  if (const std::optional<std::string>& key = request.head.idempotency_key) {
    if (const auto error = CheckIdempotencyKey(*key)) return OnError(*error);
    idempotency_key_ = *key;
  }
  if (const auto error = ReadRequestTimeout(request.head.request_timeout,
                                            context_.dispatcher->max_request_ms(), &timeout_ms_))
    return OnError(*error);
  Parse(std::move(request));
}

void CompletionHandler::Parse(HttpRequest request) {
  std::shared_ptr<const ModelTable> models = context_.dispatcher->models();
  if (!form_.renders && request.body.size() <= kParseOffThreadBytes) {
    OnParsed(form_.parse(request.body, *models, context_.parsers));
    return;
  }
  WorkOffThread(
      context_, std::move(request),
      [&form = form_, parsers = context_.parsers, models = std::move(models)](
          const std::string& body) { return form.parse(body, *models, parsers); },
      [self = shared_from_this()](Parsed parsed) { self->OnParsed(std::move(parsed)); });
}

void CompletionHandler::OnParsed(Parsed parsed) {
  if (ended_) return;  // the client left meanwhile
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    OnError(*error);
    return;
  }
  request_ = std::move(std::get<CompletionRequest>(parsed));
  request_.params.set_idempotency_key(idempotency_key_);
  if (timeout_ms_ > 0) request_.params.set_deadline_ms(timeout_ms_);
  SetSeed(RandomU64(), &request_.params);
  envelope_.id = StrCat(form_.id_prefix, RandomHex128());
  if (LogsDebug())
    Log().debug("completion {} {} {}", Kv("request_id", exchange_->request_id()),
                Kv("id", envelope_.id), Kv("prompts", request_.prompts.size()));
  envelope_.created = std::time(nullptr);
  envelope_.model = request_.model->name;
  envelope_.system_fingerprint = request_.model->fingerprint;
  writer_ = form_.make_writer(envelope_, request_);
  if (request_.stream && context_.sse_keepalive_ms > 0) ArmKeepAlive();
  SubmitAll();
}

void CompletionHandler::SubmitAll() {
  if (!Keeps(request_.repeated.size())) return;
  const size_t num_prompts = request_.prompts.size();
  const ChoiceOptions options = ChoicesOf(request_.params);
  num_choices_ = options.num_choices;
  mergers_.reserve(num_prompts);
  for (size_t i = 0; i < num_prompts; ++i) mergers_.emplace_back(options);
  choices_.resize(num_prompts * num_choices_);
  formatters_.reserve(choices_.size());
  for (size_t i = 0; i < choices_.size(); ++i) formatters_.emplace_back(request_, i / num_choices_);
  RequestKey key{context_.caller.tenant(), idempotency_key_, 0, ""};
  if (!idempotency_key_.empty()) key.digest = Digest();
  for (size_t i = 0; i < num_prompts; ++i) {
    key.prompt = i;
    v1::GenerateRequest request = request_.params;
    request.set_request_id(exchange_->request_id());
    const std::vector<int32_t>& ids = request_.prompts[i].ids;
    request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
    SetDefaultMaxTokens(request_, ids.size(), &request);
    auto submitted = context_.dispatcher->Submit(request, request_.model,
                                                 std::make_shared<Sink>(shared_from_this(), i),
                                                 idempotency_key_.empty() ? nullptr : &key);
    if (auto* error = std::get_if<ApiError>(&submitted)) {
      OnError(*error);
      return;
    }
    handles_.push_back(std::get<uint64_t>(submitted));
  }
}

std::string CompletionHandler::Digest() const {
  std::vector<std::span<const int32_t>> prompts;
  for (const CompletionPrompt& prompt : request_.prompts) prompts.emplace_back(prompt.ids);
  return RequestDigest(request_.params, prompts);
}

// The replica that takes a request may have come since it arrived.
void CompletionHandler::OnBegun(const std::string& fingerprint) {
  if (!ttft_seen_) envelope_.system_fingerprint = fingerprint;
}

void CompletionHandler::OnDelta(size_t prompt, size_t candidate, v1::Delta&& delta) {
  if (ended_) return;
  if (!ttft_seen_ && delta.choices_size() > 0) {
    ttft_seen_ = true;
    context_.metrics->Ttft(static_cast<double>(RealClock::Now() - received_ns_) * 1e-9);
  }
  ChoiceMerger& merger = mergers_[prompt];
  std::vector<v1::Delta> merged;
  const uint64_t kept_before = merger.kept_bytes();
  merger.Add(candidate, std::move(delta), &merged);
  if (!Keeps(merger.kept_bytes() - kept_before)) return;
  for (const v1::Delta& each : merged) OnMerged(prompt, each);
  if (ended_ || !merger.done()) return;  // writing may have found the client gone
  if (merger.timing() != nullptr) timing_ = *merger.timing();  // of the prompt that is last
  if (++finished_prompts_ == request_.prompts.size()) Finish();
}

// What is about no choice is about the prompt, which all choices tell.
void CompletionHandler::OnMerged(size_t prompt, const v1::Delta& delta) {
  size_t begin = prompt * num_choices_, end = begin + num_choices_;
  if (delta.choices_size() > 0) {
    begin += static_cast<size_t>(delta.choices(0).index());
    end = begin + 1;
  }
  for (size_t index = begin; index < end && !ended_; ++index) {
    if (request_.NeedsPromptLogprobs() &&
        !Keeps(delta.prompt_logprobs().SpaceUsedExcludingSelfLong()))
      return;
    const ChoicePiece piece = formatters_[index].OnDelta(delta);
    if (!request_.stream) {
      if (!Keeps(piece.bytes())) return;
      choices_[index].Append(piece);
    } else if (!piece.empty()) {
      BeginStream();
      WriteStream(writer_->Piece(index, piece));
    }
  }
}

// Modulo 2^64: it may be fewer than before.
bool CompletionHandler::Keeps(uint64_t more_bytes) {
  if (more_bytes == 0) return true;
  kept_bytes_ += more_bytes;
  const auto error = room_->Resize(kept_bytes_);
  if (error.has_value()) OnError(*error);
  return !error.has_value();
}

void CompletionHandler::BeginStream() {
  if (std::exchange(stream_started_, true)) return;
  exchange_->StartStream();
  WriteStream(writer_->Begin());
}

void CompletionHandler::WriteStream(std::string_view data) {
  exchange_->Write(data);
  written_ = true;
}

void CompletionHandler::ArmKeepAlive() {
  written_ = false;
  keep_alive_.expires_after(std::chrono::milliseconds(context_.sse_keepalive_ms));
  keep_alive_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const std::shared_ptr<CompletionHandler> self = weak.lock();
    if (error || self == nullptr || self->ended_) return;
    if (!self->written_) {
      self->BeginStream();
      self->WriteStream(": keep-alive\n\n");
    }
    if (!self->ended_) self->ArmKeepAlive();
  });
}

void CompletionHandler::Finish() {
  AnswerEnd end;
  v1::Usage& total = end.usage;
  for (const ChoiceMerger& merger : mergers_) {
    const v1::Usage& usage = merger.usage();
    total.set_prompt_tokens(total.prompt_tokens() + usage.prompt_tokens());
    total.set_completion_tokens(total.completion_tokens() + usage.completion_tokens());
    total.set_cached_tokens(total.cached_tokens() + usage.cached_tokens());
  }
  if (request_.prompt_only) total.set_completion_tokens(0);
  if (timing_.has_value()) end.timing = TimingJson(*timing_, received_ns_, RealClock::Now());
  if (request_.stream) {
    BeginStream();
    WriteStream(writer_->End(end));
    if (ended_) return;
    ended_ = true;
    exchange_->EndStream(200);
    return;
  }
  ended_ = true;
  exchange_->Reply(200, "application/json", writer_->Whole(choices_, end));
}

void CompletionHandler::OnError(const ApiError& error) {
  if (ended_) return;
  ended_ = true;
  ApiError told = error;
  NameAsClient(request_.structured_field, &told);
  LogFailure(exchange_->request_id(), told);
  for (uint64_t handle : std::exchange(handles_, {}))
    context_.dispatcher->CancelFailed(handle, error);
  room_->Resize(0);  // at once, before others are refused for it
  if (!stream_started_) {
    exchange_->ReplyError(told);
    return;
  }
  exchange_->Write(writer_->Failure(told));
  exchange_->EndStream(HttpStatus(told));
}

void CompletionHandler::OnDisconnect() {
  if (ended_) return;
  ended_ = true;
  context_.metrics->ClientDisconnect();
  for (uint64_t handle : std::exchange(handles_, {})) context_.dispatcher->Cancel(handle);
}

}  // namespace flotilla
