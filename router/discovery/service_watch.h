// Watches the pods of a Kubernetes Service through the API server, on a thread of its own: a list
// of its EndpointSlices, then their changes as they happen. A pod that is new or about to be
// deleted is known at once, where DNS is asked every few seconds.
//
// Units: milliseconds. Threads: the constructor's caller starts and Stops it. Errors: on_result
// gets each; what is known stays, and the next try comes after a pause that doubles.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "router/discovery/endpoint_slices.h"
#include "router/discovery/kube_api.h"
#include "router/discovery/replica_watch.h"

namespace flotilla {

class ServiceWatch final : public ReplicaWatch {
 public:
  struct Options {
    ServiceName name;
    KubeApi api;
    int64_t backoff_min_ms = 1000;
    int64_t backoff_max_ms = 30'000;
    int64_t list_timeout_ms = 30'000;
    // After which a watch is begun anew, so that a server that is gone without a word is noticed.
    int64_t watch_ms = 240'000;
  };
  ServiceWatch(Options options, OnResult on_result);
  ~ServiceWatch() override { Stop(); }

  void Stop() override;

 private:
  void Run();
  // Sleeps, half of it by chance; false: stopped.
  bool Pause(int64_t ms);
  Status FindNamespace();
  Status List();
  // Until the server ends it; OK: it may be begun again where it ended.
  Status Watch();
  Status TakeLines(std::string_view bytes, std::string* rest);
  std::string Target(std::string_view query) const;
  void Report(FoundReplicas found);

  const Options options_;
  KubeClient client_;
  EndpointSlices slices_;
  std::string namespace_;
  std::mutex mutex_;
  std::condition_variable wake_;
  OnResult on_result_;  // guarded by mutex_; null: stopped
  std::thread thread_;
};

}  // namespace flotilla
