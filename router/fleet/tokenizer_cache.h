// Tokenizers and chat templates by digest: fetched from a replica once, built on the worker pool,
// shared.
//
// Threads: the io thread; callbacks come on it. Errors: the callback's status (the replica's file
// is too large, differs from its digest, or is no tokenizer) is about the replica that was asked:
// whoever waits for the same digest has its own replica asked then.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "flotilla/v1/engine.grpc.pb.h"
#include "router/base/model_handle.h"
#include "router/fleet/call_tracker.h"

namespace flotilla {

class TokenizerCache {
 public:
  using Result = StatusOr<TextModel>;
  using Callback = std::function<void(const Result&)>;

  TokenizerCache(boost::asio::any_io_executor executor, boost::asio::thread_pool* pool,
                 CallTracker* calls)
      : executor_(std::move(executor)), pool_(pool), calls_(calls) {}

  void Get(const v1::ModelFile& file, std::shared_ptr<v1::Engine::Stub> stub, Callback callback);

 private:
  struct Waiting {
    v1::ModelFile file;
    std::shared_ptr<v1::Engine::Stub> stub;
    Callback callback;
  };
  struct Entry {
    std::optional<TextModel> model;
    std::deque<Waiting> waiting;  // the first one's replica is being asked
  };
  void Fetch(const Waiting& first);
  void Build(std::string sha256, std::shared_ptr<std::string> bytes);
  void Finish(const std::string& sha256, const Result& result);

  const boost::asio::any_io_executor executor_;
  boost::asio::thread_pool* const pool_;
  CallTracker* const calls_;
  std::map<std::string, Entry> entries_;
};

}  // namespace flotilla
