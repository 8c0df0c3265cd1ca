// The replicas that a router knows: those of the command line, and those that discovery names.
//
// Set says what a source names now. An address that is new is connected to; one that no source
// names any more retires: it takes no new requests, what it has goes on, and it is dropped once it
// has none left, or with its connection. An index belongs to one replica for the router's life.
// Threads: the io thread. Errors: addresses beyond max_replicas are left out and counted.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "router/fleet/replica_client.h"

namespace flotilla {

struct FleetOptions {
  std::string router_id;
  ReplicaTls tls;
  int64_t backoff_min_ms = 50;
  int64_t backoff_max_ms = 2000;
  int64_t find_keyed_ms = 1000;
  int64_t max_reattach_ms = 60'000;
  uint32_t max_replicas = 1024;
  bool cache_events = false;
  uint32_t max_index_pages = 1'000'000;  // of each replica
  bool model_sampling = true;            // models' defaults of sampling are used
};

class Fleet {
 public:
  // All outlive the fleet.
  struct Deps {
    boost::asio::io_context* io = nullptr;
    TokenizerCache* tokenizers = nullptr;
    CallTracker* calls = nullptr;
    ReplicaListener* listener = nullptr;
  };
  using Replicas = std::map<uint32_t, std::shared_ptr<ReplicaClient>>;
  static constexpr size_t kStaticSource = 0;

  Fleet(FleetOptions options, Deps deps) : options_(std::move(options)), deps_(deps) {}

  void Set(size_t source, const std::vector<std::string>& addresses);
  // After OnReplicaUnused, and not from within a replica's callback: drops retired ones that
  // nothing needs. Their places are for addresses that were left out.
  void DropUnused();
  void Stop();

  const Replicas& replicas() const { return replicas_; }  // by index
  // Those that answer. Not const: what has changed is looked up first.
  Roster& roster() const { return roster_; }
  ReplicaClient& at(uint32_t index) const { return *replicas_.at(index); }
  // Null: it is gone.
  ReplicaClient* Find(uint32_t index) const;
  // Addresses that there is no room for.
  size_t left_out() const { return left_out_; }

 private:
  void Add(const std::string& address);
  // True: some were.
  bool DropRetired();
  // Names that no replica has.
  std::set<std::string> Missing() const;

  const FleetOptions options_;
  const Deps deps_;
  std::map<size_t, std::set<std::string>> named_;  // by source
  ModelHandles models_;
  mutable Roster roster_;  // of replicas_
  Replicas replicas_;
  uint32_t next_index_ = 0;
  size_t left_out_ = 0;
};

}  // namespace flotilla
