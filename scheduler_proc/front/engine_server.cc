#include "scheduler_proc/front/engine_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/server_builder.h>

#include <chrono>

#include "common/base/clock.h"
#include "common/base/listen.h"
#include "common/rpc/grpc_library.h"
#include "common/rpc/message_limits.h"
#include "common/rpc/tls_credentials.h"

namespace flotilla {

Status EngineServer::Listen(const std::vector<std::string>& addresses, const TlsFiles* tls,
                            int keepalive_ms) {
  PrepareGrpc();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  ports_.assign(addresses.size(), -1);
  grpc::ServerBuilder builder;
  // Two replicas must not share a port by accident.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  LimitPings(&builder);
  DetectLostClients(&builder, keepalive_ms);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  credentials_ = MakeServerCredentials(tls);
  for (size_t i = 0; i < addresses.size(); ++i)
    builder.AddListeningPort(
        addresses[i],
        IsUnixAddress(addresses[i]) ? grpc::InsecureServerCredentials() : credentials_, &ports_[i]);
  builder.RegisterService(&health_);
  builder.RegisterService(&engine_);
  builder.RegisterService(&inference_);
  server_ = builder.BuildAndStart();
  if (server_ != nullptr) return OkStatus();
  for (size_t i = 0; i < addresses.size(); ++i)
    if (ports_[i] <= 0 && !IsUnixAddress(addresses[i]))
      return absl::UnavailableError(
          StrCat("can't listen on ", addresses[i], "; is the address in use?"));
  return absl::UnavailableError("can't listen on any of the --listen addresses");
}

EngineServer::~EngineServer() { Shutdown(RealClock::Now()); }

void EngineServer::Shutdown(int64_t deadline_ns) {
  if (server_ == nullptr) return;
  health_.Shutdown();
  const auto left = std::chrono::nanoseconds(deadline_ns - RealClock::Now());
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
  server_->Wait();
  server_.reset();
}

}  // namespace flotilla
