// The router's end of a connection to a replica: what goes together, and in which order.
#include "router/fleet/engine_stream.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>
#include <vector>

#include "flotilla/v1/engine.grpc.pb.h"
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

  EngineAddress address() const { return {"127.0.0.1:" + std::to_string(port_), nullptr, ""}; }
  // Reads on, whatever comes.
  void GiveUp() { read_.set_value(); }
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

// A stream on an io thread of its own.
class Running {
 public:
  explicit Running(const EngineAddress& engine) : thread_([this] { io_.run(); }) {
    OnIo([&] {
      stream_ = EngineStream::Start(engine, io_.get_executor(),
                                    {[this](const v1::EngineFrame&) { first_.set_value(); },
                                     [this](const grpc::Status& end) { end_.set_value(end); }});
    });
  }
  ~Running() {
    work_.reset();
    thread_.join();
  }

  void Write(v1::RouterFrame frame) {
    OnIo([&] { stream_->Write(std::move(frame)); });
  }
  void SayHello() {
    v1::RouterFrame hello;
    hello.mutable_hello()->set_router_id("router");
    Write(hello);
    EXPECT_EQ(first_.get_future().wait_for(kPatience), std::future_status::ready);
  }
  template <typename Function>
  void OnIo(Function function) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      function();
      done.set_value();
    });
    done.get_future().wait();
  }
  EngineStream& stream() { return *stream_; }
  grpc::Status WaitForEnd() {
    std::future<grpc::Status> end = end_.get_future();
    if (end.wait_for(kPatience) == std::future_status::ready) return end.get();
    return {grpc::StatusCode::DEADLINE_EXCEEDED, "it did not end"};
  }

 private:
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::promise<void> first_;
  std::promise<grpc::Status> end_;
  std::shared_ptr<EngineStream> stream_;
  std::thread thread_;
};

// A frame that the other side does not read keeps the ones behind it waiting.
std::vector<v1::RouterFrame> SendBehindALargeOne(bool batches) {
  SlowReplica replica;
  Running running(replica.address());
  running.SayHello();
  running.OnIo([&] {
    if (batches) running.stream().AllowBatches();
    v1::RouterFrame large;
    large.mutable_submit()->set_tenant(std::string(3 << 20, 'x'));
    running.stream().Write(large);
    for (uint64_t i = 0; i < kPings; ++i) {
      v1::RouterFrame ping;
      ping.mutable_ping()->set_sent_ns(static_cast<int64_t>(i));
      running.stream().Write(ping);
    }
  });
  std::vector<v1::RouterFrame> frames = replica.ReadAll();
  EXPECT_TRUE(running.WaitForEnd().ok());
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

TEST(EngineStreamTest, EndsWithWhatIsWrong) {
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::make_address("127.0.0.1"), 0});
  const std::string address = "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
  {
    Running running({address, nullptr, ""});
    acceptor.accept().close();
    const grpc::Status end = running.WaitForEnd();
    EXPECT_EQ(end.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(end.error_message().rfind("the connection to " + address + ": ", 0), 0u)
        << end.error_message();
  }
  acceptor.close();
  Running running({address, nullptr, ""});
  const grpc::Status end = running.WaitForEnd();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(end.error_message(), "can't connect to " + address + ": Connection refused");
}

TEST(EngineStreamTest, EndsOnceItIsCancelled) {
  SlowReplica replica;
  Running running(replica.address());
  running.SayHello();
  running.OnIo([&] {
    running.stream().Cancel();
    running.stream().Cancel();
  });
  EXPECT_EQ(running.WaitForEnd().error_code(), grpc::StatusCode::CANCELLED);
  running.Write(v1::RouterFrame());  // dropped
  replica.GiveUp();
}

}  // namespace
}  // namespace flotilla
