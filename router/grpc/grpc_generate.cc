#include "router/grpc/grpc_generate.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <ctime>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/call_request_id.h"
#include "router/api/generate_check.h"
#include "router/api/structured_fields.h"
#include "router/base/random.h"
#include "router/grpc/grpc_chat.h"

namespace flotilla {
namespace {

constexpr const char* kGenerateRoute = "flotilla.v1.Inference/Generate";
constexpr const char* kChatRoute = "flotilla.v1.Inference/Chat";

}  // namespace

GrpcGenerate::GrpcGenerate(const HandlerContext& context, const char* route,
                           const GrpcStreamLimits& limits)
    : context_(context),
      route_(route),
      limits_(limits),
      received_ns_(RealClock::Now()),
      room_(context.answers),
      write_timer_(*context.io) {
  context_.metrics->InFlight(1);
  context_.calls->Add();
}

GrpcGenerate* GrpcGenerate::Start(const HandlerContext& context, const GrpcStreamLimits& limits,
                                  grpc::CallbackServerContext* server_context,
                                  const v1::GenerateRequest& request) {
  std::shared_ptr<GrpcGenerate> call(new GrpcGenerate(context, kGenerateRoute, limits));
  return StartCall(call, server_context, request, nullptr);
}

GrpcGenerate* GrpcGenerate::StartChat(const HandlerContext& context, const GrpcStreamLimits& limits,
                                      grpc::CallbackServerContext* server_context,
                                      const v1::ChatRequest& request) {
  std::shared_ptr<GrpcGenerate> call(new GrpcGenerate(context, kChatRoute, limits));
  return StartCall(call, server_context, request.base(), &request);
}

GrpcGenerate* GrpcGenerate::StartCall(const std::shared_ptr<GrpcGenerate>& call,
                                      grpc::CallbackServerContext* server_context,
                                      v1::GenerateRequest request, const v1::ChatRequest* chat) {
  call->self_ = call;
  call->server_context_ = server_context;
  request.set_request_id(TakeRequestId(server_context, request.request_id()));
  call->request_id_ = request.request_id();
  call->traceparent_ = MetadataText(*server_context, "traceparent");
  if (const std::optional<ApiError> error = call->Prepare(chat, &request)) {
    call->Fail(*error);
    return call.get();
  }
  boost::asio::post(*call->context_.io,
                    [call, request = std::move(request)] { call->Submit(request); });
  return call.get();
}

std::optional<ApiError> GrpcGenerate::Prepare(const v1::ChatRequest* chat,
                                              v1::GenerateRequest* request) {
  auto model = FindModel(*context_.dispatcher->models(), request->model());
  if (auto* error = std::get_if<ApiError>(&model)) return *error;
  model_ = std::get<std::shared_ptr<const ModelHandle>>(model);
  request->set_model(model_->name);
  SetModelSampling(*model_, request->mutable_sampling());
  if (auto error = CheckParams(*request, *model_)) return error;
  if (auto error = chat != nullptr ? FillPromptFromChat(*chat, request) : FillPrompt(request))
    return error;
  if (auto error = CheckStructured(*request, *model_, structured_field_)) return error;
  const char* const field = chat != nullptr ? "messages" : "prompt";
  if (auto error = FitToContext(prompt_ids_.size(), *model_, request, field)) return error;
  SetSeed(RandomU64(), request);
  choices_ = ChoicesOf(*request);
  created_ = std::time(nullptr);
  v1::OutputOptions* output = request->mutable_output();
  return_token_ids_ = !output->has_return_token_ids() || output->return_token_ids();
  return_timing_ = output->return_timing();
  output->set_return_token_ids(true);
  output->clear_echo();  // done here
  if (!output->has_skip_special_tokens()) output->set_skip_special_tokens(true);
  return std::nullopt;
}

std::optional<ApiError> GrpcGenerate::FillPrompt(v1::GenerateRequest* request) {
  const bool echo = request->output().echo();
  if (request->prompt_case() == v1::GenerateRequest::kText) {
    if (auto error = CheckPromptBytes(request->text(), "text", *model_)) return error;
    StatusOr<std::vector<TokenId>> ids = model_->tokenizer->Encode(request->text());
    if (!ids.ok()) return InvalidField("text", std::string(ids.status().message()));
    prompt_ids_ = std::move(*ids);
    if (echo) echo_text_ = request->text();
    request->mutable_token_ids()->mutable_ids()->Add(prompt_ids_.begin(), prompt_ids_.end());
    return std::nullopt;
  }
  const auto& given = request->token_ids().ids();
  prompt_ids_.assign(given.begin(), given.end());
  if (auto error = CheckTokenIds(prompt_ids_, "token_ids", *model_)) return error;
  if (echo) echo_text_ = model_->tokenizer->Decode(prompt_ids_, false);
  return std::nullopt;
}

std::optional<ApiError> GrpcGenerate::FillPromptFromChat(const v1::ChatRequest& chat,
                                                         v1::GenerateRequest* request) {
  if (request->prompt_case() != v1::GenerateRequest::PROMPT_NOT_SET)
    return InvalidField("base.prompt", "'base.prompt' must be empty: the messages are the prompt.");
  CompletionRequest read;
  read.model = model_;
  read.params = std::move(*request);
  if (auto error = SetChatPrompt(chat, context_.parsers, &read)) return error;
  *request = std::move(read.params);
  structured_field_ = std::move(read.structured_field);
  if (AsksAsHttp(chat) != nullptr) syntax_ = std::move(read.syntax);
  CompletionPrompt& rendered = read.prompts[0];
  if (request->output().echo()) echo_text_ = std::move(rendered.text);
  prompt_ids_ = std::move(rendered.ids);
  request->mutable_token_ids()->mutable_ids()->Add(prompt_ids_.begin(), prompt_ids_.end());
  return std::nullopt;
}

// --- The io thread -----------------------------------------------------------------------------

void GrpcGenerate::Submit(const v1::GenerateRequest& request) {
  if (gone_) return;
  WatchWrites();
  merger_.emplace(choices_);
  echoed_.resize(choices_.num_choices);
  for (size_t i = 0; syntax_.has_value() && i < choices_.num_choices; ++i)
    readers_.emplace_back(*syntax_);
  const std::span<const int32_t> prompt = prompt_ids_;
  RequestKey key{context_.caller.tenant(), request.idempotency_key(), 0, ""};
  const bool keyed = !key.idempotency_key.empty();
  if (keyed) key.digest = RequestDigest(request, {&prompt, 1});
  auto submitted =
      context_.dispatcher->Submit(request, model_, shared_from_this(), keyed ? &key : nullptr);
  if (auto* error = std::get_if<ApiError>(&submitted))
    Fail(*error);
  else
    handle_ = std::get<uint64_t>(submitted);
}

void GrpcGenerate::CancelOnIo() {
  gone_ = true;
  if (handle_ != 0) context_.dispatcher->Cancel(handle_);
}

void GrpcGenerate::OnDelta(size_t choice, v1::Delta&& delta) {
  std::vector<v1::Delta> merged;
  merger_->Add(choice, std::move(delta), &merged);
  if (const auto error = room_.Resize(merger_->kept_bytes())) {
    Fail(*error);
    CancelOnIo();
    room_.Resize(0);
    return;
  }
  for (size_t i = 0; i < merged.size(); ++i)
    PushMerged(std::move(merged[i]), merger_->done() && i + 1 == merged.size());
  if (merger_->done()) End(grpc::Status::OK);
}

void GrpcGenerate::PushMerged(v1::Delta&& delta, bool last) {
  v1::GenerateResponse response;
  response.set_request_id(request_id_);
  response.set_model(model_->name);
  response.set_created(created_);
  response.mutable_choices()->Swap(delta.mutable_choices());
  response.mutable_prompt_logprobs()->Swap(delta.mutable_prompt_logprobs());
  if (last) *response.mutable_usage() = merger_->usage();
  if (last && return_timing_ && merger_->timing() != nullptr) {
    *response.mutable_timing() = *merger_->timing();
    response.mutable_timing()->set_received_ns(received_ns_);
    response.mutable_timing()->set_sent_ns(RealClock::Now());
  }
  if (!return_token_ids_) {
    for (v1::ChoiceDelta& choice : *response.mutable_choices()) choice.clear_token_ids();
  }
  if (syntax_.has_value()) {
    for (v1::ChoiceDelta& choice : *response.mutable_choices()) TellApart(&choice);
  }
  AddPrompt(&response);
  Push(std::move(response));
}

void GrpcGenerate::TellApart(v1::ChoiceDelta* choice) {
  ChoiceReader& reader = readers_[static_cast<size_t>(choice->index())];
  SetAnswer(reader.Read(*choice), choice);
  choice->set_finish_reason(reader.FinishReasonOf(*choice));
}

// The ids go with the first message, the echo with the first piece of each choice.
void GrpcGenerate::AddPrompt(v1::GenerateResponse* response) {
  if (std::exchange(first_, false)) {
    context_.metrics->Ttft(static_cast<double>(RealClock::Now() - received_ns_) * 1e-9);
    if (return_token_ids_)
      response->mutable_prompt_token_ids()->Add(prompt_ids_.begin(), prompt_ids_.end());
  }
  if (echo_text_.empty()) return;
  for (v1::ChoiceDelta& choice : *response->mutable_choices()) {
    const auto index = static_cast<size_t>(choice.index());
    if (!echoed_[index]) choice.set_text(StrCat(echo_text_, choice.text()));
    echoed_[index] = true;
  }
}

void GrpcGenerate::OnError(const ApiError& error) {
  ApiError told = error;
  NameAsClient(structured_field_, &told);
  Fail(told);
}

// --- Both --------------------------------------------------------------------------------------

void GrpcGenerate::Push(v1::GenerateResponse response) {
  bool overflow = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.has_value()) return;
    const uint64_t bytes = response.ByteSizeLong();
    overflow =
        queued_bytes_ + bytes > limits_.max_buffer_bytes && !queue_.empty() && !choices_.ranked();
    if (!overflow) {
      CountQueued(queued_bytes_ + bytes);
      queue_.push_back(std::move(response));
      if (queue_.size() == 1) WriteFront();
    }
  }
  if (!overflow) return;
  context_.metrics->Rejection("slow_client");
  End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                   "The client reads too slowly: the stream's buffer is full."));
  CancelOnIo();
}

void GrpcGenerate::Fail(const ApiError& error) {
  LogFailure(request_id_, error);
  End(ToGrpcStatus(error));
}

void GrpcGenerate::CountQueued(uint64_t bytes) {
  context_.metrics->StreamBuffer(static_cast<double>(bytes) - static_cast<double>(queued_bytes_));
  queued_bytes_ = bytes;
}

void GrpcGenerate::WriteFront() {
  write_began_ns_ = RealClock::Now();
  StartWrite(&queue_.front());
}

void GrpcGenerate::WatchWrites() {
  write_timer_.expires_after(std::chrono::milliseconds(limits_.write_timeout_ms));
  write_timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    if (error) return;
    if (const auto self = weak.lock()) self->LookAtWrite();
  });
}

void GrpcGenerate::LookAtWrite() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    const int64_t waits_ns = RealClock::Now() - write_began_ns_;
    if (!queue_.empty() && waits_ns >= limits_.write_timeout_ms * kNsPerMs) {
      context_.metrics->Rejection("slow_client");
      server_context_->TryCancel();  // the write ends, and then the call
      return;
    }
  }
  WatchWrites();
}

void GrpcGenerate::End(const grpc::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.has_value()) return;
  status_ = status;
  if (queue_.empty() && !std::exchange(finished_, true)) Finish(*status_);
}

void GrpcGenerate::OnWriteDone(bool ok) {
  std::lock_guard<std::mutex> lock(mutex_);
  CountQueued(queued_bytes_ - queue_.front().ByteSizeLong());
  queue_.pop_front();
  if (!ok) queue_.clear();
  if (!queue_.empty())
    WriteFront();
  else if (status_.has_value() && !std::exchange(finished_, true))
    Finish(*status_);
}

void GrpcGenerate::OnCancel() {
  bool early = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    early = !status_.has_value();
  }
  if (early) context_.metrics->ClientDisconnect();
  End(grpc::Status(grpc::StatusCode::CANCELLED, "The call was cancelled."));
  boost::asio::post(*context_.io, [self = shared_from_this()] { self->CancelOnIo(); });
}

void GrpcGenerate::OnDone() {
  CountQueued(0);
  context_.metrics->InFlight(-1);
  const double seconds = static_cast<double>(RealClock::Now() - received_ns_) * 1e-9;
  if (LogsDebug())
    Log().debug("answered {} {} {}", Kv("request_id", request_id_),
                Kv("code", static_cast<int>(status_->error_code())), Kv("seconds", seconds));
  context_.metrics->Request(route_, std::to_string(static_cast<int>(status_->error_code())),
                            seconds);
  CallTracker* const calls = context_.calls;
  self_.reset();
  calls->Remove();
}

}  // namespace flotilla
