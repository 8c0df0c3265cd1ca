// Asks again and again which addresses a name has, on a thread of its own: resolving may block for
// seconds. For a headless Service of Kubernetes, whose name has the address of each ready pod.
//
// Units: milliseconds. Threads: the constructor's caller starts and Stops it; `on_result` runs on
// the watch's thread, never after Stop. Errors: on_result gets them, and the next try comes as
// usual.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "router/discovery/replica_watch.h"

namespace flotilla {

struct DnsName {
  std::string host;
  uint16_t port = 0;
};
// "NAME:PORT".
StatusOr<DnsName> ParseDnsName(std::string_view text);

using ResolveFunction = std::function<FoundReplicas(const DnsName&)>;
// By the system's resolver. NotFound: the name has no address.
FoundReplicas ResolveBySystem(const DnsName& name);

class DnsWatch final : public ReplicaWatch {
 public:
  struct Options {
    DnsName name;
    int64_t interval_ms = 5000;  // from one answer to the next question
    ResolveFunction resolve = &ResolveBySystem;
  };
  DnsWatch(Options options, OnResult on_result);
  ~DnsWatch() override { Stop(); }

  // Does not wait for a resolver that hangs: its answer is then lost.
  void Stop() override;

 private:
  struct State {
    explicit State(Options o, OnResult f) : options(std::move(o)), on_result(std::move(f)) {}
    const Options options;
    std::mutex mutex;
    std::condition_variable changed;
    OnResult on_result;      // guarded by mutex; null: stopped
    bool resolving = false;  // guarded by mutex
  };
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace flotilla
