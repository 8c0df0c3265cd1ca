#include "common/rpc/health_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tests/support/health_client.h"

namespace flotilla {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class HealthServiceTest : public testing::Test {
 protected:
  HealthServiceTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    channel_ = server_->InProcessChannel({});
    stub_ = grpc::health::v1::Health::NewStub(channel_);
  }
  ~HealthServiceTest() override {
    service_.Shutdown();
    server_->Shutdown();
  }

  // A Watch of one service.
  class Watch {
   public:
    Watch(grpc::health::v1::Health::Stub* stub, const std::string& service) {
      HealthCheckRequest request;
      request.set_service(service);
      reader_ = stub->Watch(&context_, request);
    }
    HealthCheckResponse::ServingStatus Next() {
      HealthCheckResponse response;
      return reader_->Read(&response) ? response.status() : HealthCheckResponse::UNKNOWN;
    }
    grpc::StatusCode End() { return reader_->Finish().error_code(); }
    void Cancel() { context_.TryCancel(); }

   private:
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader_;
  };

  HealthService service_{{"a.B"}};
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
};

TEST_F(HealthServiceTest, DoesNotServeUntilToldTo) {
  HealthClient client(channel_);
  for (const char* service : {"", "a.B"}) {
    EXPECT_EQ(client.Check(service), HealthCheckResponse::NOT_SERVING);
    service_.SetServing(true);
    EXPECT_EQ(client.Check(service), HealthCheckResponse::SERVING);
    service_.SetServing(false);
    EXPECT_EQ(client.Check(service), HealthCheckResponse::NOT_SERVING);
  }
}

TEST_F(HealthServiceTest, AnotherService) {
  HealthCheckRequest request;
  request.set_service("a.C");
  grpc::ClientContext context;
  HealthCheckResponse response;
  const grpc::Status status = stub_->Check(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  Watch watch(stub_.get(), "a.C");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
}

TEST_F(HealthServiceTest, WatchesSeeEveryChange) {
  Watch whole(stub_.get(), ""), one(stub_.get(), "a.B");
  for (const bool serving : {false, true, false}) {
    service_.SetServing(serving);
    service_.SetServing(serving);  // told once
    const auto wanted = serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
    EXPECT_EQ(whole.Next(), wanted);
    EXPECT_EQ(one.Next(), wanted);
  }
}

TEST_F(HealthServiceTest, ShutdownEndsWatchesForGood) {
  service_.SetServing(true);
  Watch before(stub_.get(), "");
  EXPECT_EQ(before.Next(), HealthCheckResponse::SERVING);
  service_.Shutdown();
  service_.SetServing(true);
  EXPECT_EQ(before.Next(), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(before.End(), grpc::StatusCode::UNAVAILABLE);
  Watch after(stub_.get(), "");
  EXPECT_EQ(after.Next(), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(after.End(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(HealthClient(channel_).Check(""), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthServiceTest, WatchersComeAndGoWhileTheStatusChanges) {
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (bool serving = true; !stop.load(); serving = !serving) service_.SetServing(serving);
  });
  for (int i = 0; i < 100; ++i) {
    Watch watch(stub_.get(), "a.B");
    EXPECT_NE(watch.Next(), HealthCheckResponse::UNKNOWN);
    watch.Cancel();
    EXPECT_EQ(watch.End(), grpc::StatusCode::CANCELLED);
  }
  stop.store(true);
  changer.join();
}

}  // namespace
}  // namespace flotilla
