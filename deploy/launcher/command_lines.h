// The command line of every process, made from the launcher's options. The flags are the contract
// between the launcher and the processes; docs of each are in its --help.
//
// Threads: any (pure). Ownership: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deploy/launcher/host_span.h"
#include "deploy/launcher/options.h"

namespace flotilla {

// What is settled once for a launcher: options with "auto" and "default" resolved.
struct ResolvedOptions {
  ServeOptions options;
  std::string model_path;
  std::string model_name;
  uint32_t tp = 1;  // ranks of a replica, on all its hosts
  HostSpan span;
  uint32_t vocab_size = 0;
  uint32_t threads = 1;  // of each worker
  uint32_t spin_us = 0;  // how long a compute thread spins for others before it sleeps
  std::vector<std::vector<uint32_t>> cpus;  // of each local worker's threads; empty: not pinned
  std::string bin_dir;
  std::string runtime_dir;    // for Unix sockets
  uint64_t flight_bytes = 0;  // of a replica's flight recorder; 0: none
  std::string flight_dir;
  // What schedulers get to finish requests after SIGTERM, seconds: --shutdown-timeout, or little
  // behind a router of ours, which had that and whose end nobody can be answered after.
  double scheduler_grace = 0;
};

// What is settled for one life of a replica.
struct ReplicaWiring {
  uint32_t index = 0;
  std::string id;                   // label and log prefix, "r0"
  std::vector<std::string> listen;  // gRPC addresses of the scheduler
  int control_fd = -1;
  int step_ring_fd = -1;
  int result_ring_fd = -1;
  int collective_fd = -1;
  int flight_fd = -1;  // -1: no flight recorder
};

struct RouterWiring {
  uint16_t port = 0;
  uint16_t grpc_port = 0;
  std::vector<std::string> replicas;  // addresses
  int notify_fd = -1;
};

std::string SocketPath(const ResolvedOptions& resolved, uint32_t replica, const std::string& what);

std::vector<std::string> SchedulerArgv(const ResolvedOptions& resolved,
                                       const ReplicaWiring& wiring);
std::vector<std::string> WorkerArgv(const ResolvedOptions& resolved, const ReplicaWiring& wiring,
                                    uint32_t rank);
// Of a rank that runs on another host.
std::vector<std::string> RankProxyArgv(const ResolvedOptions& resolved, const ReplicaWiring& wiring,
                                       uint32_t rank);
std::vector<std::string> DetokenizerArgv(const ResolvedOptions& resolved,
                                         const ReplicaWiring& wiring);
std::vector<std::string> RouterArgv(const ResolvedOptions& resolved, const RouterWiring& wiring);

}  // namespace flotilla
