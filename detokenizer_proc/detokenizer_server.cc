#include "detokenizer_proc/detokenizer_server.h"

#include <poll.h>

#include <cstring>
#include <utility>
#include <zmq.hpp>

#include "common/base/log.h"

namespace flotilla {
namespace {

constexpr int64_t kBeatMs = 500;               // longest sleep
constexpr int64_t kRetryMs = 10;               // a hello that could not be sent
constexpr int64_t kHelloGapNs = kNsPerSecond;  // between hellos, so that they can't become a storm
constexpr int kLingerMs = 500;                 // for the last replies when the process ends
constexpr const char* kMonitorAddress = "inproc://connections";

}  // namespace

DetokenizerServer::DetokenizerServer(DetokenizerOptions options, const Tokenizer* tokenizer,
                                     const Clock* clock, ProcessSlot* slot,
                                     DetokenizerMetrics* metrics)
    : options_(std::move(options)),
      clock_(clock),
      slot_(slot),
      metrics_(metrics),
      core_(tokenizer) {}

DetokenizerServer::~DetokenizerServer() = default;

StatusOr<std::unique_ptr<DetokenizerServer>> DetokenizerServer::Create(
    DetokenizerOptions options, const Tokenizer* tokenizer, const Clock* clock, ProcessSlot* slot,
    DetokenizerMetrics* metrics) {
  std::unique_ptr<DetokenizerServer> server(
      new DetokenizerServer(std::move(options), tokenizer, clock, slot, metrics));
  try {
    server->Connect();
  } catch (const zmq::error_t& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("can't connect to ", server->options_.request_socket, " and ",
                     server->options_.reply_socket, " (write ipc:///path): ", error.what()));
  }
  return server;
}

void DetokenizerServer::Connect() {
  context_ = std::make_unique<zmq::context_t>(1);
  requests_ = std::make_unique<zmq::socket_t>(*context_, zmq::socket_type::pull);
  requests_->set(zmq::sockopt::rcvhwm, kQueueFrames);
  requests_->set(zmq::sockopt::maxmsgsize, kMaxFrameBytes);
  requests_->set(zmq::sockopt::linger, 0);

  replies_ = std::make_unique<zmq::socket_t>(*context_, zmq::socket_type::push);
  replies_->set(zmq::sockopt::sndhwm, kQueueFrames);
  replies_->set(zmq::sockopt::linger, kLingerMs);
  // Nothing is queued for a scheduler that is not there: its successor gets a hello instead.
  replies_->set(zmq::sockopt::immediate, true);
  if (zmq_socket_monitor(replies_->handle(), kMonitorAddress, ZMQ_EVENT_HANDSHAKE_SUCCEEDED) != 0)
    throw zmq::error_t();
  connections_ = std::make_unique<zmq::socket_t>(*context_, zmq::socket_type::pair);
  connections_->set(zmq::sockopt::linger, 0);
  connections_->connect(kMonitorAddress);

  for (zmq::socket_t* socket : {requests_.get(), replies_.get()}) {
    socket->set(zmq::sockopt::reconnect_ivl, 20);  // ms
    socket->set(zmq::sockopt::reconnect_ivl_max, 1000);
  }
  requests_->connect(options_.request_socket);
  replies_->connect(options_.reply_socket);
}

Status DetokenizerServer::Run() {
  try {
    while (!stop_requested()) {
      Beat();
      Wait();
      ReadConnectionEvents();
      SendHelloIfDue();
      HandleArrived();
    }
    HandleArrived();  // what came before the stop still gets its answer
  } catch (const zmq::error_t& error) {
    return absl::InternalError(absl::StrCat("ZeroMQ: ", error.what()));
  }
  return OkStatus();
}

void DetokenizerServer::Beat() {
  slot_->heartbeat_ns.store(clock_->NowNs(), std::memory_order_relaxed);
}

bool DetokenizerServer::stop_requested() const {
  pollfd item{options_.stop_fd, POLLIN, 0};
  return ::poll(&item, 1, 0) > 0;
}

void DetokenizerServer::Wait() {
  zmq_pollitem_t items[] = {
      {requests_->handle(), 0, ZMQ_POLLIN, 0},
      {connections_->handle(), 0, ZMQ_POLLIN, 0},
      {nullptr, options_.stop_fd, ZMQ_POLLIN, 0},
  };
  // A signal may interrupt it: the caller then finds nothing to do and comes back.
  zmq_poll(items, 3, hello_due_ ? kRetryMs : kBeatMs);
}

void DetokenizerServer::ReadConnectionEvents() {
  zmq::message_t part;
  while (connections_->recv(part, zmq::recv_flags::dontwait)) {
    // Two parts: the event (u16, the only kind asked for, and a u32), then the address.
    if (!part.more()) continue;
    // Streams that are open belong to the connection before: a scheduler opens none before a hello.
    core_.Reset();
    hello_due_ = true;
    hello_sent_ns_ = 0;
  }
}

void DetokenizerServer::SendHelloIfDue() {
  const int64_t now = clock_->NowNs();
  if (!hello_due_ || (hello_sent_ns_ != 0 && now < hello_sent_ns_ + kHelloGapNs)) return;
  DetokReply hello;
  hello.kind = DetokReply::Kind::kHello;
  hello.incarnation = options_.incarnation;
  std::string frame;
  BuildDetokReply(hello, &frame);
  if (!replies_->send(zmq::buffer(frame), zmq::send_flags::dontwait).has_value()) return;
  hello_due_ = false;
  hello_sent_ns_ = now;
  metrics_->hellos.Increment();
  Log().info("hello sent {}", Kv("incarnation", options_.incarnation));
}

void DetokenizerServer::HandleArrived() {
  zmq::message_t message;
  while (queue_.size() < kQueueFrames && requests_->recv(message, zmq::recv_flags::dontwait))
    queue_.emplace_back(message.to_string());
  while (!queue_.empty()) {
    const std::string frame = std::move(queue_.front());
    queue_.pop_front();
    metrics_->queue_depth.Set(static_cast<double>(queue_.size()));
    HandleFrame(frame);
    Beat();
  }
}

void DetokenizerServer::HandleFrame(const std::string& frame) {
  const int64_t start_ns = clock_->NowNs();
  DetokRequest request;
  if (const Status status = ParseDetokRequest(frame, &request); !status.ok()) {
    metrics_->rejected_frames.Increment();
    Log().warn("frame dropped {} {}", Kv("bytes", frame.size()),
               Kv("reason", std::string(status.message())));
    return;
  }
  for (const DetokStreamEvent& event : request.events) {
    if (event.kind == DetokStreamEvent::Kind::kOpen)
      Log().debug("opened {} {} {}", Kv("request_id", event.request_id), Kv("req", event.stream),
                  Kv("history", event.tokens.size()));
  }
  const DetokenizerCore::Outcome outcome = core_.Apply(request);
  if (outcome.rejected_events > 0) {
    metrics_->rejected_events.Increment(static_cast<double>(outcome.rejected_events));
    Log().warn("events dropped {}", Kv("count", outcome.rejected_events));
  }
  if (outcome.resync) {
    Log().warn("tokens of a stream are missing; asking for all of them");
    hello_due_ = true;
  }
  for (const std::string& id : outcome.troubled_ids)
    Log().warn("stream dropped {}", Kv("request_id", id));
  // Before the reply: who has the text finds it counted.
  metrics_->tokens.Increment(static_cast<double>(outcome.num_tokens));
  metrics_->streams.Set(static_cast<double>(core_.num_streams()));
  if (!outcome.reply.texts.empty()) SendReply(outcome.reply);
  metrics_->batch_seconds.Observe(static_cast<double>(clock_->NowNs() - start_ns) * 1e-9);
}

void DetokenizerServer::SendReply(const DetokReply& reply) {
  std::string frame;
  BuildDetokReply(reply, &frame);
  while (!replies_->send(zmq::buffer(frame), zmq::send_flags::dontwait).has_value()) {
    zmq_pollitem_t items[] = {
        {replies_->handle(), 0, ZMQ_POLLOUT, 0},
        {connections_->handle(), 0, ZMQ_POLLIN, 0},
        {nullptr, options_.stop_fd, ZMQ_POLLIN, 0},
    };
    zmq_poll(items, 3, kBeatMs);
    Beat();
    // Another scheduler (it gets a hello and sends all again), or none any more.
    if ((items[1].revents & ZMQ_POLLIN) != 0 || stop_requested()) return;
  }
}

}  // namespace flotilla
