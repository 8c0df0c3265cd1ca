#include "detokenizer_proc/detokenizer_core.h"

#include <algorithm>
#include <utility>

namespace flotilla {

DetokenizerCore::Outcome DetokenizerCore::Apply(const DetokRequest& request) {
  if (request.generation != generation_) {
    Reset();
    generation_ = request.generation;
  }
  Outcome outcome;
  outcome.reply.kind = DetokReply::Kind::kText;
  outcome.reply.generation = request.generation;
  for (const DetokStreamEvent& event : request.events) {
    switch (event.kind) {
      case DetokStreamEvent::Kind::kOpen:
        Open(event, &outcome);
        break;
      case DetokStreamEvent::Kind::kTokens:
        Tokens(event, &outcome);
        break;
      case DetokStreamEvent::Kind::kClose:
        streams_.erase(event.stream);
        break;
    }
  }
  return outcome;
}

void DetokenizerCore::Reset() {
  streams_.clear();
  ended_.clear();
  ended_order_.clear();
}

void DetokenizerCore::End(uint64_t id) {
  streams_.erase(id);
  if (!ended_.insert(id).second) return;
  ended_order_.push_back(id);
  if (ended_order_.size() <= limits_.max_ended) return;
  ended_.erase(ended_order_.front());
  ended_order_.pop_front();
}

void DetokenizerCore::Open(const DetokStreamEvent& event, Outcome* outcome) {
  streams_.erase(event.stream);
  size_t stop_bytes = 0;
  for (const std::string& stop : event.stop) stop_bytes += stop.size();
  if (streams_.size() >= limits_.max_streams || stop_bytes > limits_.max_stop_bytes ||
      event.emitted_tokens > event.tokens.size()) {
    ++outcome->rejected_events;
    outcome->troubled_ids.push_back(event.request_id);
    End(event.stream);
    return;
  }
  Stream& stream = streams_.emplace(event.stream, Stream(tokenizer_, event)).first->second;
  // The part that was sent on before is played again, with its text thrown away.
  std::string text;
  for (TokenId id : event.tokens) {
    if (stream.stop_index >= 0) break;
    Push(&stream, id, &text);
    if (stream.num_tokens <= event.emitted_tokens) text.clear();
  }
  outcome->num_tokens += stream.num_tokens;
  if (!event.tokens.empty() || event.last)
    Answer(event.stream, &stream, std::move(text), event.last, outcome);
}

void DetokenizerCore::Tokens(const DetokStreamEvent& event, Outcome* outcome) {
  const auto found = streams_.find(event.stream);
  if (found == streams_.end()) {
    // Its stop string was found and the scheduler had not heard of it; or its kOpen was lost.
    if (!ended_.contains(event.stream)) outcome->resync = true;
    return;
  }
  Stream& stream = found->second;
  if (event.offset > stream.num_tokens) {
    outcome->troubled_ids.push_back(stream.request_id);
    streams_.erase(found);
    outcome->resync = true;
    return;
  }
  // Tokens that it has already are skipped.
  const size_t known = std::min<size_t>(stream.num_tokens - event.offset, event.tokens.size());
  const uint32_t before = stream.num_tokens;
  std::string text;
  for (size_t i = known; i < event.tokens.size() && stream.stop_index < 0; ++i)
    Push(&stream, event.tokens[i], &text);
  outcome->num_tokens += stream.num_tokens - before;
  Answer(event.stream, &stream, std::move(text), event.last, outcome);
}

void DetokenizerCore::Answer(uint64_t id, Stream* stream, std::string text, bool last,
                             Outcome* outcome) {
  if (last && stream->stop_index < 0) Flush(stream, &text);
  DetokText answer;
  answer.stream = id;
  answer.num_tokens = stream->num_tokens;
  answer.text = std::move(text);
  answer.stop_index = stream->stop_index;
  answer.last = last || stream->stop_index >= 0;
  if (!answer.last) answer.held_back = stream->held + std::string(stream->detokenizer.held_back());
  outcome->reply.texts.push_back(std::move(answer));
  if (outcome->reply.texts.back().last) End(id);
}

void DetokenizerCore::Push(Stream* stream, TokenId id, std::string* out) {
  ++stream->num_tokens;
  Feed(stream, stream->detokenizer.Push(id), out);
}

void DetokenizerCore::Flush(Stream* stream, std::string* out) {
  Feed(stream, stream->detokenizer.Finish(), out);
  if (stream->stop_index < 0) out->append(std::exchange(stream->held, {}));
}

void DetokenizerCore::Feed(Stream* stream, std::string_view text, std::string* out) {
  std::string& held = stream->held;
  for (char byte : text) {
    held.push_back(byte);
    const std::optional<StopMatcher::Match> match = stream->matcher.Push(byte);
    if (!match.has_value() || stream->num_tokens <= stream->min_tokens) continue;
    stream->stop_index = match->index;
    if (!stream->include_stop) held.resize(held.size() - match->length);
    out->append(std::exchange(held, {}));
    return;
  }
  const size_t keep = stream->include_stop ? 0 : stream->matcher.open_bytes();
  out->append(held, 0, held.size() - keep);
  held.erase(0, held.size() - keep);
}

}  // namespace flotilla
