// The gRPC server of an engine: both services, grpc.health.v1 and reflection, on any number of
// addresses (host:port, unix:/path). Not healthy until SetServing(true). Threads: any.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "scheduler_proc/engine_service.h"
#include "scheduler_proc/inference_service.h"

namespace flotilla {

class EngineServer {
 public:
  // Unavailable: an address can't be listened on (named).
  static StatusOr<std::unique_ptr<EngineServer>> Start(const std::vector<std::string>& addresses,
                                                       const ServiceDeps& deps);
  ~EngineServer();  // Shutdown at once

  void SetServing(bool serving);
  // Calls that still run get until deadline_ns (CLOCK_MONOTONIC), then they are cancelled.
  void Shutdown(int64_t deadline_ns);
  // The bound ports, one an address (0 for unix:).
  const std::vector<int>& ports() const { return ports_; }

 private:
  explicit EngineServer(const ServiceDeps& deps) : engine_(deps), inference_(deps) {}

  EngineService engine_;
  InferenceService inference_;
  std::vector<int> ports_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace flotilla
