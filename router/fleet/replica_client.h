// The router's side of one replica: the long-lived stream, its health, its load, its requests.
//
// connect → Hello → Welcome → tokenizer by digest → ready. A broken stream is opened again with
// back-off and jitter; its requests wait reattach_ms for that and are then named in Hello with the
// number of tokens received, so that the replica sends the rest. If it can't be opened at once,
// those that another replica can go on with move there. A replica that is silent for three
// heartbeats counts as dead.
//
// One that says that it recovers (its worker or detokenizer is away) keeps its requests for
// kRecoverMs, since mostly it is back before another one would have computed their caches. Then
// those move that another replica can go on with. After its reattach_ms, as with a broken
// connection, it counts as away: it has lost the rest, and takes no new ones until it is well.
//
// Threads: the io thread. Ownership: shared, so that callbacks in flight may find it gone. Errors:
// a request that can't go on is given to the listener by OnStreamLost; nothing else fails.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/tls/tls_files.h"
#include "router/base/model_handle.h"
#include "router/fleet/engine_calls.h"
#include "router/fleet/engine_stream.h"
#include "router/fleet/load_tracker.h"
#include "router/fleet/page_index.h"
#include "router/fleet/replica_health.h"
#include "router/fleet/request_stream.h"
#include "router/fleet/roster.h"
#include "router/fleet/tokenizer_cache.h"
#include "router/fleet/unpaid_tokens.h"
#include "router/policy/latency_ewma.h"
#include "router/policy/policy.h"

namespace flotilla {

class ReplicaClient;

class ReplicaListener {
 public:
  virtual ~ReplicaListener() = default;
  // It became ready or ceased to be, or has another model.
  virtual void OnReplicaChanged(ReplicaClient* replica) = 0;
  // It is stopped and will not be heard of again.
  virtual void OnReplicaRemoved(const ReplicaClient& replica) = 0;
  virtual void OnStreamDelta(const std::shared_ptr<RequestStream>& stream, v1::Delta delta) = 0;
  // Nothing needs a retired one any more. Comes from within its methods: it is stopped later.
  virtual void OnReplicaUnused() = 0;
  // The replica no longer has the request.
  virtual void OnStreamLost(const std::shared_ptr<RequestStream>& stream) = 0;
  // Another replica would take the request now.
  virtual bool CanMove(const RequestStream& stream) const = 0;
};

// How replicas are reached, but for those on this host by unix:/path.
struct ReplicaTls {
  const TlsFiles* files = nullptr;  // null: plain text
  std::string server_name;          // that their certificates have; empty: the address' host
};

struct ReplicaOptions {
  std::string address;  // as gRPC spells it: host:port or unix:/path
  uint32_t index = 0;
  std::string router_id;
  ReplicaTls tls;
  int64_t backoff_min_ms = 50;
  int64_t backoff_max_ms = 2000;
  int64_t handshake_ms = 5000;
  int64_t find_keyed_ms = 1000;        // for an answer
  int64_t max_reattach_ms = 60'000;    // for a broken connection, whatever the replica says
  bool cache_events = false;           // ask for them
  size_t max_index_pages = 1'000'000;  // of the replica's cached pages that are noted
};

class ReplicaClient : public RosterMember, public std::enable_shared_from_this<ReplicaClient> {
 public:
  // All outlive the client.
  struct Deps {
    boost::asio::io_context* io = nullptr;
    TokenizerCache* tokenizers = nullptr;
    ModelHandles* models = nullptr;
    CallTracker* calls = nullptr;
    Roster* roster = nullptr;  // has it; is told of each change
    ReplicaListener* listener = nullptr;
    bool model_sampling = true;  // as in FleetOptions
  };

  ReplicaClient(ReplicaOptions options, const Deps& deps);

  void Start();
  // Ends the stream for good; requests are not reported as lost.
  void Stop();

  // Takes new requests.
  bool ready() const { return state_ == State::kReady && !draining_ && !retired_ && !away_; }
  // It answers: also while it takes no new ones.
  bool reachable() const { return state_ == State::kReady; }
  // It has been without a process that its answers need for too long: nobody waits for it there.
  bool away() const { return away_; }
  // A retired one takes no new requests and does not wait for a broken connection to come back.
  void SetRetired(bool retired);
  bool retired() const { return retired_; }
  void Submit(const std::shared_ptr<RequestStream>& stream);
  void Abort(uint64_t stream_id, v1::FinishReason reason);
  // Has the caller of a stream that is about to be aborted charged once the replica says what it
  // had computed.
  void BillLater(const RequestStream& stream) {
    if (welcomed_ && streams_.contains(stream.id)) unpaid_.Add(stream);
  }
  // Wants no more of a keyed request, which goes on.
  void Detach(uint64_t stream_id);
  // Calls back with whether it has this request (Keyed.key); false also if it does not answer,
  // asked twice.
  void FindKeyed(const std::string& key, std::function<void(bool)> callback);
  // Calls back with the large result's prompt logprobs; empty pointer if it can't be had.
  void FetchLargeResult(uint64_t id, LargeResultCallback callback);

  ReplicaView view() const;
  const ModelHandle* answers_for() const override { return reachable() ? model_.get() : nullptr; }
  RosterRow row() override;
  // A recent one; fades while it has no requests. 0: not known.
  double first_token_s(int64_t now_ns) const {
    return streams_.empty() ? first_token_.Value(now_ns) : first_token_.Unfaded();
  }
  const ReplicaOptions& options() const { return options_; }
  const std::string& replica_id() const { return replica_id_; }
  // Null until known; stays while the replica is away.
  const std::shared_ptr<const ModelHandle>& model() const { return model_; }
  size_t active() const { return streams_.size(); }
  // So many more requests may come: there is room for that many fewer others.
  void HoldSlots(size_t count);
  void FreeSlots(size_t count);
  // A request needs it still, if only for a large result, or to be charged for.
  bool in_use() const { return !streams_.empty() || fetches_ > 0 || !unpaid_.empty(); }
  // It has not said yet how far one was that was aborted.
  bool aborting() const { return !unpaid_.empty(); }
  uint64_t generated_tokens() const { return generated_tokens_; }  // for this router's clients
  const v1::Load& load() const { return load_.load(); }
  bool draining() const { return draining_; }
  // Connected, and without a process that its answers need: requests are better off elsewhere.
  bool recovering() const { return recovering_; }
  // What it loses now had to move anyway: it drained, or nobody names it any more.
  bool loses_as_planned() const { return draining_ || drained_before_ || retired_; }
  // "connecting", "fetching" (its tokenizer), "ready", "recovering" or "unreachable".
  const char* state_name() const;
  const PageIndex& pages() const { return pages_; }
  const ReplicaHealth& health() const { return health_; }
  double TakeShortest() { return health_.TakeShortest(); }
  void Eject(int64_t now_ns);

 private:
  enum class State { kIdle, kConnecting, kFetching, kReady, kBackoff, kStopped };

  void Connect();
  void UseCurrentCertificates();
  void SendHello();
  void OnFrame(v1::EngineFrame frame);
  void OnWelcome(const v1::Welcome& welcome);
  void OnModelInfo(const v1::GetModelInfoResponse& info);
  void OnTokenizer(const v1::GetModelInfoResponse& info, const TokenizerCache::Result& result);
  void OnStep(v1::Step step);
  void OnEnd(const grpc::Status& status);
  void SetRecovering(bool recovering);
  void ArmMove();
  void OnStillRecovering();
  enum class Streams { kThoseThatCan, kAll };
  void MoveStreams(Streams which);
  void ScheduleReconnect();
  void ArmWatchdog();
  void LoseAll();
  void Lose(const std::shared_ptr<RequestStream>& stream);
  void LoseUnknown();  // what its last Welcome did not know
  void TellIfUnused();
  void SetState(State state);
  // What its row of the roster shows has changed. To be called before anybody else may look.
  void Touch();
  void EraseStream(uint64_t stream_id);
  // By its own bounds it would refuse one more request.
  bool full() const;
  // The handler, run only if this object and connection number `connection_` still are.
  template <typename... Args>
  std::function<void(Args...)> Guard(void (ReplicaClient::*method)(Args...));

  const ReplicaOptions options_;
  const Deps deps_;
  std::shared_ptr<const TlsMaterial> tls_;  // of stub_; null: plain text
  std::shared_ptr<v1::Engine::Stub> stub_;
  std::mt19937_64 random_;
  const uint64_t identity_;

  State state_ = State::kIdle;
  bool draining_ = false;
  bool recovering_ = false;
  bool away_ = false;            // it has recovered for too long
  bool drained_before_ = false;  // it was restarted; until what the former one had is handled
  bool retired_ = false;
  bool welcomed_ = false;  // this connection's handshake is done
  bool silent_ = false;    // it was ended because nothing came
  uint64_t connection_ = 0;
  int64_t backoff_ms_ = 0;
  int64_t heartbeat_ms_ = 1000;
  int64_t reattach_ms_ = 5000;
  int64_t away_ms_ = 5000;  // it may recover for so long
  int64_t last_frame_ns_ = 0;
  int64_t ready_ns_ = 0, well_ns_ = 0;
  int64_t recovering_ns_ = 0;  // since when it recovers
  std::string replica_id_;
  std::string last_failure_;
  std::shared_ptr<const ModelHandle> model_;
  std::shared_ptr<EngineStream> stream_;
  std::unordered_map<uint64_t, std::shared_ptr<RequestStream>> streams_;
  UnpaidTokens unpaid_;
  size_t held_slots_ = 0;
  size_t fetches_ = 0;  // of large results, under way
  std::vector<uint64_t> aborted_while_down_;
  std::vector<uint64_t> lost_while_down_;  // given up, should the replica hold on to them
  std::vector<uint64_t> unknown_there_;    // the replica has lost these; handled once it is ready
  uint32_t max_running_requests_ = 0;
  uint32_t max_queued_requests_ = 0;  // 0: it has not said
  LoadTracker load_;
  uint64_t generated_tokens_ = 0;
  LatencyEwma first_token_;
  PageIndex pages_;
  ReplicaHealth health_;
  boost::asio::steady_timer reconnect_timer_;
  boost::asio::steady_timer watchdog_timer_;
  boost::asio::steady_timer reattach_timer_;
  boost::asio::steady_timer move_timer_;
};

}  // namespace flotilla
