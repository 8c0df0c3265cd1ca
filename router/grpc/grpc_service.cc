#include "router/grpc/grpc_service.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/rpc/call_request_id.h"
#include "common/rpc/ping_limits.h"
#include "common/rpc/tls_credentials.h"
#include "router/grpc/grpc_embed.h"
#include "router/grpc/grpc_generate.h"

namespace flotilla {
namespace {

constexpr const char* kServiceName = "flotilla.v1.Inference";

template <typename Request>
const std::string& ModelNameOf(const Request& request) {
  return request.model();
}
const std::string& ModelNameOf(const v1::ChatRequest& request) { return request.base().model(); }

// gRPC varies ages by a tenth, and the calls that begin just before need their time.
constexpr int64_t kMsPerAge = 1100;
constexpr int64_t kAgeMarginMs = 5000;

// A server-streaming call that ends at once.
class EndedStream final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit EndedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Counts the call and ends it.
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, RouterMetrics* metrics,
                                 const char* method, const grpc::Status& status) {
  metrics->Request(StrCat(kServiceName, "/", method),
                   std::to_string(static_cast<int>(status.error_code())), std::nullopt);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

GrpcServer::GrpcServer(GrpcOptions options, const HandlerContext& context, const TlsFiles* tls)
    : options_(std::move(options)),
      context_(context),
      tls_(tls),
      health_({kServiceName}),
      texts_(context, options_.max_grpc_buffer_bytes),
      connections_(context.io, options_.connections, context.metrics) {
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(kServiceName);
  CHECK(service != nullptr);
  for (int i = 0; i < service->method_count(); ++i) {
    // UNKNOWN, INTERNAL, UNAVAILABLE, DATA_LOSS: ours, not the client's.
    context.metrics->Expect(StrCat(kServiceName, "/", service->method(i)->name()),
                            {"2", "13", "14", "15"});
  }
}

GrpcServer::~GrpcServer() { Shutdown(); }

Status GrpcServer::Start() {
  if (context_.access == nullptr) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  credentials_ = MakeServerCredentials(tls_);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials_);
  // Clients find new routers, and leave one that has a successor, without an error: they are told
  // to open another connection for their next call while this one still takes it.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                             static_cast<int>(options_.max_grpc_connection_age_s * 1000));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(options_.handshake_timeout_ms));
  LimitPings(&builder, options_.min_ping_interval_ms);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 1);  // for GrpcConnections
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                             static_cast<int>(options_.max_metadata_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(options_.connections.max_grpc_streams));
  // Of messages that are still being received, of all connections.
  builder.SetResourceQuota(grpc::ResourceQuota("router").Resize(options_.max_grpc_buffer_bytes));
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_grpc_message_bytes));
  builder.RegisterService(&health_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::UnavailableError("gRPC's server does not start");
  connections_.Start(acceptor_.get());
  return OkStatus();
}

int64_t GrpcServer::longest_connection_ms() const {
  return int64_t{options_.max_grpc_connection_age_s} * kMsPerAge + kAgeMarginMs;
}

void GrpcServer::Shutdown() {
  health_.Shutdown();
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GrpcServer::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  if (draining_.load()) return RefuseWhileDraining(context);
  const auto admitted = Admit(context, CallKind::kGenerates);
  if (const auto* status = std::get_if<grpc::Status>(&admitted)) return new EndedStream(*status);
  return GrpcGenerate::Start(std::get<HandlerContext>(admitted), options_.streams, context,
                             *request);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GrpcServer::Chat(
    grpc::CallbackServerContext* context, const v1::ChatRequest* request) {
  if (draining_.load()) return RefuseWhileDraining(context);
  const auto admitted = Admit(context, CallKind::kGenerates);
  if (const auto* status = std::get_if<grpc::Status>(&admitted)) return new EndedStream(*status);
  return GrpcGenerate::StartChat(std::get<HandlerContext>(admitted), options_.streams, context,
                                 *request);
}

std::variant<HandlerContext, grpc::Status> GrpcServer::Admit(grpc::CallbackServerContext* context,
                                                             CallKind kind) const {
  if (kind != CallKind::kGenerates) TakeRequestId(context, {});
  HandlerContext admitted = context_;
  if (context_.access == nullptr) return admitted;
  const auto value = [&](const char* name) {
    const auto found = context->client_metadata().find(name);
    if (found == context->client_metadata().end()) return std::string_view();
    return std::string_view(found->second.data(), found->second.size());
  };
  const std::string_view authorization = value("authorization"), key = value("x-api-key");
  Access& access = *context_.access;
  auto caller = kind == CallKind::kGenerates ? access.Admit(authorization, key)
                : kind == CallKind::kText    ? access.AdmitText(authorization, key)
                                             : access.Identify(authorization, key);
  if (const auto* error = std::get_if<ApiError>(&caller)) {
    if (kind == CallKind::kGenerates) TakeRequestId(context, {});
    context_.metrics->Rejection(error->code == absl::StatusCode::kResourceExhausted ? "tenant_limit"
                                                                                    : "api_key");
    return ToGrpcStatus(*error);
  }
  admitted.caller = std::move(std::get<Caller>(caller));
  return admitted;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GrpcServer::RefuseWhileDraining(
    grpc::CallbackServerContext* context) {
  TakeRequestId(context, {});
  context_.metrics->Rejection("draining");
  return new EndedStream(
      grpc::Status(grpc::StatusCode::UNAVAILABLE, "This router is shutting down; try again."));
}

grpc::ServerUnaryReactor* GrpcServer::Embed(grpc::CallbackServerContext* context,
                                            const v1::EmbedRequest* request,
                                            v1::EmbedResponse* response) {
  if (draining_.load()) {
    TakeRequestId(context, {});
    context_.metrics->Rejection("draining");
    return Answer(
        context, context_.metrics, "Embed",
        grpc::Status(grpc::StatusCode::UNAVAILABLE, "This router is shutting down; try again."));
  }
  const auto admitted = Admit(context, CallKind::kGenerates);
  if (const auto* status = std::get_if<grpc::Status>(&admitted))
    return Answer(context, context_.metrics, "Embed", *status);
  return GrpcEmbed::Start(std::get<HandlerContext>(admitted), context, *request, response);
}

grpc::ServerUnaryReactor* GrpcServer::Tokenize(grpc::CallbackServerContext* context,
                                               const v1::TokenizeRequest* request,
                                               v1::TokenizeResponse* response) {
  return AnswerText("Tokenize", context, request, response);
}

grpc::ServerUnaryReactor* GrpcServer::Detokenize(grpc::CallbackServerContext* context,
                                                 const v1::DetokenizeRequest* request,
                                                 v1::DetokenizeResponse* response) {
  return AnswerText("Detokenize", context, request, response);
}

grpc::ServerUnaryReactor* GrpcServer::ApplyTemplate(grpc::CallbackServerContext* context,
                                                    const v1::ChatRequest* request,
                                                    v1::ApplyTemplateResponse* response) {
  return AnswerText("ApplyTemplate", context, request, response);
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* GrpcServer::AnswerText(const char* method,
                                                 grpc::CallbackServerContext* context,
                                                 const Request* request, Response* response) {
  const auto admitted = Admit(context, CallKind::kText);
  if (const auto* refused = std::get_if<grpc::Status>(&admitted))
    return Answer(context, context_.metrics, method, *refused);
  return texts_.Run(
      StrCat(kServiceName, "/", method), context, request->ByteSizeLong(),
      [this, request, response] {
        const auto found = FindModel(*context_.dispatcher->models(), ModelNameOf(*request));
        if (const auto* error = std::get_if<ApiError>(&found)) return ToGrpcStatus(*error);
        return AnswerTextCall(std::get<FoundModel>(found), context_.parsers, *request, response);
      });
}

grpc::ServerUnaryReactor* GrpcServer::ListModels(grpc::CallbackServerContext* context,
                                                 const v1::ListModelsRequest*,
                                                 v1::ListModelsResponse* response) {
  const auto admitted = Admit(context, CallKind::kOther);
  if (const auto* status = std::get_if<grpc::Status>(&admitted))
    return Answer(context, context_.metrics, "ListModels", *status);
  const std::shared_ptr<const ModelTable> models = context_.dispatcher->models();
  for (const auto& [name, handle] : *models) {
    v1::Model* model = response->add_models();
    model->set_id(name);
    model->set_created(handle->created);
    model->set_max_model_len(static_cast<int32_t>(handle->max_model_len));
  }
  return Answer(context, context_.metrics, "ListModels", grpc::Status::OK);
}

grpc::ServerUnaryReactor* GrpcServer::Abort(grpc::CallbackServerContext* context,
                                            const v1::AbortRequest* request,
                                            v1::AbortResponse* response) {
  const auto admitted = Admit(context, CallKind::kOther);
  if (const auto* status = std::get_if<grpc::Status>(&admitted))
    return Answer(context, context_.metrics, "Abort", *status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  boost::asio::post(*context_.io, [this, reactor, response, id = request->request_id(),
                                   caller = std::get<HandlerContext>(admitted).caller] {
    response->set_found(context_.dispatcher->AbortByRequestId(id, caller.tenant()));
    context_.metrics->Request(StrCat(kServiceName, "/Abort"), "0", std::nullopt);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace flotilla
