// flotilla.v1.Inference on the router, with grpc.health.v1 and reflection, on its own port.
//
// A router that asks for keys finds them in the metadata `authorization` or `x-api-key`, and has no
// reflection, which knows no keys.
// Threads: gRPC's; what touches requests is posted to the io thread. It does not listen itself, so
// that its socket can be handed over: Take gets connections, from the io thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/health_service.h"
#include "common/rpc/ping_limits.h"
#include "common/tls/tls_files.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "router/grpc/grpc_connections.h"
#include "router/grpc/grpc_generate.h"
#include "router/grpc/grpc_texts.h"
#include "router/handlers/handler_context.h"

namespace flotilla {

struct GrpcOptions {
  uint16_t grpc_port = 50051;                  // 0: any
  uint64_t max_grpc_message_bytes = 8 << 20;   // of a request
  uint64_t max_grpc_buffer_bytes = 256 << 20;  // of requests being received; of waiting texts
  GrpcStreamLimits streams = {};
  uint64_t max_metadata_bytes = 16 << 10;    // of a call
  uint32_t max_grpc_connection_age_s = 300;  // then its client is asked to open another
  int64_t handshake_timeout_ms = 10'000;     // of TLS and HTTP/2
  int min_ping_interval_ms = kMinPingIntervalMs;
  GrpcConnectionLimits connections = {};
};

class GrpcServer final : public v1::Inference::CallbackService {
 public:
  // `tls`, if not null, is loaded before Start.
  GrpcServer(GrpcOptions options, const HandlerContext& context, const TlsFiles* tls = nullptr);
  ~GrpcServer() override;

  Status Start();
  // A new connection. The io thread, as StopTaking, which comes before Shutdown.
  void Take(boost::asio::ip::tcp::socket socket) { connections_.Take(std::move(socket)); }
  void StopTaking() { connections_.Stop(); }
  // After so long a connection that was taken just now has been left by its client, which opens
  // another for its next call.
  int64_t longest_connection_ms() const;
  // Any thread.
  void SetServing(bool serving) { health_.SetServing(serving); }
  // Health says NOT_SERVING; then, from BeginDrain on, Generate answers UNAVAILABLE.
  void BeginLeave() { SetServing(false); }
  void BeginDrain() { draining_.store(true); }
  // The io thread. Those that gRPC has closed count for up to a second.
  size_t connections() const { return connections_.size(); }
  // Cancels what is left. Not on the io thread: calls need it to end.
  void Shutdown();

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Chat(grpc::CallbackServerContext* context,
                                                       const v1::ChatRequest* request) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const v1::EmbedRequest* request,
                                  v1::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ApplyTemplate(grpc::CallbackServerContext* context,
                                          const v1::ChatRequest* request,
                                          v1::ApplyTemplateResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;

 private:
  enum class CallKind { kGenerates, kText, kOther };
  // What the handler of a call gets; the call's key is checked, and what its kind takes of its
  // tenant's limits. The client is told the call's id, unless its handler will.
  std::variant<HandlerContext, grpc::Status> Admit(grpc::CallbackServerContext* context,
                                                   CallKind kind) const;
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AnswerText(const char* method, grpc::CallbackServerContext* context,
                                       const Request* request, Response* response);
  grpc::ServerWriteReactor<v1::GenerateResponse>* RefuseWhileDraining(
      grpc::CallbackServerContext* context);

  const GrpcOptions options_;
  const HandlerContext context_;
  const TlsFiles* const tls_;
  HealthService health_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // while the server is there
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  GrpcTexts texts_;
  GrpcConnections connections_;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<bool> draining_{false};
};

}  // namespace flotilla
