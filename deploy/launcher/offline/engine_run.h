// Sends all requests of an offline run to one replica at once, on one Engine.Connect stream as a
// router would, and takes their tokens until the last has ended.
//
// Threads: the caller's. Errors: Unavailable (no engine, or it went away), Cancelled (`stop`),
// Internal: a request was refused or gave another number of tokens than asked for.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "deploy/launcher/offline/offline_stats.h"
#include "deploy/launcher/workload/random_workload.h"
#include "flotilla/v1/engine.grpc.pb.h"

namespace flotilla {

class EngineRun {
 public:
  struct Options {
    float temperature = 0.6f;
    uint64_t seed = 0;
    const std::atomic<bool>* stop = nullptr;  // looked at with every frame: at least once a second
    std::function<void(const OfflineStats&)> progress;  // after each frame
  };
  // address: host:port.
  static StatusOr<std::unique_ptr<EngineRun>> Connect(const std::string& address);
  ~EngineRun();

  const v1::GetModelInfoResponse& model() const { return model_; }
  // Once.
  StatusOr<OfflineStats> Run(const std::vector<RandomRequest>& requests, const Options& options);

 private:
  using Stream = grpc::ClientReaderWriterInterface<v1::RouterFrame, v1::EngineFrame>;
  EngineRun() = default;
  Status Submit(const std::vector<RandomRequest>& requests, const Options& options);
  Status OnDelta(const v1::Delta& delta, const std::vector<RandomRequest>& requests,
                 OfflineStats* stats);
  // Why the stream has ended.
  Status EndStatus();

  std::unique_ptr<v1::Engine::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
  v1::GetModelInfoResponse model_;
  uint64_t total_pages_ = 0;
};

}  // namespace flotilla
