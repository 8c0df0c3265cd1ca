// The gRPC server of an engine: both services, grpc.health.v1 and reflection, on any number of
// addresses (host:port, unix:/path). Not healthy until SetServing(true).
//
// Threads: SetServing from any; the rest by one.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/health_service.h"
#include "scheduler_proc/engine_service.h"
#include "scheduler_proc/inference_service.h"

namespace flotilla {

class EngineServer {
 public:
  explicit EngineServer(const ServiceDeps& deps) : engine_(deps), inference_(deps) {}
  ~EngineServer();  // Shutdown at once

  // Once. Calls come in from now on. Unavailable: an address can't be listened on (named).
  Status Listen(const std::vector<std::string>& addresses);
  void SetServing(bool serving) { health_.SetServing(serving); }
  // Calls that still run get until deadline_ns (CLOCK_MONOTONIC), then they are cancelled.
  void Shutdown(int64_t deadline_ns);
  // The bound ports, one an address (0 for unix:).
  const std::vector<int>& ports() const { return ports_; }

 private:
  HealthService health_{{"flotilla.v1.Engine", "flotilla.v1.Inference"}};
  EngineService engine_;
  InferenceService inference_;
  std::vector<int> ports_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace flotilla
