// The scheduler's two sockets, bound in a folder of their own: what a detokenizer talks to.
//
// Threads: one at a time. Errors: ZeroMQ's exceptions fail the test. Receive fails it after
// kDeadlineMs.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "common/text/detok_frames.h"

namespace flotilla::testing {

class FakeScheduler {
 public:
  static constexpr int kDeadlineMs = 20000;

  FakeScheduler() {
    char folder[] = "/tmp/flotilla-detok-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~FakeScheduler() {
    Unbind();
    std::filesystem::remove_all(folder_);
  }
  FakeScheduler(const FakeScheduler&) = delete;
  FakeScheduler& operator=(const FakeScheduler&) = delete;

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string request_address() const { return "ipc://" + Path("requests"); }
  std::string reply_address() const { return "ipc://" + Path("replies"); }

  void Bind() {
    requests_ = std::make_unique<zmq::socket_t>(context_, zmq::socket_type::push);
    replies_ = std::make_unique<zmq::socket_t>(context_, zmq::socket_type::pull);
    for (zmq::socket_t* socket : {requests_.get(), replies_.get()})
      socket->set(zmq::sockopt::linger, 0);
    replies_->set(zmq::sockopt::rcvtimeo, kDeadlineMs);
    requests_->set(zmq::sockopt::sndtimeo, kDeadlineMs);
    requests_->bind(request_address());
    replies_->bind(reply_address());
  }
  void Unbind() {
    requests_.reset();
    replies_.reset();
  }

  void SendRaw(const std::string& frame) {
    ASSERT_TRUE(requests_->send(zmq::buffer(frame), zmq::send_flags::none).has_value());
  }
  void Send(const DetokRequest& request) {
    std::string frame;
    BuildDetokRequest(request, &frame);
    SendRaw(frame);
  }
  DetokReply Receive() {
    zmq::message_t message;
    DetokReply reply;
    if (!replies_->recv(message).has_value()) {
      ADD_FAILURE() << "no reply within " << kDeadlineMs << " ms";
    } else {
      const Status status = ParseDetokReply(message.to_string_view(), &reply);
      EXPECT_TRUE(status.ok()) << status;
    }
    return reply;
  }
  // The only text of the next reply.
  DetokText ReceiveText() {
    const DetokReply reply = Receive();
    EXPECT_EQ(reply.kind, DetokReply::Kind::kText);
    EXPECT_EQ(reply.texts.size(), 1u);
    return reply.texts.empty() ? DetokText() : reply.texts[0];
  }
  uint32_t ReceiveHello() {
    const DetokReply reply = Receive();
    EXPECT_EQ(reply.kind, DetokReply::Kind::kHello);
    return reply.incarnation;
  }

  static DetokStreamEvent Open(uint64_t stream, std::vector<TokenId> history = {},
                               uint32_t emitted = 0) {
    DetokStreamEvent event;
    event.kind = DetokStreamEvent::Kind::kOpen;
    event.stream = stream;
    event.tokens = std::move(history);
    event.emitted_tokens = emitted;
    return event;
  }
  static DetokStreamEvent Tokens(uint64_t stream, uint32_t offset, std::vector<TokenId> tokens,
                                 bool last = false) {
    DetokStreamEvent event;
    event.stream = stream;
    event.offset = offset;
    event.tokens = std::move(tokens);
    event.last = last;
    return event;
  }

 private:
  std::string folder_;
  zmq::context_t context_{1};
  std::unique_ptr<zmq::socket_t> requests_;
  std::unique_ptr<zmq::socket_t> replies_;
};

}  // namespace flotilla::testing
