#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "scheduler_proc/exchange/errors.h"
#include "scheduler_proc/output/output_side.h"

namespace flotilla {
namespace {

v1::FinishReason ToProto(Finish finish) {
  switch (finish) {
    case Finish::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case Finish::kStop:
      return v1::FINISH_REASON_STOP;
    case Finish::kLength:
      return v1::FINISH_REASON_LENGTH;
    case Finish::kAbort:
      return v1::FINISH_REASON_ABORT;
    case Finish::kDeadline:
      return v1::FINISH_REASON_DEADLINE;
    case Finish::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_ERROR;
}

// The stop token is not part of the text, unless it was asked for.
bool FeedsText(const StreamOptions& options, const ReqOutput& output) {
  return output.finish != Finish::kStop || output.stop_token != output.token ||
         options.include_stop;
}

}  // namespace

void OutputAssembler::OnEvent(OutputEvent&& event) {
  if (auto* open = std::get_if<OpenOutput>(&event)) return OnOpen(std::move(*open));
  if (auto* output = std::get_if<ReqOutput>(&event)) return OnOutput(std::move(*output));
  const FailOutput& fail = std::get<FailOutput>(event);
  Fail(fail.id, fail.status);
}

void OutputAssembler::OnOpen(OpenOutput&& open) {
  const ReqId id = open.id;
  Live& live = live_[id];
  live.emitted = static_cast<uint32_t>(open.resumed_ids.size());
  if (!open.options.embeds) deps_.detok->Open(id, open.options, open.resumed_ids);
  if (open.options.want_logprobs) {
    live.offsets =
        std::make_unique<IncrementalDetokenizer>(deps_.tokenizer, open.options.skip_special);
    for (int32_t token : open.resumed_ids)
      live.text_chars += CountCodePoints(live.offsets->Push(token));
  }
  live.open = std::move(open);
}

void OutputAssembler::OnOutput(ReqOutput&& output) {
  auto it = live_.find(output.id);
  if (it == live_.end()) return;
  Live* live = &it->second;
  if (!KeepPromptLogprobs(output, live)) return RefusePromptLogprobs(output.id, live);
  if (output.token.has_value() && !live->stopped_at.has_value()) OnToken(live, output);
  // What became of it behind its stop string is nobody's.
  if (live->stopped_at.has_value() &&
      (output.finish == Finish::kDeadline || output.finish == Finish::kError)) {
    output.finish = Finish::kStop;
  }
  switch (output.finish) {
    case Finish::kNone:
      return;
    case Finish::kAbort:
    case Finish::kDeadline:
      return EndNow(output, live);
    case Finish::kError:
      return Fail(output.id, Status(output.error_code, output.error), output.computed_tokens);
    case Finish::kStop:
    case Finish::kLength:
      break;
  }
  const ReqId id = output.id;
  if (live->open.options.embeds) return FinishEmbedding(output, live);
  live->final = std::move(output);
  if (live->text_done) {
    v1::Delta delta;
    Finish(id, live, &delta);
  } else {
    deps_.detok->Last(id);
  }
}

// False: all streams' together are more than may be kept.
bool OutputAssembler::KeepPromptLogprobs(const ReqOutput& output, Live* live) {
  for (const PositionLogprobs& entry : output.prompt_logprobs) {
    live->prompt_logprobs.push_back(ToProto(entry));
    const size_t bytes = live->prompt_logprobs.back().ByteSizeLong();
    live->prompt_logprobs_bytes += bytes;
    prompt_logprobs_bytes_ += bytes;
  }
  return prompt_logprobs_bytes_ <= deps_.large_results->max_bytes();
}

void OutputAssembler::RefusePromptLogprobs(ReqId id, Live* live) {
  live->prompt_logprobs.clear();
  prompt_logprobs_bytes_ -= std::exchange(live->prompt_logprobs_bytes, 0);
  deps_.inbox->Abort(id, flotilla::Finish::kAbort);
  Fail(id, absl::InvalidArgumentError(
               StrCat("prompt_logprobs: more than the ", deps_.large_results->max_bytes(),
                      " bytes that the replica keeps of all requests' together; ask for fewer")));
}

void OutputAssembler::OnToken(Live* live, const ReqOutput& output) {
  PendingToken pending;
  pending.id = *output.token;
  if (live->open.options.want_logprobs) {
    pending.logprobs = output.has_logprobs ? ToProto(output.logprobs) : v1::TokenLogprobs();
    pending.logprobs->set_text_offset(live->text_chars);
  }
  if (FeedsText(live->open.options, output)) {
    deps_.detok->Push(output.id, pending.id);
    if (live->offsets) live->text_chars += CountCodePoints(live->offsets->Push(pending.id));
  }
  live->pending.push_back(std::move(pending));
}

void OutputAssembler::OnText(DetokText&& text) {
  auto it = live_.find(text.stream);
  if (it == live_.end()) return;
  Live* live = &it->second;
  v1::Delta delta;
  EmitTokens(live, text.num_tokens, &delta);
  const bool has_text = !text.text.empty();
  delta.mutable_choices(0)->set_text(std::move(text.text));
  const auto& stops = live->open.options.stop;
  if (text.stop_index >= 0 && static_cast<size_t>(text.stop_index) < stops.size()) {
    live->stopped_at = text.num_tokens;
    live->stop_reason = stops[static_cast<size_t>(text.stop_index)];
    live->pending.clear();
    deps_.inbox->Truncate(text.stream, text.num_tokens);
  }
  live->text_done = text.last || live->stopped_at.has_value();
  if (live->text_done && live->final.has_value()) return Finish(text.stream, live, &delta);
  if (!live->text_done) delta.set_held_back(std::move(text.held_back));
  if (has_text || delta.choices(0).token_ids_size() > 0)
    Append(text.stream, live, std::move(delta));
}

void OutputAssembler::EmitTokens(Live* live, uint32_t count, v1::Delta* delta) {
  v1::ChoiceDelta* choice =
      delta->choices_size() > 0 ? delta->mutable_choices(0) : delta->add_choices();
  const size_t n = std::min<size_t>(count - std::min(count, live->emitted), live->pending.size());
  for (size_t i = 0; i < n; ++i) {
    PendingToken& token = live->pending[i];
    choice->add_token_ids(token.id);
    if (token.logprobs.has_value()) *choice->add_logprobs() = std::move(*token.logprobs);
  }
  live->pending.erase(live->pending.begin(), live->pending.begin() + static_cast<ptrdiff_t>(n));
  live->emitted += static_cast<uint32_t>(n);
}

// Text and core both are through: the last delta, with what is left (a stop token has no text).
void OutputAssembler::Finish(ReqId id, Live* live, v1::Delta* delta) {
  const ReqOutput& final = *live->final;
  EmitTokens(live, live->emitted + static_cast<uint32_t>(live->pending.size()), delta);
  v1::ChoiceDelta* choice = delta->mutable_choices(0);
  choice->set_finish_reason(live->stopped_at ? v1::FINISH_REASON_STOP
                                             : flotilla::ToProto(final.finish));
  const auto& stop_ids = live->open.options.stop_token_ids;
  if (live->stopped_at) {
    choice->set_stop_reason(live->stop_reason);
  } else if (final.finish == Finish::kStop &&
             std::find(stop_ids.begin(), stop_ids.end(), final.stop_token) != stop_ids.end()) {
    choice->set_stop_reason(StrCat(final.stop_token));
  }
  AddUsage(*live, final, delta);
  delta->set_last(true);
  Append(id, live, std::move(*delta));
}

// Normalised with a norm summed in double in the order of the elements: on every machine the same.
void OutputAssembler::FinishEmbedding(const ReqOutput& output, Live* live) {
  double squares = 0;
  for (const float value : output.embedding) squares += double{value} * value;
  const double norm = live->open.options.normalize && squares > 0 ? std::sqrt(squares) : 1;
  v1::Delta delta;
  for (const float value : output.embedding) delta.add_embedding(static_cast<float>(value / norm));
  delta.add_choices()->set_finish_reason(v1::FINISH_REASON_STOP);
  AddUsage(*live, output, &delta);
  delta.set_last(true);
  Append(output.id, live, std::move(delta));
}

void OutputAssembler::AddUsage(const Live& live, const ReqOutput& final, v1::Delta* delta) const {
  v1::Usage* usage = delta->mutable_usage();
  usage->set_prompt_tokens(static_cast<int32_t>(live.open.prompt_tokens));
  usage->set_cached_tokens(static_cast<int32_t>(final.cached_tokens));
  usage->set_completion_tokens(
      static_cast<int32_t>(live.stopped_at.value_or(final.completion_tokens)));
  if (!live.open.options.return_timing) return;
  v1::Timing* timing = delta->mutable_timing();
  // A stage that it did not come to is empty, and the one in which it ended lasts until then.
  const int64_t finished_ns = deps_.clock->NowNs();
  const auto or_end = [&](int64_t ns) { return ns == 0 ? finished_ns : ns; };
  timing->set_arrival_ns(live.open.arrival_ns);
  timing->set_queued_ns(or_end(final.queued_ns));
  timing->set_first_scheduled_ns(or_end(final.first_scheduled_ns));
  timing->set_first_token_ns(or_end(final.first_token_ns));
  timing->set_finished_ns(finished_ns);
  timing->set_wait_reason(WaitReasonName(final.wait_reason));
}

// Text that is held back does not come any more.
void OutputAssembler::EndNow(const ReqOutput& final, Live* live) {
  v1::Delta delta;
  delta.add_choices()->set_finish_reason(flotilla::ToProto(final.finish));
  AddUsage(*live, final, &delta);
  delta.mutable_usage()->set_completion_tokens(static_cast<int32_t>(live->emitted));
  delta.set_computed_tokens(final.computed_tokens);
  delta.set_last(true);
  Append(final.id, live, std::move(delta));
}

void OutputAssembler::Fail(ReqId id, const Status& status, uint32_t computed_tokens) {
  auto it = live_.find(id);
  if (it == live_.end()) return;
  // Full queues are in the metrics; what is our own fault is for people.
  Log().log(absl::IsInternal(status) ? spdlog::level::warn : spdlog::level::debug,
            "failed {} {} {}", Kv("request_id", it->second.open.options.request_id), Kv("req", id),
            Kv("error", std::string(status.message())));
  v1::Delta delta;
  delta.add_choices()->set_finish_reason(v1::FINISH_REASON_ERROR);
  *delta.mutable_error() = ToError(status);
  delta.set_computed_tokens(computed_tokens);
  delta.set_last(true);
  Append(id, &it->second, std::move(delta));
}

// False: they are more than may be kept.
bool OutputAssembler::AddPromptLogprobs(Live* live, v1::Delta* delta) {
  std::vector<v1::TokenLogprobs> entries = std::exchange(live->prompt_logprobs, {});
  const size_t bytes = std::exchange(live->prompt_logprobs_bytes, 0);
  prompt_logprobs_bytes_ -= bytes;
  if (bytes > kLargeResultBytes && !entries.empty()) {
    delta->set_large_result_id(deps_.large_results->Put(std::move(entries)));
    return delta->large_result_id() != 0;
  }
  for (v1::TokenLogprobs& entry : entries) *delta->add_prompt_logprobs() = std::move(entry);
  return true;
}

void OutputAssembler::Append(ReqId id, Live* live, v1::Delta&& delta) {
  if (!AddPromptLogprobs(live, &delta)) return RefusePromptLogprobs(id, live);
  const bool last = delta.last();
  const std::shared_ptr<OutputSink> sink = live->open.sink;
  const bool wanted = sink->Append(live->open.stream, std::move(delta));
  if (std::find(touched_.begin(), touched_.end(), sink) == touched_.end()) touched_.push_back(sink);
  if (!last) {
    // Whoever left may have said so before the core knew of it.
    if (!wanted) deps_.inbox->Abort(id, flotilla::Finish::kAbort);
    return;
  }
  deps_.detok->Close(id);
  live_.erase(id);
  deps_.on_finished(id);
}

void OutputAssembler::Flush() {
  deps_.detok->Flush();
  for (const std::shared_ptr<OutputSink>& sink : touched_) sink->Flush();
  touched_.clear();
}

v1::TokenLogprobs OutputAssembler::ToProto(const PositionLogprobs& logprobs) const {
  v1::TokenLogprobs out;
  out.set_token_id(logprobs.token);
  out.set_logprob(logprobs.logprob);
  out.set_rank(static_cast<int32_t>(logprobs.rank));
  out.set_token(std::string(deps_.tokenizer->TokenBytes(logprobs.token)));
  for (const TokenLogprob& top : logprobs.top) {
    v1::TopLogprob* entry = out.add_top();
    entry->set_token_id(top.token);
    entry->set_logprob(top.logprob);
    entry->set_token(std::string(deps_.tokenizer->TokenBytes(top.token)));
  }
  return out;
}

}  // namespace flotilla
