#include "router/observe/finished_requests.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "router/observe/request_timing.h"

namespace flotilla {
namespace {

constexpr int64_t kBetweenSlowNs = kNsPerSecond / 10;

const char* OutcomeOf(const RequestStream& stream, const v1::Delta& last) {
  const auto reason =
      last.choices_size() == 0 ? v1::FINISH_REASON_STOP : last.choices(0).finish_reason();
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return stream.embed.has_value() ? "embedded" : "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_ABORT:
      return "aborted";
    case v1::FINISH_REASON_DEADLINE:
      return "deadline";
    default:
      return "error";
  }
}

}  // namespace

void FinishedRequests::OnArrival(const RequestStream& first, RequestStream* stream) const {
  if (&first != stream)
    stream->trace = first.trace;
  else if (tracer_ != nullptr)
    stream->trace = tracer_->Begin(stream->sink->traceparent());
  if (!Wants(*stream)) return;
  if (stream->embed.has_value()) return;  // has no stages but one, and no output to ask in
  stream->timing_is_ours = !stream->request.output().return_timing();
  stream->request.mutable_output()->set_return_timing(true);
}

FinishedRequest FinishedRequests::Describe(const RequestStream& stream,
                                           const std::string& replica) const {
  FinishedRequest request;
  request.request_id = stream.request.request_id();
  request.tenant = stream.sink->tenant();
  request.model = stream.model->name;
  request.replica = replica;
  request.choice = stream.choice;
  request.arrival_unix_ms = stream.arrival_unix_ms;
  request.arrival_ns = stream.arrival_ns;
  request.first_token_ns = stream.first_token_ns;
  request.end_ns = RealClock::Now();
  request.usage.set_prompt_tokens(static_cast<int32_t>(stream.prompt_tokens()));
  request.usage.set_completion_tokens(static_cast<int32_t>(stream.progress.num_tokens()));
  return request;
}

void FinishedRequests::OnEnd(const RequestStream& stream, const std::string& replica,
                             const char* outcome) {
  if (!Wants(stream)) return;
  FinishedRequest request = Describe(stream, replica);
  request.outcome = outcome;
  Add(stream, std::move(request));
}

void FinishedRequests::OnLast(const RequestStream& stream, const std::string& replica,
                              v1::Delta* last) {
  if (!Wants(stream)) return;
  FinishedRequest request = Describe(stream, replica);
  request.outcome = OutcomeOf(stream, *last);
  request.usage = last->usage();
  request.timing = last->timing();
  if (stream.timing_is_ours) last->clear_timing();
  Add(stream, std::move(request));
}

bool FinishedRequests::IsSlow(const FinishedRequest& request) const {
  if (slow_ms_ == 0) return false;
  const int64_t limit_ns = slow_ms_ * kNsPerMs;
  if (request.first_token_ns == 0) return request.end_ns - request.arrival_ns > limit_ns;
  const int64_t further = request.usage.completion_tokens() - 1;
  return request.first_token_ns - request.arrival_ns > limit_ns ||
         (further > 0 && (request.end_ns - request.first_token_ns) / further > limit_ns / 10);
}

// When all are slow, a few say so.
void FinishedRequests::LogSlow(const FinishedRequest& request) {
  if (logged_ns_ != 0 && request.end_ns - logged_ns_ < kBetweenSlowNs) {
    ++not_logged_;
    return;
  }
  logged_ns_ = request.end_ns;
  const auto ms = [](int64_t ns) { return (ns + kNsPerMs / 2) / kNsPerMs; };
  const RequestStages stages = request.timing.finished_ns() == 0
                                   ? RequestStages{.total_ns = request.end_ns - request.arrival_ns}
                                   : StagesOf(request.timing, request.arrival_ns, request.end_ns);
  const int64_t first_ns =
      request.first_token_ns == 0 ? 0 : request.first_token_ns - request.arrival_ns;
  Log().info("slow request {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
             Kv("request_id", request.request_id), Kv("model", request.model),
             Kv("replica", request.replica), Kv("outcome", request.outcome),
             Kv("prompt_tokens", request.usage.prompt_tokens()),
             Kv("cached_tokens", request.usage.cached_tokens()),
             Kv("completion_tokens", request.usage.completion_tokens()),
             Kv("total_ms", ms(stages.total_ns)), Kv("first_token_ms", ms(first_ns)),
             Kv("router_ms", ms(stages.router_ns + stages.engine_ns)),
             Kv("queue_ms", ms(stages.queue_ns)), Kv("prefill_ms", ms(stages.prefill_ns)),
             Kv("decode_ms", ms(stages.decode_ns)), Kv("wait_reason", request.timing.wait_reason()),
             Kv("not_logged", std::exchange(not_logged_, 0)));
}

void FinishedRequests::Add(const RequestStream& stream, FinishedRequest request) {
  if (IsSlow(request)) LogSlow(request);
  if (stream.trace.has_value()) tracer_->End(request, *stream.trace);
  if (most_ == 0) return;
  request.number = ++number_;
  requests_.push_back(std::move(request));
  if (requests_.size() > most_) requests_.pop_front();
}

}  // namespace flotilla
