// The gRPC server of an engine: both services, grpc.health.v1 and reflection, on any number of
// addresses (host:port, unix:/path). Not healthy until SetServing(true).
//
// With certificates, host:port speaks TLS; a Unix socket, which other users can't reach, never
// does.
//
// Threads: SetServing from any; the rest by one.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/health_service.h"
#include "common/rpc/ping_limits.h"
#include "common/tls/tls_files.h"
#include "scheduler_proc/front/engine_service.h"
#include "scheduler_proc/front/inference_service.h"

namespace flotilla {

class EngineServer {
 public:
  explicit EngineServer(const ServiceDeps& deps) : engine_(deps), inference_(deps) {}
  ~EngineServer();  // Shutdown at once

  // Once. Calls come in from now on. `tls` may be null: plain text. A connection whose other end
  // says nothing is asked after keepalive_ms, and closed after as long again. Unavailable: an
  // address can't be listened on (named).
  Status Listen(const std::vector<std::string>& addresses, const TlsFiles* tls,
                int keepalive_ms = kKeepaliveMs);
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
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // while the server is there
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace flotilla
