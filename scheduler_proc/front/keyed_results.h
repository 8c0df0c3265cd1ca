// Requests with an idempotency key (Keyed of engine.proto): what each has given so far, so that who
// asks again, through whichever router, is given the same and nothing is computed twice.
//
// A record is the sink of its request: it hands every delta on to all that are attached, and keeps
// it. A request that ended by itself is kept for ttl_ns; one that was aborted, failed or ran into
// its deadline is forgotten, so that asking again runs it again. All records together take at most
// max_bytes: the longest ended go first, then the one that grows (it goes on for those attached,
// and ends early without any). Timing is told to who began it: for the others it would be of
// another time, and what they are given is marked as a repeat. A request that goes on here from
// what another replica gave is kept with that, if it is told, so that also those who have nothing
// of it yet are given it. Who has more than there is yet waits. Prompt logprobs that were too large
// for a frame can be fetched once, so such a request is forgotten too.
//
// Threads: any. Its lock is held while a sink's methods are called, so a sink must not call back
// with a lock of its own held that Append or Flush take. Times: CLOCK_MONOTONIC ns.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "scheduler_proc/exchange/output_event.h"
#include "scheduler_proc/front/stream_log.h"

namespace flotilla {

struct KeyedResultsOptions {
  uint64_t max_bytes = 32 << 20;
  int64_t ttl_ns = 600 * kNsPerSecond;
};

class KeyedMetrics {
 public:
  KeyedMetrics(prometheus::Registry* registry, const prometheus::Labels& labels);

  prometheus::Counter &begun, &attached_running, &attached_finished, &conflicts, &alone;
  prometheus::Gauge &records, &bytes;
};

class KeyedResults {
 public:
  // Who is to be given a request's deltas, behind the output that it has.
  struct Consumer {
    std::shared_ptr<OutputSink> sink;
    uint64_t stream = 0;
    uint32_t first_token = 0;
    size_t room = SIZE_MAX;  // bytes that it can take at once
    uint64_t text_bytes = 0;
  };
  struct Place {
    // What the request is to be submitted with; null: there is one, and the consumer is given all
    // that it has produced.
    std::shared_ptr<OutputSink> sink;
    ReqId id = 0;  // under which the request runs; 0: it has ended
    // The request outlives the consumer. False: its output is the consumer's alone, because what is
    // kept here begins behind what the consumer has.
    bool shared = true;
  };

  KeyedResults(const KeyedResultsOptions& options, const Clock* clock, KeyedMetrics metrics)
      : options_(options), clock_(clock), metrics_(metrics) {}

  // `id`: under which the request will run, if it is to be submitted. `before`: the output that the
  // consumer has; empty if it can't be told. InvalidArgument: key or digest are no hashes.
  // AlreadyExists: the key stands for another request. Aborted: what there is is larger than the
  // consumer's room; it may ask again.
  StatusOr<Place> AttachOrBegin(const v1::Keyed& keyed, ReqId id, const Consumer& consumer,
                                const v1::Delta& before = {});
  // NotFound: there is none that the consumer can be given.
  StatusOr<Place> Attach(const v1::Keyed& keyed, const Consumer& consumer);
  bool Contains(const std::string& key);
  // Forgets what is too old. Returns when it wants to be called next; INT64_MAX: it has nothing.
  int64_t Tick(int64_t now_ns);

 private:
  struct Attached;
  // The sink of one request.
  struct Record;

  StatusOr<Place> AttachLocked(const std::shared_ptr<Record>& record, const v1::Keyed& keyed,
                               const Consumer& consumer);
  // False: nobody is given what comes next.
  bool OnPiece(const std::shared_ptr<Record>& record, v1::Delta&& piece);
  void OnFlush(Record* record);
  static void ServeWaitingLocked(Record* record);
  static void CatchUp(StreamLog log, const Consumer& consumer);
  void KeepLocked(const std::shared_ptr<Record>& record, v1::Delta&& piece);
  void ExpireLocked(int64_t now_ns);
  void MakeRoomLocked(const std::shared_ptr<Record>& growing);
  void ForgetLocked(const std::shared_ptr<Record>& record);
  void TellLocked();  // the metrics

  const KeyedResultsOptions options_;
  const Clock* const clock_;
  const KeyedMetrics metrics_;
  std::mutex mutex_;
  // All below guarded by mutex_, also what Records hold.
  std::unordered_map<std::string, std::shared_ptr<Record>> records_;  // by key
  std::deque<std::shared_ptr<Record>> ended_;  // kept ones, longest ended first
  size_t bytes_ = 0;
};

}  // namespace flotilla
