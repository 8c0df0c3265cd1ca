#include "router/fleet/replica_client.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/base/clock.h"
#include "common/base/listen.h"
#include "common/base/log.h"
#include "common/base/xxh64.h"
#include "common/rpc/message_limits.h"
#include "common/rpc/tls_credentials.h"

namespace flotilla {
namespace {

constexpr uint32_t kProtocolMin = 1;
constexpr uint32_t kProtocolMax = 2;
constexpr int kMissedHeartbeats = 3;
constexpr int64_t kRecoverMs = 1000;
constexpr int64_t kLeastAwayMs = 20, kMostAwayMs = 60'000;  // whatever the replica says

std::shared_ptr<const TlsMaterial> CurrentTls(const ReplicaOptions& options) {
  if (options.tls.files == nullptr || IsUnixAddress(options.address)) return nullptr;
  return options.tls.files->current();
}

std::shared_ptr<v1::Engine::Stub> MakeStub(const ReplicaOptions& options,
                                           const std::shared_ptr<const TlsMaterial>& tls) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Back-off is ours; the channel must not sit in one of its own when we try.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (tls != nullptr && !options.tls.server_name.empty())
    args.SetSslTargetNameOverride(options.tls.server_name);
  return v1::Engine::NewStub(
      grpc::CreateCustomChannel(options.address, MakeChannelCredentials(tls), args));
}

// Requests then differ from what another server of the same API makes of them.
void LogSampling(const ModelHandle& model) {
  const SamplingDefaults& of = model.sampling;
  if (!of.any()) return;
  const auto text = [](const auto& value) { return value ? StrCat(*value) : std::string("-"); };
  Log().info("the model's defaults of sampling {} {} {} {} {} {}", Kv("model", model.name),
             Kv("temperature", text(of.temperature)), Kv("top_p", text(of.top_p)),
             Kv("top_k", text(of.top_k)), Kv("min_p", text(of.min_p)),
             Kv("repetition_penalty", text(of.repetition_penalty)));
  for (const std::string& name : of.left_out) {
    Log().warn("a default of sampling is out of range and left out {} {}", Kv("model", model.name),
               Kv("field", name));
  }
}

}  // namespace

ReplicaClient::ReplicaClient(ReplicaOptions options, const Deps& deps)
    : options_(std::move(options)),
      deps_(deps),
      tls_(CurrentTls(options_)),
      stub_(MakeStub(options_, tls_)),
      random_(std::random_device{}()),
      identity_(Xxh64(options_.address)),
      replica_id_(options_.address),
      pages_(options_.max_index_pages),
      reconnect_timer_(*deps.io),
      watchdog_timer_(*deps.io),
      reattach_timer_(*deps.io),
      move_timer_(*deps.io) {}

template <typename... Args>
std::function<void(Args...)> ReplicaClient::Guard(void (ReplicaClient::*method)(Args...)) {
  return [weak = weak_from_this(), connection = connection_, method](Args... args) {
    const std::shared_ptr<ReplicaClient> self = weak.lock();
    if (self == nullptr || self->connection_ != connection) return;
    if (self->state_ == State::kStopped) return;
    ((*self).*method)(std::forward<Args>(args)...);
  };
}

void ReplicaClient::Start() { Connect(); }

void ReplicaClient::Stop() {
  state_ = State::kStopped;
  reconnect_timer_.cancel();
  watchdog_timer_.cancel();
  reattach_timer_.cancel();
  move_timer_.cancel();
  streams_.clear();
  if (stream_ != nullptr) stream_->Cancel();
  stream_.reset();
}

void ReplicaClient::SetRetired(bool retired) {
  const bool was_ready = ready();
  retired_ = retired;
  Touch();
  if (was_ready != ready()) deps_.listener->OnReplicaChanged(this);
}

void ReplicaClient::TellIfUnused() {
  if (retired_ && !in_use()) deps_.listener->OnReplicaUnused();
}

void ReplicaClient::SetState(State state) {
  const bool was_ready = ready();
  state_ = state;
  Touch();
  if (was_ready != ready()) deps_.listener->OnReplicaChanged(this);
}

void ReplicaClient::Touch() {
  if (state_ != State::kStopped) deps_.roster->Touch(this);
}

const char* ReplicaClient::state_name() const {
  switch (state_) {
    case State::kReady:
      return recovering_ ? "recovering" : "ready";
    case State::kFetching:
      return "fetching";
    case State::kConnecting:
      return "connecting";
    default:
      return "unreachable";
  }
}

// --- Connection --------------------------------------------------------------------------------

void ReplicaClient::Connect() {
  ++connection_;
  welcomed_ = false;
  SetState(State::kConnecting);
  Log().debug("connecting {}", Kv("address", options_.address));
  UseCurrentCertificates();
  auto on_end = [weak = weak_from_this(), connection = connection_](const grpc::Status& status) {
    const std::shared_ptr<ReplicaClient> self = weak.lock();
    if (self == nullptr || self->connection_ != connection) return;
    if (self->state_ != State::kStopped) self->OnEnd(status);
  };
  stream_ = EngineStream::Start({options_.address, tls_, options_.tls.server_name},
                                deps_.io->get_executor(),
                                {Guard(&ReplicaClient::OnFrame), std::move(on_end)});
  last_frame_ns_ = RealClock::Now();
  SendHello();
  ArmWatchdog();
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): the stream owns itself until it ends
}

// A connection keeps the certificates that it began with; the next one has those of now.
void ReplicaClient::UseCurrentCertificates() {
  std::shared_ptr<const TlsMaterial> now = CurrentTls(options_);
  if (now == tls_) return;
  tls_ = std::move(now);
  stub_ = MakeStub(options_, tls_);
}

void ReplicaClient::SendHello() {
  v1::RouterFrame frame;
  v1::Hello* hello = frame.mutable_hello();
  hello->set_protocol_min(kProtocolMin);
  hello->set_protocol_max(kProtocolMax);
  hello->set_router_id(options_.router_id);
  hello->set_cache_events(options_.cache_events);
  if (model_ != nullptr) {
    hello->set_model_digest(model_->digest);
    hello->set_fingerprint(model_->fingerprint);
  }
  for (const auto& [id, stream] : streams_) {
    v1::Reattach* reattach = hello->add_reattach();
    reattach->set_stream_id(id);
    reattach->set_prompt_logprobs(stream->progress.received_prompt_logprobs());
    reattach->add_token_offset(stream->progress.received_tokens());
  }
  stream_->Write(std::move(frame));
}

void ReplicaClient::OnFrame(v1::EngineFrame frame) {
  last_frame_ns_ = RealClock::Now();
  switch (frame.kind_case()) {
    case v1::EngineFrame::kWelcome:
      OnWelcome(frame.welcome());
      break;
    case v1::EngineFrame::kStep:
      if (welcomed_) OnStep(std::move(*frame.mutable_step()));
      break;
    case v1::EngineFrame::kGoodbye:
      Log().info("replica says goodbye {} {}", Kv("replica", replica_id_),
                 Kv("reason", frame.goodbye().reason()));
      draining_ = true;
      Touch();
      deps_.listener->OnReplicaChanged(this);
      break;
    default:
      break;
  }
}

void ReplicaClient::OnWelcome(const v1::Welcome& welcome) {
  if (welcome.protocol() < kProtocolMin || welcome.protocol() > kProtocolMax) {
    Log().error("replica speaks another protocol {} {}", Kv("replica", options_.address),
                Kv("protocol", welcome.protocol()));
    stream_->Cancel();
    return;
  }
  Log().debug("welcome {}", Kv("address", options_.address));
  if (welcome.protocol() >= 2) stream_->AllowBatches();
  welcomed_ = true;
  silent_ = false;
  backoff_ms_ = 0;
  last_failure_.clear();
  reattach_timer_.cancel();
  replica_id_ = welcome.replica_id().empty() ? options_.address : welcome.replica_id();
  heartbeat_ms_ = std::clamp<int64_t>(welcome.heartbeat_ms(), 20, 60'000);
  reattach_ms_ = std::min<int64_t>(welcome.reattach_ms(), options_.max_reattach_ms);
  away_ms_ = std::clamp<int64_t>(welcome.reattach_ms(), kLeastAwayMs, kMostAwayMs);
  drained_before_ = drained_before_ || draining_;
  draining_ = welcome.load().draining();
  load_.Reset(welcome.load());
  Touch();
  SetRecovering(welcome.load().recovering());
  pages_.Reset();
  ArmWatchdog();
  for (uint64_t id : std::exchange(aborted_while_down_, {})) Abort(id, v1::FINISH_REASON_ABORT);
  for (uint64_t id : std::exchange(lost_while_down_, {})) Detach(id);
  unknown_there_.assign(welcome.lost_stream_ids().begin(), welcome.lost_stream_ids().end());
  SetState(State::kFetching);
  OnModelInfo(welcome.model());
}

void ReplicaClient::OnModelInfo(const v1::GetModelInfoResponse& info) {
  const auto& files = info.files();
  const auto file = std::find_if(files.begin(), files.end(),
                                 [](const v1::ModelFile& f) { return f.name() == kTokenizerFile; });
  if (file == files.end()) {
    OnTokenizer(info, absl::NotFoundError("the replica offers no tokenizer"));
    return;
  }
  deps_.tokenizers->Get(*file, stub_,
                        [weak = weak_from_this(), connection = connection_,
                         info](const TokenizerCache::Result& result) {
                          const std::shared_ptr<ReplicaClient> self = weak.lock();
                          if (self == nullptr || self->connection_ != connection) return;
                          if (self->state_ == State::kFetching) self->OnTokenizer(info, result);
                        });
}

void ReplicaClient::OnTokenizer(const v1::GetModelInfoResponse& info,
                                const TokenizerCache::Result& result) {
  if (!result.ok()) {
    Log().error("replica is of no use: {} {}", Kv("replica", replica_id_),
                Kv("error", std::string(result.status().message())));
    backoff_ms_ = options_.backoff_max_ms;
    LoseUnknown();
    stream_->Cancel();
    return;
  }
  ModelHandle model = ModelOf(info, *result);
  if (!deps_.model_sampling) model.sampling = {};
  LogSampling(model);
  model_ = deps_.models->Share(std::move(model));
  if (!model_->chat_format.ok() && !absl::IsNotFound(model_->chat_format.status())) {
    Log().warn("model can't chat {} {}", Kv("model", model_->name),
               Kv("error", std::string(model_->chat_format.status().message())));
  }
  max_running_requests_ = info.max_running_requests();
  max_queued_requests_ = info.max_queued_requests();
  Log().info("replica ready {} {} {}", Kv("replica", replica_id_), Kv("address", options_.address),
             Kv("model", model_->name));
  ready_ns_ = well_ns_ = RealClock::Now();
  SetState(State::kReady);
  LoseUnknown();  // only now, so that they may start again on this very replica
}

void ReplicaClient::LoseUnknown() {
  for (uint64_t id : std::exchange(unknown_there_, {})) {
    const auto found = streams_.find(id);
    if (found != streams_.end()) Lose(std::shared_ptr<RequestStream>(found->second));
  }
  drained_before_ = false;
}

void ReplicaClient::OnEnd(const grpc::Status& status) {
  stream_.reset();
  unpaid_.Clear();
  watchdog_timer_.cancel();
  const bool was_welcomed = std::exchange(welcomed_, false);
  if (status.error_message() != last_failure_ || was_welcomed) {
    // One that drained leaves when it is done.
    Log().log(draining_ ? spdlog::level::info : spdlog::level::warn,
              "replica not reachable {} {} {} {}", Kv("replica", replica_id_),
              Kv("address", options_.address), Kv("code", static_cast<int>(status.error_code())),
              Kv("error", status.error_message()));
    last_failure_ = status.error_message();
  }
  SetState(State::kBackoff);
  SetRecovering(false);
  if (retired_) LoseAll();
  if (was_welcomed && !streams_.empty()) {
    reattach_timer_.expires_after(std::chrono::milliseconds(reattach_ms_));
    reattach_timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
      const std::shared_ptr<ReplicaClient> self = weak.lock();
      if (!error && self != nullptr && !self->welcomed_) self->LoseAll();
    });
  }
  if (!was_welcomed || std::exchange(silent_, false)) MoveStreams(Streams::kThoseThatCan);
  ScheduleReconnect();
  TellIfUnused();
}

void ReplicaClient::SetRecovering(bool recovering) {
  if (std::exchange(recovering_, recovering) == recovering) return;
  Touch();
  if (recovering) {
    recovering_ns_ = RealClock::Now();
    ArmMove();
  } else {
    away_ = false;
    move_timer_.cancel();
    well_ns_ = RealClock::Now();
  }
  deps_.listener->OnReplicaChanged(this);
}

void ReplicaClient::ArmMove() {
  move_timer_.expires_after(std::chrono::milliseconds(std::min(kRecoverMs, away_ms_)));
  move_timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const std::shared_ptr<ReplicaClient> self = weak.lock();
    if (!error && self != nullptr && self->recovering_) self->OnStillRecovering();
  });
}

// Again and again: another replica may come, or recover first.
void ReplicaClient::OnStillRecovering() {
  const int64_t for_ms = (RealClock::Now() - recovering_ns_) / kNsPerMs;
  ArmMove();
  if (for_ms < away_ms_) return MoveStreams(Streams::kThoseThatCan);
  // One that was asked for a keyed request before may have got it since.
  if (away_) return MoveStreams(Streams::kAll);
  Log().warn("replica recovers for too long {} {} {}", Kv("replica", replica_id_), Kv("ms", for_ms),
             Kv("requests", streams_.size()));
  away_ = true;
  Touch();
  deps_.listener->OnReplicaChanged(this);
  MoveStreams(Streams::kAll);
}

// The replica is dead, probably, or recovers: what can go on elsewhere does so at once.
void ReplicaClient::MoveStreams(Streams which) {
  std::vector<std::shared_ptr<RequestStream>> movable;
  for (const auto& [id, stream] : streams_) {
    if (which == Streams::kAll || deps_.listener->CanMove(*stream)) movable.push_back(stream);
  }
  if (movable.empty()) return;
  Log().info("requests move {} {} {}", Kv("replica", replica_id_), Kv("state", state_name()),
             Kv("requests", movable.size()));
  for (const auto& stream : movable) {
    // Another router may have it from this replica as well, if it has a key.
    if (stream->keyed.has_value()) {
      Detach(stream->id);
    } else {
      Abort(stream->id, v1::FINISH_REASON_ABORT);
    }
    deps_.listener->OnStreamLost(stream);
  }
  TellIfUnused();
}

void ReplicaClient::ScheduleReconnect() {
  backoff_ms_ = std::clamp(backoff_ms_ * 2, options_.backoff_min_ms, options_.backoff_max_ms);
  // Half fixed, half random: routers that lost a replica together do not come back together.
  std::uniform_int_distribution<int64_t> jitter(0, backoff_ms_ / 2);
  reconnect_timer_.expires_after(std::chrono::milliseconds(backoff_ms_ / 2 + jitter(random_)));
  reconnect_timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const std::shared_ptr<ReplicaClient> self = weak.lock();
    if (!error && self != nullptr && self->state_ == State::kBackoff) self->Connect();
  });
}

void ReplicaClient::ArmWatchdog() {
  const int64_t limit_ms = welcomed_ ? kMissedHeartbeats * heartbeat_ms_ : options_.handshake_ms;
  const int64_t silent_ms = (RealClock::Now() - last_frame_ns_) / kNsPerMs;
  if (silent_ms >= limit_ms) {
    Log().warn("replica is silent {} {}", Kv("replica", replica_id_), Kv("ms", silent_ms));
    silent_ = true;
    if (stream_ != nullptr) stream_->Cancel();
    return;
  }
  watchdog_timer_.expires_after(std::chrono::milliseconds(limit_ms - silent_ms));
  watchdog_timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const std::shared_ptr<ReplicaClient> self = weak.lock();
    if (!error && self != nullptr && self->stream_ != nullptr) self->ArmWatchdog();
  });
}

}  // namespace flotilla
