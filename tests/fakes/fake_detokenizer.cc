#include "tests/fakes/fake_detokenizer.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/base/check.h"
#include "common/text/detok_frames.h"
#include "common/text/incremental_detokenizer.h"

namespace flotilla {
namespace {

// A stream's text is recomputed from all its tokens each time: slow, and hard to get wrong.
struct Stream {
  DetokStreamEvent open;
  std::vector<TokenId> tokens;
  size_t sent_bytes = 0;
};

struct Text {
  std::string certain;
  std::string held;
  int32_t stop_index = -1;
  uint32_t num_tokens = 0;
};

// The certain text of the first `count` tokens, up to a stop string if one is in it.
Text TextOf(const Tokenizer* tokenizer, const Stream& s, size_t count, bool last) {
  IncrementalDetokenizer detok(tokenizer, s.open.skip_special);
  Text out;
  size_t just_text = 0;  // bytes of the first min_tokens: a stop string that ends in them is none
  for (size_t i = 0; i < count; ++i) {
    out.certain += detok.Push(s.tokens[i]);
    out.num_tokens = static_cast<uint32_t>(i + 1);
    if (i < s.open.min_tokens) just_text = out.certain.size();
    size_t first = std::string::npos;
    for (size_t k = 0; k < s.open.stop.size(); ++k) {
      const size_t bytes = s.open.stop[k].size();
      const size_t at =
          out.certain.find(s.open.stop[k], just_text + 1 - std::min(just_text + 1, bytes));
      if (at >= first) continue;
      first = at;
      out.stop_index = static_cast<int32_t>(k);
    }
    if (out.stop_index < 0) continue;
    const std::string& stop = s.open.stop[static_cast<size_t>(out.stop_index)];
    out.certain.resize(first + (s.open.include_stop ? stop.size() : 0));
    return out;
  }
  if (last) {
    out.certain += detok.Finish();
    return out;
  }
  // The longest end that may begin a stop string is held back.
  size_t keep = 0;
  for (const std::string& stop : s.open.stop)
    for (size_t n = std::min(stop.size() - 1, out.certain.size()); n > keep; --n)
      if (out.certain.compare(out.certain.size() - n, n, stop, 0, n) == 0) keep = n;
  out.held = out.certain.substr(out.certain.size() - keep) + std::string(detok.held_back());
  out.certain.resize(out.certain.size() - keep);
  return out;
}

}  // namespace

FakeDetokenizer::FakeDetokenizer(const Tokenizer* tokenizer, std::string request_address,
                                 std::string reply_address)
    : tokenizer_(tokenizer),
      request_address_(std::move(request_address)),
      reply_address_(std::move(reply_address)) {
  Restart();
}

void FakeDetokenizer::Kill() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

void FakeDetokenizer::Restart() {
  Kill();
  stop_.store(false);
  dead_.store(false);
  die_after_.store(-1);
  thread_ = std::thread([this, incarnation = ++incarnation_] { Run(incarnation); });
}

void FakeDetokenizer::Run(uint32_t incarnation) {
  zmq::context_t context(1);
  zmq::socket_t in(context, zmq::socket_type::pull), out(context, zmq::socket_type::push);
  in.set(zmq::sockopt::rcvtimeo, 20);
  in.set(zmq::sockopt::linger, 0);
  out.set(zmq::sockopt::linger, 0);
  in.connect(request_address_);
  out.connect(reply_address_);
  std::string frame;
  DetokReply hello;
  hello.kind = DetokReply::Kind::kHello;
  hello.incarnation = incarnation;
  BuildDetokReply(hello, &frame);
  out.send(zmq::buffer(frame), zmq::send_flags::none);

  std::map<uint64_t, Stream> streams;
  zmq::message_t message;
  while (!stop_.load()) {
    if (!in.recv(message)) continue;
    DetokRequest request;
    CHECK_OK(ParseDetokRequest(message.to_string_view(), &request));
    DetokReply reply;
    reply.generation = request.generation;
    for (DetokStreamEvent& event : request.events) {
      const uint64_t id = event.stream;
      if (event.kind == DetokStreamEvent::Kind::kClose) {
        streams.erase(id);
        continue;
      }
      if (event.kind == DetokStreamEvent::Kind::kOpen) {
        Stream& s = streams[id];
        s = Stream{event, event.tokens, 0};
        s.sent_bytes = TextOf(tokenizer_, s, event.emitted_tokens, false).certain.size();
      } else {
        auto it = streams.find(id);
        if (it == streams.end()) continue;
        CHECK(event.offset == it->second.tokens.size());
        it->second.tokens.insert(it->second.tokens.end(), event.tokens.begin(), event.tokens.end());
      }
      Stream& s = streams[id];
      Text text = TextOf(tokenizer_, s, s.tokens.size(), event.last);
      DetokText answer;
      answer.stream = id;
      answer.num_tokens = text.num_tokens;
      answer.text = text.certain.substr(std::min(s.sent_bytes, text.certain.size()));
      answer.held_back = std::move(text.held);
      answer.stop_index = text.stop_index;
      answer.last = event.last || text.stop_index >= 0;
      s.sent_bytes = std::max(s.sent_bytes, text.certain.size());
      if (answer.last) streams.erase(id);
      reply.texts.push_back(std::move(answer));
    }
    if (die_after_.load() >= 0 && die_after_.fetch_sub(1) == 0) {
      dead_.store(true);
      return;
    }
    if (reply.texts.empty()) continue;
    BuildDetokReply(reply, &frame);
    out.send(zmq::buffer(frame), zmq::send_flags::none);
  }
}

}  // namespace flotilla
