#include "router/handlers/embeddings_handler.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/base/clock.h"
#include "router/base/random.h"
#include "router/base/request_timeout.h"

namespace flotilla {
namespace {

constexpr uint64_t kElementBytes = 16;  // its float, and its digits in the answer
constexpr size_t kMaxInFlight = 512;    // of one request's inputs

}  // namespace

class EmbeddingsHandler::Sink final : public GenerateSink {
 public:
  Sink(std::shared_ptr<EmbeddingsHandler> handler, size_t input)
      : handler_(std::move(handler)), input_(input) {}
  void OnDelta(size_t, v1::Delta&& delta) override { handler_->OnDelta(input_, std::move(delta)); }
  void OnError(const ApiError& error) override { handler_->OnError(error); }
  const Caller& caller() const override { return handler_->context_.caller; }
  const std::string& traceparent() const override { return handler_->traceparent_; }

 private:
  const std::shared_ptr<EmbeddingsHandler> handler_;
  const size_t input_;
};

EmbeddingsHandler::EmbeddingsHandler(const HandlerContext& context,
                                     std::shared_ptr<HttpExchange> exchange)
    : context_(context),
      exchange_(std::move(exchange)),
      room_(std::make_shared<AnswerRoom>(context.answers)) {
  exchange_->Keep(room_);
  context_.metrics->InFlight(1);
}

EmbeddingsHandler::~EmbeddingsHandler() { context_.metrics->InFlight(-1); }

void EmbeddingsHandler::Start(HttpRequest request) {
  traceparent_ = std::move(request.head.traceparent);
  exchange_->set_on_disconnect([self = shared_from_this()] { self->OnDisconnect(); });
  const int64_t max_ms = context_.dispatcher->max_request_ms();
  int64_t timeout_ms = 0;
  if (const auto error = ReadRequestTimeout(request.head.request_timeout, max_ms, &timeout_ms))
    return OnError(*error);
  end_ns_ = RealClock::Now() + (timeout_ms > 0 ? timeout_ms : max_ms) * kNsPerMs;
  std::shared_ptr<const ModelTable> models = context_.dispatcher->models();
  if (request.body.size() <= kParseOffThreadBytes) {
    OnParsed(ParseEmbeddings(request.body, *models));
    return;
  }
  WorkOffThread(
      context_, std::move(request),
      [models = std::move(models)](const std::string& body) {
        return ParseEmbeddings(body, *models);
      },
      [self = shared_from_this()](Parsed parsed) { self->OnParsed(std::move(parsed)); });
}

void EmbeddingsHandler::OnParsed(Parsed parsed) {
  if (ended_) return;  // the client left meanwhile
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    OnError(*error);
    return;
  }
  request_ = std::move(std::get<EmbeddingsRequest>(parsed));
  answer_.id = StrCat("embd-", RandomHex128());
  answer_.created = std::time(nullptr);
  answer_.data.resize(request_.inputs.size());
  for (size_t i = 0; i < kMaxInFlight; ++i) SubmitNext();
}

void EmbeddingsHandler::SubmitNext() {
  const size_t input = handles_.size();
  if (ended_ || input == request_.inputs.size()) return;
  v1::GenerateRequest request = request_.params;
  request.set_request_id(exchange_->request_id());
  request.set_deadline_ms(std::max<int64_t>(1, (end_ns_ - RealClock::Now()) / kNsPerMs));
  const std::vector<int32_t>& ids = request_.inputs[input].ids;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  auto submitted =
      context_.dispatcher->SubmitEmbed(std::move(request), request_.embed, request_.model,
                                       std::make_shared<Sink>(shared_from_this(), input));
  if (auto* error = std::get_if<ApiError>(&submitted))
    OnError(*error);
  else
    handles_.push_back(std::get<uint64_t>(submitted));
}

void EmbeddingsHandler::OnDelta(size_t input, v1::Delta&& delta) {
  if (ended_ || !delta.last()) return;
  if (const auto error = EmbeddingFailure(delta)) {
    OnError(*error);
    return;
  }
  kept_bytes_ += kElementBytes * static_cast<uint64_t>(delta.embedding_size());
  if (const auto error = room_->Resize(kept_bytes_)) {
    OnError(*error);
    return;
  }
  answer_.data[input].Swap(delta.mutable_embedding());
  v1::Usage* usage = &answer_.usage;
  usage->set_prompt_tokens(usage->prompt_tokens() + delta.usage().prompt_tokens());
  usage->set_cached_tokens(usage->cached_tokens() + delta.usage().cached_tokens());
  if (++finished_ < request_.inputs.size()) {
    // Later, since the dispatcher is in the middle of telling this.
    if (handles_.size() < request_.inputs.size())
      boost::asio::post(*context_.io, [self = shared_from_this()] { self->SubmitNext(); });
    return;
  }
  ended_ = true;
  exchange_->Reply(200, "application/json", EmbeddingsJson(request_, answer_));
}

void EmbeddingsHandler::OnError(const ApiError& error) {
  if (ended_) return;
  ended_ = true;
  LogFailure(exchange_->request_id(), error);
  CancelAll();
  room_->Resize(0);
  exchange_->ReplyError(error);
}

void EmbeddingsHandler::OnDisconnect() {
  if (ended_) return;
  ended_ = true;
  context_.metrics->ClientDisconnect();
  CancelAll();
}

void EmbeddingsHandler::CancelAll() {
  for (uint64_t handle : handles_) context_.dispatcher->Cancel(handle);
  handles_.clear();
}

}  // namespace flotilla
