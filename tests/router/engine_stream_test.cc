// The router's end of a connection to a replica: what goes together, and in which order.
#include "router/engine_stream.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/patience.h"

namespace flotilla {
namespace {

constexpr uint64_t kPings = 150;

// Reads nothing after the first frame until it is told to.
class SlowReplica final : public v1::Engine::Service {
 public:
  SlowReplica() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~SlowReplica() override { server_->Shutdown(); }

  std::shared_ptr<v1::Engine::Stub> Stub() const {
    return v1::Engine::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port_),
                                                   grpc::InsecureChannelCredentials()));
  }
  // The frames after Hello, up to the last ping.
  std::vector<v1::RouterFrame> ReadAll() {
    read_.set_value();
    std::future<std::vector<v1::RouterFrame>> frames = frames_.get_future();
    EXPECT_EQ(frames.wait_for(kPatience), std::future_status::ready);
    return frames.get();
  }

 private:
  grpc::Status Connect(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::EngineFrame, v1::RouterFrame>* stream) override {
    v1::RouterFrame frame;
    EXPECT_TRUE(stream->Read(&frame) && frame.has_hello());
    stream->Write(v1::EngineFrame());
    read_.get_future().wait();
    std::vector<v1::RouterFrame> frames;
    for (uint64_t pings = 0; pings < kPings && stream->Read(&frame); frames.push_back(frame))
      pings += frame.has_ping() ? 1 : static_cast<uint64_t>(frame.batch().frames_size());
    frames_.set_value(std::move(frames));
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::promise<void> read_;
  std::promise<std::vector<v1::RouterFrame>> frames_;
};

// A frame that the other side does not read keeps the ones behind it waiting.
std::vector<v1::RouterFrame> SendBehindALargeOne(bool batches) {
  SlowReplica replica;
  boost::asio::io_context io;
  auto work = boost::asio::make_work_guard(io);
  std::thread thread([&io] { io.run(); });
  CallTracker calls;
  std::promise<void> welcome, done;
  const auto stream = EngineStream::Start(replica.Stub(), io.get_executor(), &calls,
                                          {[&](const v1::EngineFrame&) { welcome.set_value(); },
                                           [&](const grpc::Status&) { done.set_value(); }});
  v1::RouterFrame hello;
  hello.mutable_hello()->set_router_id("router");
  stream->Write(hello);
  EXPECT_EQ(welcome.get_future().wait_for(kPatience), std::future_status::ready);
  if (batches) stream->AllowBatches();
  v1::RouterFrame large;
  large.mutable_submit()->set_tenant(std::string(3 << 20, 'x'));
  stream->Write(large);
  for (uint64_t i = 0; i < kPings; ++i) {
    v1::RouterFrame ping;
    ping.mutable_ping()->set_sent_ns(static_cast<int64_t>(i));
    stream->Write(ping);
  }
  std::vector<v1::RouterFrame> frames = replica.ReadAll();
  EXPECT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  calls.WaitForZero();
  work.reset();
  thread.join();
  return frames;
}

TEST(EngineStreamTest, WhatWaitsGoesTogetherInItsOrder) {
  const std::vector<v1::RouterFrame> messages = SendBehindALargeOne(/*batches=*/true);
  EXPECT_LT(messages.size(), 20u);
  std::vector<v1::RouterFrame> frames;
  for (const v1::RouterFrame& message : messages) {
    EXPECT_LE(message.batch().frames_size(), 64);
    if (!message.has_batch()) frames.push_back(message);
    frames.insert(frames.end(), message.batch().frames().begin(), message.batch().frames().end());
  }
  ASSERT_EQ(frames.size(), 1 + kPings);
  EXPECT_TRUE(frames[0].has_submit());
  for (size_t i = 1; i < frames.size(); ++i) {
    ASSERT_TRUE(frames[i].has_ping());
    EXPECT_EQ(frames[i].ping().sent_ns(), static_cast<int64_t>(i - 1));
  }
}

TEST(EngineStreamTest, GoesAloneToAReplicaOfAnOlderProtocol) {
  const std::vector<v1::RouterFrame> frames = SendBehindALargeOne(/*batches=*/false);
  ASSERT_EQ(frames.size(), 1 + kPings);
  for (size_t i = 1; i < frames.size(); ++i) {
    ASSERT_TRUE(frames[i].has_ping());
    EXPECT_EQ(frames[i].ping().sent_ns(), static_cast<int64_t>(i - 1));
  }
}

}  // namespace
}  // namespace flotilla
