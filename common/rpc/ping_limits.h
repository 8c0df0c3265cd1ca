// How often gRPC's clients may ping a server: keep-alives of idle connections pass, whoever pings
// more often gets a GOAWAY, too_many_pings. And how a server finds out that a client's host is
// gone: it pings a connection from which nothing came, and closes it without an answer.
//
// Units: ms. Threads: any. Errors: none.
#pragma once

#include <grpcpp/grpcpp.h>

namespace flotilla {

inline constexpr int kMinPingIntervalMs = 5000;  // without an answer's bytes between them

inline void LimitPings(grpc::ServerBuilder* builder, int min_interval_ms = kMinPingIntervalMs) {
  constexpr int kMaxStrikes = 2;  // that came too soon, before one more breaks the connection off
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              min_interval_ms);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxStrikes);
}

// TCP alone would notice after a quarter of an hour.
inline constexpr int kKeepaliveMs = 15'000;

inline void DetectLostClients(grpc::ServerBuilder* builder, int keepalive_ms = kKeepaliveMs) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as it takes
}

}  // namespace flotilla
