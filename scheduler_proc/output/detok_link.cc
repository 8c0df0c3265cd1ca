#include "scheduler_proc/output/detok_link.h"

#include <utility>
#include <zmq.hpp>

#include "common/base/log.h"

namespace flotilla {
namespace {

constexpr int64_t kMaxReplyBytes = 16 << 20;

DetokStreamEvent OpenEvent(uint64_t id, const StreamOptions& options) {
  DetokStreamEvent event;
  event.kind = DetokStreamEvent::Kind::kOpen;
  event.stream = id;
  event.request_id = options.request_id;
  event.skip_special = options.skip_special;
  event.stop = options.stop;
  event.include_stop = options.include_stop;
  event.min_tokens = options.min_tokens;
  return event;
}

// In a frame, about.
size_t EventBytes(const DetokStreamEvent& event) {
  size_t bytes = 64 + event.request_id.size() + event.tokens.size() * sizeof(TokenId);
  for (const std::string& stop : event.stop) bytes += stop.size();
  return bytes;
}

}  // namespace

DetokLink::DetokLink() = default;
DetokLink::~DetokLink() = default;

StatusOr<std::unique_ptr<DetokLink>> DetokLink::Bind(const std::string& request_address,
                                                     const std::string& reply_address) {
  std::unique_ptr<DetokLink> link(new DetokLink);
  const std::string* address = &request_address;
  try {
    link->context_ = std::make_unique<zmq::context_t>(1);
    auto open = [&](zmq::socket_type type) {
      auto socket = std::make_unique<zmq::socket_t>(*link->context_, type);
      socket->set(zmq::sockopt::linger, 0);
      socket->set(zmq::sockopt::sndhwm, kDetokQueueFrames);
      socket->set(zmq::sockopt::rcvhwm, kDetokQueueFrames);
      socket->set(zmq::sockopt::maxmsgsize, kMaxReplyBytes);
      socket->bind(*address);
      return socket;
    };
    link->requests_ = open(zmq::socket_type::push);
    address = &reply_address;
    link->replies_ = open(zmq::socket_type::pull);
  } catch (const zmq::error_t& error) {
    return absl::UnavailableError(
        StrCat("can't bind the detokenizer socket ", *address, ": ", error.what()));
  }
  return link;
}

void* DetokLink::reply_socket() const { return replies_->handle(); }

void DetokLink::Open(uint64_t stream, const StreamOptions& options,
                     const std::vector<int32_t>& history) {
  Stream& s = streams_[stream];
  s = Stream();
  s.options = options;
  s.tokens = history;
  s.emitted = static_cast<uint32_t>(history.size());
  DetokStreamEvent event = OpenEvent(stream, options);
  event.tokens.assign(history.begin(), history.end());
  event.emitted_tokens = s.emitted;
  pending_.events.push_back(std::move(event));
}

void DetokLink::Push(uint64_t stream, int32_t token) {
  auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  DetokStreamEvent event;
  event.stream = stream;
  event.offset = static_cast<uint32_t>(it->second.tokens.size());
  event.tokens.push_back(token);
  it->second.tokens.push_back(token);
  pending_.events.push_back(std::move(event));
}

void DetokLink::Last(uint64_t stream) {
  auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  it->second.last = true;
  // The step that ends a stream nearly always brought its last token too: one event for both.
  if (!pending_.events.empty() && pending_.events.back().stream == stream &&
      pending_.events.back().kind == DetokStreamEvent::Kind::kTokens) {
    pending_.events.back().last = true;
    return;
  }
  DetokStreamEvent event;
  event.stream = stream;
  event.offset = static_cast<uint32_t>(it->second.tokens.size());
  event.last = true;
  pending_.events.push_back(std::move(event));
}

void DetokLink::Close(uint64_t stream) {
  if (streams_.erase(stream) == 0) return;
  DetokStreamEvent event;
  event.kind = DetokStreamEvent::Kind::kClose;
  event.stream = stream;
  pending_.events.push_back(std::move(event));
}

void DetokLink::Flush() {
  if (stuck_) {
    if ((requests_->get(zmq::sockopt::events) & ZMQ_POLLOUT) == 0) {
      pending_.events.clear();  // OpenAll brings all of it
      return;
    }
    stuck_ = false;
    OpenAll();
    return;
  }
  if (!pending_.events.empty()) Send();
}

void DetokLink::Send() {
  if (!connected()) {  // the hello will bring every live stream
    pending_.events.clear();
    return;
  }
  pending_.generation = generation_;
  frame_.clear();
  BuildDetokRequest(pending_, &frame_);
  pending_.events.clear();
  try {
    // ZeroMQ looks for connections that ended only now and then in send; asking for the events
    // makes it look, so that the frame does not go to a detokenizer that is dead.
    (void)requests_->get(zmq::sockopt::events);
    stuck_ = !requests_->send(zmq::buffer(frame_), zmq::send_flags::dontwait).has_value();
  } catch (const zmq::error_t& error) {
    Log().error("detokenizer send failed {}", Kv("error", error.what()));
    stuck_ = true;
  }
}

void DetokLink::Tick(int64_t now_ns) {
  if (!connected() || stuck_) return;
  bool lost = false, waiting = false;
  for (auto& [id, stream] : streams_) {
    if (!stream.last && stream.emitted == stream.tokens.size()) {
      stream.waiting_since_ns = 0;
    } else if (stream.waiting_since_ns == 0 || stream.waiting_at != stream.emitted) {
      stream.waiting_since_ns = now_ns;
      stream.waiting_at = stream.emitted;
    } else if (now_ns - stream.waiting_since_ns >= patience_ns_) {
      lost = true;
    }
    waiting = waiting || stream.waiting_since_ns != 0;
  }
  if (!waiting) patience_ns_ = kDetokAnswerNs;
  if (!lost) return;
  Log().warn("detokenizer does not answer, opening its streams again {}",
             Kv("streams", streams_.size()));
  patience_ns_ *= 2;
  OpenAll();
}

void DetokLink::Receive(std::vector<DetokText>* texts) {
  zmq::message_t message;
  DetokReply reply;
  try {
    while (replies_->recv(message, zmq::recv_flags::dontwait)) {
      reply = DetokReply{};
      const Status parsed = ParseDetokReply(message.to_string_view(), &reply);
      if (!parsed.ok()) {
        ++bad_frames_;
        Log().warn("detokenizer frame dropped {}", Kv("error", std::string(parsed.message())));
      } else if (reply.kind == DetokReply::Kind::kHello) {
        Hello(reply.incarnation);
      } else if (reply.generation == generation_) {
        for (DetokText& text : reply.texts)
          if (Take(text)) texts->push_back(std::move(text));
      }
    }
  } catch (const zmq::error_t& error) {
    Log().error("detokenizer receive failed {}", Kv("error", error.what()));
  }
}

// Keeps the count of what was passed on; false for a stream that is closed here.
bool DetokLink::Take(const DetokText& text) {
  auto it = streams_.find(text.stream);
  if (it == streams_.end()) return false;
  Stream& stream = it->second;
  if (text.num_tokens < stream.emitted || text.num_tokens > stream.tokens.size() ||
      text.stop_index >= static_cast<int64_t>(stream.options.stop.size())) {
    ++bad_frames_;
    return false;
  }
  stream.emitted = text.num_tokens;
  if (text.last || text.stop_index >= 0) streams_.erase(it);
  return true;
}

void DetokLink::Hello(uint32_t incarnation) {
  if (connected()) {
    ++restarts_;
    Log().warn("detokenizer is back {} {}", Kv("incarnation", incarnation),
               Kv("streams", streams_.size()));
  } else {
    Log().info("detokenizer connected {}", Kv("incarnation", incarnation));
  }
  stuck_ = false;
  patience_ns_ = kDetokAnswerNs;
  OpenAll();
}

void DetokLink::OpenAll() {
  ++generation_;
  pending_.events.clear();
  size_t bytes = 0;
  for (auto& [id, stream] : streams_) {
    stream.waiting_since_ns = 0;
    DetokStreamEvent event = OpenEvent(id, stream.options);
    event.emitted_tokens = stream.emitted;
    event.tokens.assign(stream.tokens.begin(), stream.tokens.end());
    event.last = stream.last;
    bytes += EventBytes(event);
    pending_.events.push_back(std::move(event));
    if (bytes < kDetokFrameBytes) continue;
    Send();
    if (stuck_) return;  // all of it again, later
    bytes = 0;
  }
  if (!pending_.events.empty()) Send();
}

}  // namespace flotilla
