// grpc.health.v1 for a server that serves all of its services or none of them.
//
// Not serving from the start, so that no probe can see the moment between the server's start and
// the first SetServing (gRPC's built-in service says SERVING there).
//
// Threads: any. Ownership: the server's builder gets a pointer; this outlives the server. Errors:
// Check of an unknown service is NOT_FOUND; Watch of one says SERVICE_UNKNOWN and stays open, as
// the protocol wants it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <mutex>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"

namespace flotilla {

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // `services`: full names; the empty name, the server as a whole, is always known.
  explicit HealthService(std::set<std::string> services);

  void SetServing(bool serving);
  // Ends all watches, also future ones: a server's shutdown waits for its calls. Not serving then.
  void Shutdown();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;
  using Response = grpc::health::v1::HealthCheckResponse;

  Response::ServingStatus StatusLocked() const {
    return serving_ ? Response::SERVING : Response::NOT_SERVING;
  }

  const std::set<std::string> services_;
  std::mutex mutex_;
  bool serving_ = false;         // guarded by mutex_
  bool shut_down_ = false;       // guarded by mutex_
  std::set<Watcher*> watchers_;  // guarded by mutex_, as is all state of the watchers
};

}  // namespace flotilla
