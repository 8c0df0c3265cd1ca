// From a checked request to a replica and back: policy, submission, deltas to the sink, retries
// before the first token, aborts.
//
// A request that its replica lost or refused (UNAVAILABLE, RESOURCE_EXHAUSTED) goes to another one,
// or to the same one once that is back. If the client has a piece of it already, the other replica
// must have the same fingerprint and goes on from there (stream_progress.h): the answer is the
// same, byte for byte. While there is no such replica the request is parked, at most
// failover_wait_ms in all until it gets a token; so is a new one while no replica of its model is
// there. It goes on max_failovers times, so that one that ends its replicas does not end all; moves
// from replicas that drain or retire, and refusals to begin, are not counted.
//
// With an admission queue (admission_queue.h) a new one that no replica may take now waits there
// instead: because each has max_inflight_per_replica choices of this router, or as many requests as
// it takes, or because none is ready. What has begun passes by queue and limit.
//
// Each choice of a request is a stream of its own. A policy chooses one replica for all of them;
// those that must move go where the first of them went. If one fails for good, all end.
//
// A request with an idempotency key is computed once however often it comes, and goes on when its
// client leaves (dispatcher_keyed.cc).
//
// Threads: the io thread, except models() and ready(). Ownership: keeps the sink until the request
// ended or was cancelled; a sink is never called after that. Sinks may call Cancel from a callback.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "router/admission/admission_queue.h"
#include "router/api/completions_request.h"
#include "router/base/request_key.h"
#include "router/base/router_metrics.h"
#include "router/discovery/dns_watch.h"
#include "router/discovery/service_watch.h"
#include "router/fleet/fleet.h"
#include "router/fleet/request_stream.h"
#include "router/observe/finished_requests.h"
#include "router/policy/policies.h"

namespace flotilla {

struct DispatcherOptions {
  std::vector<std::string> replicas;     // addresses
  std::vector<std::string> replica_dns;  // NAME:PORT, checked
  int64_t replica_dns_interval_ms = 5000;
  std::vector<ServiceWatch::Options> replica_services;
  ResolveFunction resolve = &ResolveBySystem;
  uint32_t max_replicas = 1024;
  ReplicaTls tls;
  std::string policy = "round_robin";
  bool model_sampling = true;               // models' defaults of sampling are used
  uint32_t max_index_pages = 1'000'000;     // of a replica's cache that are known here
  uint32_t max_requests = 4096;             // choices in flight, both APIs
  int64_t max_request_ms = 3'600'000;       // no deadline is later
  uint32_t max_attempts = 3;                // replicas that fail it without a new token; of a
                                            // new one, those that refuse it
  uint32_t max_failovers = 16;              // of a choice that has begun, whatever tokens it gets
  int64_t failover_wait_ms = 30'000;        // for a replica that can take a request
  int64_t model_memory_ms = 600'000;        // how long a model outlives its last replica
  int64_t slow_start_ms = 10'000;           // of a replica that became ready; 0: none
  int64_t outlier_interval_ms = 10'000;     // from one look for slow replicas to the next
  double low_priority_share = 0.8;          // of max_requests that those below priority 0 may take
  uint32_t max_inflight_per_replica = 0;    // choices, of this router; 0: no limit
  uint32_t admission_queue = 0;             // requests; 0: none waits
  uint32_t admission_queue_per_tenant = 0;  // 0: as admission_queue
  int64_t admission_queue_timeout_ms = 30'000;
  int64_t backoff_min_ms = 50;
  int64_t backoff_max_ms = 2000;
  int64_t find_keyed_ms = 1000;     // for a replica to say whether it has a keyed request
  uint32_t ui_requests = 64;        // finished ones that /ui shows; 0: none
  uint32_t log_slow_ms = 2500;      // finished_requests.h
  RequestTracer* tracer = nullptr;  // null: nothing is traced
};

class Dispatcher final : public ReplicaListener {
 public:
  Dispatcher(DispatcherOptions options, boost::asio::io_context* io, boost::asio::thread_pool* pool,
             CallTracker* calls, RouterMetrics* metrics);
  ~Dispatcher() override;

  void Start();
  // Every request that a client waits for fails with this, and so does each that comes later. A
  // keyed one goes on at its replica, as when its client leaves.
  void FailAll(const ApiError& error);
  // Drops every request without a word and ends the replicas' streams.
  void Stop();
  // Called each time ready() may have changed.
  void set_on_ready_changed(std::function<void()> callback) {
    on_ready_changed_ = std::move(callback);
  }

  // `request` passed generate_check and has token ids and a seed. Returns the handle for Cancel;
  // the sink's first call comes later, never from within.
  // `key`: null without an idempotency key.
  std::variant<uint64_t, ApiError> Submit(const v1::GenerateRequest& request,
                                          const std::shared_ptr<const ModelHandle>& model,
                                          const std::shared_ptr<GenerateSink>& sink,
                                          const RequestKey* key = nullptr);
  // The prompt's embedding: the sink gets it with its only delta.
  std::variant<uint64_t, ApiError> SubmitEmbed(v1::GenerateRequest request,
                                               const v1::EmbedOptions& embed,
                                               std::shared_ptr<const ModelHandle> model,
                                               std::shared_ptr<GenerateSink> sink);
  // The client wants no more of it, of all choices. Unknown handles are fine: the request may just
  // have ended.
  void Cancel(uint64_t handle) { Drop(handle, Leave::kGoesOn); }
  // The same, since what it was a part of has failed.
  void CancelFailed(uint64_t handle, const ApiError& why) { Drop(handle, LeaveAfter(why)); }
  // Ends the tenant's requests with this id as ABORT; their sinks get a last delta a choice. False
  // if there is none.
  bool AbortByRequestId(const std::string& request_id, const std::string& tenant);

  // Any thread. Models stay listed while their replicas are away, and for model_memory_ms once they
  // are no longer named: their successors may not serve yet.
  std::shared_ptr<const ModelTable> models() const;
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  size_t active() const;  // requests that a client waits for
  size_t parked() const { return parked_.size(); }
  size_t aborting() const;  // replicas that have not confirmed an abort
  int64_t max_request_ms() const { return options_.max_request_ms; }
  const Fleet::Replicas& replicas() const { return fleet_.replicas(); }
  const FinishedRequests& finished() const { return finished_; }

  // ReplicaListener
  void OnReplicaChanged(ReplicaClient* replica) override;
  void OnReplicaRemoved(const ReplicaClient& replica) override;
  void OnReplicaUnused() override;
  void OnStreamDelta(const std::shared_ptr<RequestStream>& stream, v1::Delta delta) override;
  void OnStreamLost(const std::shared_ptr<RequestStream>& stream) override;
  bool CanMove(const RequestStream& stream) const override;

 private:
  static constexpr int64_t kRetryAfterMs = 1000;
  enum class Among { kAll, kWell };  // replicas: also those that recover, or not
  using Groups = std::unordered_map<uint64_t, RequestGroup>;  // by handle

  // Submits the streams, which share request id, deadline, model and sink.
  std::variant<uint64_t, ApiError> SubmitGroup(RequestGroup group);
  RequestGroup* Enter(RequestGroup group);  // into groups_
  RequestGroup TakeOut(Groups::iterator group);
  void ForgetKey(const Groups::value_type& entry);
  // At a replica, or where those wait that no replica can take.
  std::variant<uint64_t, ApiError> Place(RequestGroup group);
  // At the replica that has this keyed request already, else as Place.
  std::variant<uint64_t, ApiError> Locate(RequestGroup group);
  void Search(RequestGroup* group);
  void OnLocated(uint64_t handle, std::optional<uint32_t> home);
  // What is asked for repeats of it may be answered as of before it was sent.
  void TellSearches(const RequestStream& sent);
  // Where this router has sent a request with this key that has not ended.
  std::optional<uint32_t> SentTo(const std::string& key) const;
  // The home that should take it.
  ReplicaClient* PickHome(const RequestStream& stream, bool again, Among among) const;
  // The replicas that should have it, the one that should first.
  std::vector<const RosterRow*> HomesOf(const RequestStream& stream) const;
  // Those that may have it.
  std::vector<const RosterRow*> HoldersOf(const RequestStream& stream) const;
  using MayHave = bool(const RosterRow&, const RequestStream&);
  std::vector<const RosterRow*> RankedBy(const RequestStream& stream, MayHave* may_have,
                                         size_t most) const;
  // What becomes of keyed streams whose request ends here.
  enum class Leave {
    kGoesOn,      // their client has left: what has run goes on, with nobody to tell
    kToOthers,    // it failed here; others may have asked for the same, and their replica goes on
    kEndsForAll,  // nobody is to have them
  };
  // A key that stands for another request: what else of it had begun is this request's alone.
  static Leave LeaveAfter(const ApiError& error) {
    return error.code == absl::StatusCode::kAlreadyExists ? Leave::kEndsForAll : Leave::kToOthers;
  }
  // Ends all choices; the sink hears nothing.
  void Drop(uint64_t handle, Leave leave);
  static bool LeftToOthers(const RequestStream& stream, Leave leave) {
    return stream.keyed.has_value() && leave == Leave::kToOthers;
  }
  // At its replica.
  void LeaveReplica(const RequestStream& stream, Leave leave);
  // False: it has no key, or no replica has had it yet.
  bool Detach(RequestGroup* group);
  // `again`: also replicas that failed it since they are well. Null: none is ready.
  ReplicaClient* Pick(RequestStream* stream, bool again, Among among = Among::kAll);
  // As Pick, but where another choice of the group has gone, if that may be, and none that
  // recovers.
  ReplicaClient* PickForRetry(RequestStream* stream, bool again);
  Policy& PolicyOf(const std::string& model);
  // Of those that can take it, the ones that should; all, if none should. With what `policy` asks
  // for.
  std::vector<ReplicaView> Candidates(const RequestStream& stream, bool again, Among among,
                                      const Policy& policy);
  static bool Healthy(const RosterRow& row, int64_t now_ns);
  double WarmthOf(const RosterRow& row, int64_t now_ns) const;
  void EjectOutliers(int64_t now_ns);
  void EjectOutliersOf(const std::vector<LatencySample>& samples, int64_t now_ns);
  void Dispatch(RequestGroup* group, ReplicaClient* replica);
  void Send(const std::shared_ptr<RequestStream>& stream, ReplicaClient* replica);
  // No replica may take it now.
  std::variant<uint64_t, ApiError> Wait(RequestGroup group);
  std::variant<uint64_t, ApiError> WaitInQueue(RequestGroup group);
  ApiError NotAdmitted(AdmissionQueue::Refusal refusal, const std::string& tenant);
  // Requests of one lane can be run by the same replicas.
  std::string LaneOf(const RequestStream& stream) const;
  // Forgets those in which nobody waits; the end: nobody waits in any.
  std::vector<std::string>::iterator NextLane(std::vector<std::string>* lanes);
  bool MayTakeNew(const RosterRow& row) const;
  // Its turn has come, and there is room for it, once it is known whether it runs already.
  void HoldPlace(RequestGroup* group, ReplicaClient* replica);
  // Gives the room back. False: none was held.
  bool FreeSlots(RequestGroup* group);
  void CountAdmitted(uint64_t handle);
  bool AnyUsable(const RequestStream& stream) const;
  // A replica may have room.
  void ServeQueueSoon();
  void LeaveQueue(uint64_t handle);
  void ServeQueue();
  void EndExpired(RequestGroup group);
  void ArmAdmissionTimer();
  // Choices that a request of this priority may find in flight.
  size_t MostStreams(const v1::GenerateRequest& request) const;
  // Those that answer, for this model.
  std::span<const RosterRow> RowsFor(const RequestStream& stream) const {
    return fleet_.roster().Of(*stream.model);
  }
  static bool Usable(const RosterRow& row, const RequestStream& stream);
  // It could give the client what it has of the request, also while it takes no new ones.
  static bool CanTell(const RosterRow& row, const RequestStream& stream);
  // `same_replica_too`: a replica that lost it (and came back) may run it again, if no other can.
  bool Retry(const std::shared_ptr<RequestStream>& stream, const char* reason,
             bool same_replica_too);
  // It has begun and should go on elsewhere. False: it has done so too often.
  bool CountFailover(RequestStream* stream) const;
  ApiError TooManyFailovers(const RequestStream& stream);
  // The replica's answer is an error.
  void OnFault(const std::shared_ptr<RequestStream>& stream, const v1::Delta& delta);
  // Waits for a replica that can take it, unless it has been failed too often.
  bool Park(const std::shared_ptr<RequestStream>& stream);
  // A group that no replica has had, since there is no room for it.
  void ParkAgain(RequestGroup group);
  static int64_t WaitedNs(const RequestStream& stream);
  bool WaitedTooLong(const RequestStream& stream) const;
  void ArmParkTimer();
  void PlaceParked();
  // True: it waits no longer.
  bool PlaceOrGiveUp(const std::shared_ptr<RequestStream>& stream);
  void SubmitAgain(const std::shared_ptr<RequestStream>& stream, ReplicaClient* replica,
                   const char* reason);
  void GiveUp(const std::shared_ptr<RequestStream>& stream);
  void Fail(const std::shared_ptr<RequestStream>& stream, const ApiError& error);
  static ApiError NoReplica(const RequestStream& stream);
  // The router itself says that the stream is over.
  static void Finish(const RequestStream& stream, v1::FinishReason reason);
  void Deliver(const std::shared_ptr<RequestStream>& stream, v1::Delta delta);
  static void Charge(RequestStream* stream, const v1::Delta& delta);
  void OnProgress(RequestStream* stream);
  void FetchLarge(const std::shared_ptr<RequestStream>& stream, v1::Delta delta);
  void StartDiscovery();
  void OnDiscovered(size_t source, FoundReplicas addresses);
  void UpdateReady();
  // What this replica serves is listed, and what it served before only if others do.
  void ListModelOf(const ReplicaClient& replica);
  void RebuildModels();
  // Adds models that only removed replicas had, until their time is over. (One that has another
  // model now has replaced it.)
  void KeepModels(ModelTable* table);
  void UpdateBackendMetrics(const ReplicaClient& replica);
  void ForgetLabel(const std::string& label);
  bool IsLive(const RequestStream& stream) const;
  void End(const RequestStream& stream);
  void EndByDeadline(const RequestStream& stream);  // the caller keeps it alive
  const std::string& LastReplica(const RequestStream& stream) const;

  const DispatcherOptions options_;
  boost::asio::io_context* const io_;
  CallTracker* const calls_;
  RouterMetrics* const metrics_;
  std::mt19937_64 random_;
  RetryBudget retry_budget_;
  int64_t outliers_checked_ns_ = 0;
  TokenizerCache tokenizers_;
  Fleet fleet_;
  std::vector<std::unique_ptr<ReplicaWatch>> watches_;             // by source - 1
  std::map<size_t, std::string> discovery_errors_;                 // the last one, by source
  std::map<uint32_t, std::string> backend_labels_;                 // of metrics, by replica
  std::map<std::string, uint32_t> label_uses_;                     // of those
  std::map<std::string, std::unique_ptr<Policy>> policies_;        // by model
  Groups groups_;                                                  // those with a live stream
  std::unordered_multimap<std::string, uint64_t> handles_by_key_;  // of groups_ that have one
  size_t num_streams_ = 0;
  std::vector<std::shared_ptr<RequestStream>> parked_;
  FinishedRequests finished_;
  boost::asio::steady_timer park_timer_;
  AdmissionQueue admission_;  // of groups_
  boost::asio::steady_timer admission_timer_;
  std::map<uint32_t, std::shared_ptr<const ModelHandle>> models_of_;  // by replica: as listed
  std::map<std::string, int64_t> models_left_ns_;  // when a replica of this model was removed
  boost::asio::steady_timer models_timer_;
  bool serve_posted_ = false, drop_posted_ = false;
  uint64_t next_id_ = 1;
  std::function<void()> on_ready_changed_;
  std::atomic<bool> ready_{false};
  bool stopped_ = false;
  std::optional<ApiError> failed_all_with_;

  mutable std::mutex models_mutex_;
  std::shared_ptr<const ModelTable> models_ = std::make_shared<ModelTable>();
};

}  // namespace flotilla
