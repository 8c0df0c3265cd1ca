// grpc.health.v1 without its generated code: the messages are one field each.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>

#include "common/base/clock.h"

namespace flotilla {

class HealthClient {
 public:
  static constexpr int kServing = 1, kNotServing = 2;

  explicit HealthClient(std::shared_ptr<grpc::Channel> channel) : stub_(std::move(channel)) {}

  // The serving status, or -1 if the call failed.
  int Check(const std::string& service) {
    std::string request;
    if (!service.empty())
      request = std::string("\x0a") + static_cast<char>(service.size()) + service;
    const grpc::Slice slice(request);
    grpc::ByteBuffer in(&slice, 1), out;
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    grpc::Status status;
    auto call = stub_.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", in, &queue);
    call->StartCall();
    call->Finish(&out, &status, nullptr);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    if (!status.ok()) return -1;
    grpc::Slice answer;
    out.DumpToSingleSlice(&answer);
    return answer.size() < 2 ? 0 : answer.begin()[1];
  }
  bool WaitFor(const std::string& service, int wanted) {
    const int64_t deadline = RealClock::Now() + 20 * kNsPerSecond;
    while (RealClock::Now() < deadline) {
      if (Check(service) == wanted) return true;
      std::this_thread::yield();
    }
    return false;
  }

 private:
  grpc::GenericStub stub_;
};

}  // namespace flotilla
