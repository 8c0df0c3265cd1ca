#include "router/finished_requests.h"

#include <utility>

#include "common/base/clock.h"

namespace flotilla {
namespace {

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

void FinishedRequests::Add(const RequestStream& stream, FinishedRequest request) {
  if (stream.trace.has_value()) tracer_->End(request, *stream.trace);
  if (most_ == 0) return;
  request.number = ++number_;
  requests_.push_back(std::move(request));
  if (requests_.size() > most_) requests_.pop_front();
}

}  // namespace flotilla
