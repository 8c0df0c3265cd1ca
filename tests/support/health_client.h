// Asks a server's grpc.health.v1.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/patience.h"

namespace flotilla {

class HealthClient {
 public:
  using Response = grpc::health::v1::HealthCheckResponse;
  static constexpr int kServing = Response::SERVING, kNotServing = Response::NOT_SERVING;

  explicit HealthClient(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(grpc::health::v1::Health::NewStub(channel)) {}

  // The serving status, or -1 if the call failed.
  int Check(const std::string& service) {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::ClientContext context;
    Response response;
    return stub_->Check(&context, request, &response).ok() ? response.status() : -1;
  }
  bool WaitFor(const std::string& service, int wanted) {
    const int64_t deadline = RealClock::Now() + kPatience.count() * kNsPerSecond;
    while (RealClock::Now() < deadline) {
      if (Check(service) == wanted) return true;
      std::this_thread::yield();
    }
    return false;
  }

 private:
  const std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
};

}  // namespace flotilla
