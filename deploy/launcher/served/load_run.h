// A run of `flotilla bench serve`: sends requests to an OpenAI server as a load says, and notes
// when each answer's pieces come.
//
// Threads: one, which Run() is called on; `stop` may be set by a signal handler.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/http/http_client.h"
#include "deploy/launcher/chat_client.h"
#include "deploy/launcher/served/served_stats.h"
#include "deploy/launcher/workload/random_workload.h"

namespace flotilla {

struct LoadRunOptions {
  HttpUrl url;
  std::string model;
  std::string api_key;  // empty: none
  ServedLoad load;
  double temperature = 0;
  uint64_t seed = 0;  // of arrivals
  const std::atomic<bool>* stop = nullptr;
  struct Progress {
    size_t ended = 0, running = 0;
    uint64_t output_pieces = 0;
  };
  std::function<void(const Progress&)> progress;  // ten times a second
};

// What a run would do at which time: for the requests of an open load, exponential gaps; else all
// 0. Nanoseconds from the start. Pure.
std::vector<int64_t> ArrivalTimes(size_t requests, double request_rate, uint64_t seed);

// Reads the answer of one request, whatever pieces it comes in. Pure.
class AnswerReader {
 public:
  explicit AnswerReader(ServedRequest* request) : request_(request) {}
  void OnBody(std::string_view bytes, int64_t now_ns);
  // http_status 0: none came. connection_error: empty if the answer is whole.
  void OnEnd(unsigned http_status, const std::string& connection_error, int64_t now_ns);
  uint64_t pieces() const { return pieces_; }

 private:
  void OnEvent(std::string_view data, int64_t now_ns);

  ServedRequest* request_;
  SseParser events_;
  std::string start_;  // of an answer that is no stream: an error
  uint64_t pieces_ = 0;
  bool done_ = false;
};

// In the order of `requests`; those that were not sent are left out. Error: Unavailable (no such
// host).
StatusOr<std::vector<ServedRequest>> RunLoad(const std::vector<RandomRequest>& requests,
                                             const LoadRunOptions& options);

}  // namespace flotilla
