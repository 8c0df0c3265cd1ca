// What a router asks a replica beside the stream that carries its requests.
//
// Threads: any; callbacks are posted to the executor, which must outlive `calls`' count. Errors: a
// call that fails calls back with nothing.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flotilla/v1/engine.grpc.pb.h"
#include "router/fleet/call_tracker.h"

namespace flotilla {

struct EngineCaller {
  std::shared_ptr<v1::Engine::Stub> stub;
  boost::asio::any_io_executor executor;
  CallTracker* calls = nullptr;
};

// The large result's prompt logprobs; null if it can't be had.
using LargeResultCallback = std::function<void(std::shared_ptr<std::vector<v1::TokenLogprobs>>)>;
void FetchLargeResult(const EngineCaller& caller, uint64_t id, LargeResultCallback callback);

// Whether the replica has the request of this key (Keyed.key). One that does not answer in time is
// asked once more, since what it has would be computed again elsewhere; then false.
void FindKeyed(const EngineCaller& caller, const std::string& key,
               std::chrono::milliseconds timeout, std::function<void(bool)> callback);

}  // namespace flotilla
