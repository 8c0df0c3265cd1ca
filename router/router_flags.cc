#include "router/router_flags.h"

#include <utility>

#include "common/base/flag_checks.h"
#include "common/base/flags.h"
#include "common/base/tcp_address.h"
#include "common/cli/json_flag.h"
#include "common/tls/tls_flags.h"

namespace flotilla {
namespace {

CLI::Validator ReplicaAddressFlag() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        if (text.starts_with("unix:")) return "";
        const StatusOr<TcpAddress> address = ParseTcpAddress(text);
        if (!address.ok()) return std::string(address.status().message());
        return address->port == 0 ? StrCat("'", text, "' has no port") : "";
      },
      "HOST:PORT|unix:/PATH");
}

CLI::Validator DnsNameFlag() {
  return CLI::Validator(
      [](const std::string& text) { return std::string(ParseDnsName(text).status().message()); },
      "NAME:PORT");
}

CLI::Validator ServiceNameFlag() {
  return CLI::Validator(
      [](const std::string& text) {
        return std::string(ParseServiceName(text).status().message());
      },
      "SERVICE:PORT");
}

void AddSizeFlags(CLI::App* app, RouterOptions* router) {
  HttpOptions& http = router->http;
  auto bytes = [&](const char* name, uint64_t* value, const char* help) {
    app->add_option(name, *value, help)->transform(BytesFlag())->capture_default_str();
  };
  bytes("--max-header-bytes", &http.max_header_bytes, "HTTP header of a request, at most");
  bytes("--max-body-bytes", &http.max_body_bytes, "Body or gRPC message of a request, at most");
  bytes("--max-stream-buffer-bytes", &http.max_stream_buffer_bytes,
        "Unsent bytes of a stream before its slow client is dropped");
  bytes("--max-buffered-body-bytes", &http.max_buffered_body_bytes,
        "Bodies of all HTTP requests that are not answered yet, together");
  bytes("--max-body-bytes-per-s", &http.max_body_bytes_per_s,
        "Read a second of HTTP bodies beyond 64 KiB of each, together");
  AnswerLimits& answers = router->answers;
  bytes("--max-answer-bytes", &answers.max_answer_bytes, "Answer that is kept, not streamed");
  bytes("--max-buffered-answer-bytes", &answers.max_buffered_answer_bytes, "Such of all requests");
}

void AddCountFlags(CLI::App* app, RouterOptions* router) {
  DispatcherOptions& dispatcher = router->dispatcher;
  auto count = [&](const char* name, uint32_t* value, const char* help) {
    app->add_option(name, *value, help)->check(CLI::Range(1, 1'000'000))->capture_default_str();
  };
  count("--max-connections", &router->http.max_connections, "HTTP connections at once");
  GrpcConnectionLimits& grpc = router->grpc.connections;
  count("--max-grpc-connections", &grpc.max_grpc_connections, "gRPC connections at once");
  count("--max-grpc-resets", &grpc.max_grpc_resets_per_s,
        "gRPC calls that may be reset in a second; beyond that, whoever resets most of its own is "
        "shut out for a minute");
  count("--max-grpc-streams", &grpc.max_grpc_streams, "gRPC calls at once on a connection");
  app->add_option("--max-grpc-connection-age", router->grpc.max_grpc_connection_age_s,
                  "Seconds after which a gRPC client is asked to open another connection for its "
                  "next call, so that calls spread over new routers; what runs is not touched")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  count("--max-replicas", &dispatcher.max_replicas,
        "Replicas that the router connects to; further addresses are left out");
  count("--max-cache-index-pages", &dispatcher.max_index_pages,
        "Pages of a replica's prefix cache that --policy prefix_aware knows of");
  count("--max-requests", &dispatcher.max_requests, "Requests in flight, HTTP and gRPC together");
  app->add_option(
         "--max-failovers", dispatcher.max_failovers,
         "Times that a request which has begun (each of best_of choices) goes on after the "
         "loss of its replica, those that drain or are no longer named not counted")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app->add_option("--low-priority-share", dispatcher.low_priority_share,
                  "Of --max-requests and --admission-queue that requests below priority 0 may take")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void AddTimeFlags(CLI::App* app, RouterOptions* router) {
  DispatcherOptions& dispatcher = router->dispatcher;
  HttpOptions& http = router->http;
  auto ms = [&](const char* name, int64_t* value, const char* help) {
    app->add_option(name, *value, help)->check(CLI::Range(1, 86'400'000))->capture_default_str();
  };
  ms("--header-timeout-ms", &http.header_timeout_ms, "For a request's header to come in");
  ms("--body-timeout-ms", &http.body_timeout_ms, "For a request's body to come in");
  ms("--idle-timeout-ms", &http.idle_timeout_ms, "Between requests of a kept connection");
  ms("--write-timeout-ms", &http.write_timeout_ms, "Without a byte taken by the client");
  ms("--max-request-ms", &dispatcher.max_request_ms,
     "For a whole request; a later deadline is drawn in");
  auto ms_or_0 = [&](const char* name, int64_t* value, const char* help) {
    app->add_option(name, *value, help)->check(CLI::Range(0, 3'600'000))->capture_default_str();
  };
  ms_or_0(
      "--failover-wait-ms", &dispatcher.failover_wait_ms,
      "For a replica to be there that can take a request, or go on with one whose own was lost; "
      "0: it fails at once");
  ms_or_0("--slow-start-ms", &dispatcher.slow_start_ms,
          "A replica that became ready gets a growing share of the requests for so long, if others "
          "are warm; 0: its whole share at once");
  AddFlag(app, kDrainGraceMsFlag, &router->drain_grace_ms);
  app->add_option("--drain-linger-ms", router->drain_linger_ms,
                  "Of that, while requests are still taken, for clients and balancers that do not "
                  "know yet; connections are closed with their next answer, and when all have left "
                  "it ends early; 0: new requests are refused at once")
      ->check(CLI::Range(0, 86'400'000))
      ->capture_default_str();
}

void AddAdmissionFlags(CLI::App* app, RouterFlags* flags) {
  DispatcherOptions& dispatcher = flags->router.dispatcher;
  auto count = [&](const char* name, uint32_t* value, const char* help) {
    app->add_option(name, *value, help)->check(CLI::Range(0, 1'000'000))->capture_default_str();
  };
  count("--max-inflight-per-replica", &dispatcher.max_inflight_per_replica,
        "Requests (each of best_of choices is one) that this router gives to a replica at once; "
        "further ones wait in the admission queue. 0: as many as the replica takes");
  count("--admission-queue", &dispatcher.admission_queue,
        "New requests that may wait while no replica may take one, the highest priority first, "
        "then tenants in turn; beyond it clients get 429. 0: none waits for a busy replica");
  count("--admission-queue-per-tenant", &dispatcher.admission_queue_per_tenant,
        "Of these, those of one tenant; 0: as many as may wait");
  app->add_option("--admission-queue-timeout", flags->admission_queue_timeout_s,
                  "Seconds after which a request in the admission queue is refused")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
}

void AddTlsFlags(CLI::App* app, RouterOptions* router) {
  AddServerTlsFlags(app, &router->tls);
  TlsPaths& replica = router->replica_tls;
  app->add_option(kTlsToReplicas.ca_flag, replica.ca_file,
                  "PEM file of CAs: replicas are reached by TLS, but for unix:/path, and must have "
                  "a certificate of one of them. Read again when it changes, as are the next two");
  app->add_option(kTlsToReplicas.cert_flag, replica.cert_file,
                  "PEM file of this router's certificate, for replicas that want one");
  app->add_option(kTlsToReplicas.key_flag, replica.key_file,
                  "PEM file of that certificate's private key");
  app->add_option("--replica-tls-server-name", router->replica_tls_server_name,
                  "Name that replicas' certificates must have. Default: the address' host");
}

// The API server is asked later, and again and again; that none is named is wrong at once.
Status FindServices(RouterFlags* flags) {
  if (flags->replica_services.empty()) return OkStatus();
  StatusOr<KubeApi> api = FindKubeApi(flags->kubernetes_api, flags->kubernetes_credentials);
  if (!api.ok()) return Annotate(api.status(), "--replica-service");
  for (const std::string& text : flags->replica_services) {
    ASSIGN_OR_RETURN(ServiceName name, ParseServiceName(text));
    flags->router.dispatcher.replica_services.push_back({.name = std::move(name), .api = *api});
  }
  return OkStatus();
}

}  // namespace

void AddRouterFlags(CLI::App* app, RouterFlags* flags) {
  RouterOptions& router = flags->router;
  app->add_option("--host", router.http.host,
                  "Address to listen on, HTTP and gRPC (\"::\": all; 0.0.0.0: all of IPv4)")
      ->capture_default_str();
  app->add_option("--port", router.http.port, "HTTP port (0: any)")
      ->check(PortFlag())
      ->capture_default_str();
  app->add_option("--grpc-port", router.grpc.grpc_port, "gRPC port (0: any)")
      ->check(PortFlag())
      ->capture_default_str();
  app->add_option("--replica", router.dispatcher.replicas, "A replica's address (repeatable)")
      ->check(ReplicaAddressFlag());
  app->add_option("--replica-dns", router.dispatcher.replica_dns,
                  "NAME:PORT: a replica is at each address of NAME, such as a headless Service's "
                  "(repeatable)")
      ->check(DnsNameFlag());
  app->add_option("--replica-dns-interval-ms", router.dispatcher.replica_dns_interval_ms,
                  "From one look at --replica-dns to the next")
      ->check(CLI::Range(10, 86'400'000))
      ->capture_default_str();
  app->add_option("--replica-service", flags->replica_services,
                  "[NAMESPACE/]SERVICE:PORT: a replica is at each pod of a Kubernetes Service, as "
                  "the API server tells it at once (repeatable); PORT is a number or a port's name")
      ->check(ServiceNameFlag());
  app->add_option("--kubernetes-api", flags->kubernetes_api,
                  "API server of --replica-service, such as http://127.0.0.1:8001 of `kubectl "
                  "proxy`. Default: that of the pod this runs in");
  app->add_option("--kubernetes-credentials", flags->kubernetes_credentials,
                  "Folder of a service account's token, ca.crt and namespace, for an https API "
                  "server")
      ->capture_default_str();
  AddFlag(app, kPolicyFlag, &router.dispatcher.policy);
  AddFlag(app, kSseKeepaliveFlag, &flags->sse_keepalive_s);
  AddFlag(app, kApiKeysFileFlag, &router.api_keys_file);
  AddTlsFlags(app, &router);
  AddFlag(app, kCorsAllowOriginFlag, &router.http.cors_allow_origin)->check(OriginFlag());
  AddFlag(app, kOtlpTracesEndpointFlag, &router.traces.endpoint);
  AddTraceSampleRatioFlag(app, &router.traces.sample_ratio);
  AddFlag(app, kUiFlag, &flags->ui);
  AddFlag(app, kUiRequestsFlag, &router.dispatcher.ui_requests);
  AddFlag(app, kLogSlowMsFlag, &router.dispatcher.log_slow_ms);
  AddFlag(app, kToolCallParserFlag, &router.parsers.tool_call_parser);
  AddFlag(app, kReasoningParserFlag, &router.parsers.reasoning_parser);
  AddFlag(app, kDefaultChatTemplateKwargsFlag, &router.parsers.default_chat_template_kwargs)
      ->check(JsonObjectFlag());
  AddFlag(app, kSamplingDefaultsFlag, &flags->sampling_defaults);
  app->add_option("--notify-fd", flags->notify_fd,
                  "Descriptor that gets \"READY http=PORT grpc=PORT\" when requests are taken, and "
                  "NOT_SERVING or SERVING when what /health/ready says has changed");
  app->add_flag(
      "--check", flags->check,
      "Checks the flags and the files that they name, and ends: status 2 if one is wrong");
  app->add_option("--metrics-socket", flags->metrics_socket,
                  "Unix socket that serves this process's metrics");
  app->add_option("--metrics-port", flags->metrics_port,
                  "Port of /metrics for Prometheus; 0: any. Not given: none")
      ->check(PortFlag());
  app->add_option("--handoff-socket", flags->handoff_socket,
                  "Unix socket through which a router that is started with the same path takes "
                  "over: it gets the listening sockets, and this one ends once its clients have "
                  "left");
  AddSizeFlags(app, &router);
  AddCountFlags(app, &router);
  AddTimeFlags(app, &router);
  AddAdmissionFlags(app, flags);
  AddLogFlags(app, &flags->log);
}

Status FinishFlags(RouterFlags* flags) {
  RouterOptions& router = flags->router;
  DispatcherOptions& dispatcher = router.dispatcher;
  if (dispatcher.replicas.empty() && dispatcher.replica_dns.empty() &&
      flags->replica_services.empty())
    return absl::InvalidArgumentError("give --replica, --replica-dns or --replica-service");
  RETURN_IF_ERROR(FindServices(flags));
  router.grpc.max_grpc_message_bytes = router.http.max_body_bytes;
  router.grpc.max_grpc_buffer_bytes = router.http.max_buffered_body_bytes;
  router.grpc.max_metadata_bytes = router.http.max_header_bytes;
  // A quarter more: those that are refused, and the small ones that are no requests.
  const uint32_t most_requests = dispatcher.max_requests;
  router.grpc.connections.max_grpc_calls = most_requests + most_requests / 4;
  router.grpc.handshake_timeout_ms = router.http.header_timeout_ms;
  router.grpc.streams = {router.http.max_stream_buffer_bytes, router.http.write_timeout_ms};
  dispatcher.admission_queue_timeout_ms = int64_t{1000} * flags->admission_queue_timeout_s;
  router.sse_keepalive_ms = int64_t{1000} * flags->sse_keepalive_s;
  router.ui = flags->ui == "on";
  dispatcher.model_sampling = flags->sampling_defaults == "model";
  if (!router.ui) dispatcher.ui_requests = 0;
  return OkStatus();
}

}  // namespace flotilla
