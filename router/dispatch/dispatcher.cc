#include "router/dispatch/dispatcher.h"

#include <algorithm>
#include <random>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/unix_time.h"
#include "common/base/xxh64.h"
#include "common/rpc/choices.h"
#include "common/rpc/message_limits.h"
#include "router/base/random.h"

namespace flotilla {
namespace {

constexpr size_t kMaxGroupBytes = kMaxMessageBytes;  // of a request's choices, each with all of it

std::string RandomId() {
  std::random_device device;
  char text[24];
  std::snprintf(text, sizeof(text), "%08x%08x", device(), device());
  return StrCat("router-", text);
}

std::unique_ptr<Policy> MakePolicy(const std::string& name) {
  StatusOr<std::unique_ptr<Policy>> policy = CreatePolicy(name, RandomU64());
  CHECK_OK(policy.status());  // main checked the name
  return std::move(*policy);
}

FleetOptions FleetOptionsOf(const DispatcherOptions& options) {
  FleetOptions fleet;
  fleet.router_id = RandomId();
  fleet.tls = options.tls;
  fleet.backoff_min_ms = options.backoff_min_ms;
  fleet.backoff_max_ms = options.backoff_max_ms;
  fleet.find_keyed_ms = options.find_keyed_ms;
  fleet.max_reattach_ms = std::min(fleet.max_reattach_ms, options.failover_wait_ms);
  fleet.max_replicas = options.max_replicas;
  fleet.cache_events = MakePolicy(options.policy)->uses_cache();
  fleet.max_index_pages = options.max_index_pages;
  fleet.model_sampling = options.model_sampling;
  return fleet;
}

AdmissionLimits AdmissionLimitsOf(const DispatcherOptions& options) {
  return {options.admission_queue, options.admission_queue_per_tenant, options.low_priority_share};
}

PolicyRequest PolicyRequestOf(const v1::GenerateRequest& request) {
  PolicyRequest out;
  out.prompt_tokens = static_cast<uint64_t>(request.token_ids().ids_size());
  if (!request.session().empty()) out.session = Xxh64(request.session()) | 1;
  return out;
}

}  // namespace

Dispatcher::Dispatcher(DispatcherOptions options, boost::asio::io_context* io,
                       boost::asio::thread_pool* pool, CallTracker* calls, RouterMetrics* metrics)
    : options_(std::move(options)),
      io_(io),
      calls_(calls),
      metrics_(metrics),
      random_(RandomU64()),
      tokenizers_(io->get_executor(), pool, calls),
      fleet_(FleetOptionsOf(options_), {io, &tokenizers_, calls, this}),
      finished_(options_.ui_requests, options_.log_slow_ms, options_.tracer),
      park_timer_(*io),
      admission_(AdmissionLimitsOf(options_)),
      admission_timer_(*io),
      models_timer_(*io) {}

Dispatcher::~Dispatcher() = default;

void Dispatcher::Start() {
  fleet_.Set(Fleet::kStaticSource, options_.replicas);
  metrics_->Replicas(fleet_.replicas().size(), fleet_.left_out());
  StartDiscovery();
}

void Dispatcher::Stop() {
  stopped_ = true;
  groups_.clear();
  handles_by_key_.clear();
  num_streams_ = 0;
  parked_.clear();
  park_timer_.cancel();
  admission_timer_.cancel();
  models_timer_.cancel();
  for (const auto& watch : watches_) watch->Stop();
  fleet_.Stop();
}

// --- Requests ----------------------------------------------------------------------------------

std::variant<uint64_t, ApiError> Dispatcher::Submit(const v1::GenerateRequest& request,
                                                    const std::shared_ptr<const ModelHandle>& model,
                                                    const std::shared_ptr<GenerateSink>& sink,
                                                    const RequestKey* key) {
  RequestGroup group;
  for (size_t i = 0; i < ChoicesOf(request).num_candidates; ++i) {
    group.streams.push_back(std::make_shared<RequestStream>());
    RequestStream& stream = *group.streams.back();
    stream.request = ChoiceRequest(request, i);
    stream.request.clear_idempotency_key();
    stream.model = model;
    stream.sink = sink;
    if (key != nullptr) stream.keyed = KeyedOf(*key, i);
  }
  return SubmitGroup(std::move(group));
}

std::variant<uint64_t, ApiError> Dispatcher::SubmitEmbed(v1::GenerateRequest request,
                                                         const v1::EmbedOptions& embed,
                                                         std::shared_ptr<const ModelHandle> model,
                                                         std::shared_ptr<GenerateSink> sink) {
  RequestGroup group;
  group.streams.push_back(std::make_shared<RequestStream>());
  RequestStream& stream = *group.streams[0];
  stream.request = std::move(request);
  stream.embed = embed;
  stream.model = std::move(model);
  stream.sink = std::move(sink);
  return SubmitGroup(std::move(group));
}

std::variant<uint64_t, ApiError> Dispatcher::SubmitGroup(RequestGroup group) {
  if (failed_all_with_.has_value()) return *failed_all_with_;
  group.num_live = group.streams.size();
  if (num_streams_ + group.num_live > MostStreams(group.streams[0]->request)) {
    metrics_->Rejection("max_requests");
    ApiError error = Unavailable(
        StrCat("This router already has ", num_streams_, " requests; try again."), kRetryAfterMs);
    error.code = absl::StatusCode::kResourceExhausted;
    return error;
  }
  const size_t bytes = group.streams[0]->request.ByteSizeLong();
  if (bytes > kMaxRequestBytes || bytes * group.num_live > kMaxGroupBytes)
    return HttpError(413, StrCat("The request takes ", group.num_live, " times ", bytes,
                                 " bytes on its way to a replica; at most ", kMaxRequestBytes,
                                 " each and ", kMaxGroupBytes, " together are allowed."));
  const uint64_t handle = next_id_;
  const int64_t arrival_unix_ms = UnixMs(), arrival_ns = RealClock::Now();
  for (size_t i = 0; i < group.num_live; ++i) {
    RequestStream& stream = *group.streams[i];
    stream.handle = handle;
    stream.choice = i;
    stream.id = next_id_++;
    stream.arrival_unix_ms = arrival_unix_ms;
    stream.arrival_ns = arrival_ns;
    if (i > 0) stream.bill = TokenBill(stream.prompt_tokens());  // with the first choice
    finished_.OnArrival(*group.streams[0], &stream);
    if (!stream.request.has_deadline_ms() || stream.request.deadline_ms() > options_.max_request_ms)
      stream.request.set_deadline_ms(options_.max_request_ms);
  }
  retry_budget_.OnRequest();
  if (group.streams[0]->keyed.has_value()) return Locate(std::move(group));
  return Place(std::move(group));
}

std::variant<uint64_t, ApiError> Dispatcher::Place(RequestGroup group) {
  RequestStream& first = *group.streams[0];
  const bool others_wait = admission_.size() > 0 && admission_.Waits(LaneOf(first));
  ReplicaClient* replica = others_wait ? nullptr : Pick(&first, /*again=*/false);
  if (replica == nullptr) return Wait(std::move(group));
  RequestGroup* const entered = Enter(std::move(group));
  Dispatch(entered, replica);
  return entered->streams[0]->handle;
}

RequestGroup* Dispatcher::Enter(RequestGroup group) {
  const uint64_t handle = group.streams[0]->handle;
  num_streams_ += group.num_live;
  if (group.streams[0]->keyed.has_value()) {
    group.key = group.streams[0]->keyed->key();
    handles_by_key_.emplace(group.key, handle);
  }
  return &groups_.emplace(handle, std::move(group)).first->second;
}

RequestGroup Dispatcher::TakeOut(Groups::iterator group) {
  ForgetKey(*group);
  RequestGroup out = std::move(group->second);
  groups_.erase(group);
  num_streams_ -= out.num_live;
  return out;
}

void Dispatcher::Dispatch(RequestGroup* group, ReplicaClient* replica) {
  if (LogsDebug())
    Log().debug("dispatched {} {}", Kv("request_id", group->streams[0]->request.request_id()),
                Kv("replica", replica->replica_id()));
  group->replica = replica->options().index;
  for (const auto& stream : group->streams) {
    stream->attempts = 1;
    Send(stream, replica);
  }
  UpdateBackendMetrics(*replica);
}

void Dispatcher::Send(const std::shared_ptr<RequestStream>& stream, ReplicaClient* replica) {
  stream->parked = false;
  stream->waited_ns = WaitedNs(*stream);
  stream->parked_ns = 0;
  replica->Submit(stream);
  if (stream->keyed.has_value()) TellSearches(*stream);
}

bool Dispatcher::Usable(const RosterRow& row, const RequestStream& stream) {
  return row.ready && CanTell(row, stream);
}

bool Dispatcher::CanTell(const RosterRow& row, const RequestStream& stream) {
  const ModelHandle& model = *row.replica->model();
  if (stream.request.structured().has_structural_tag() && !model.structural_tags) return false;
  return !stream.begun() || model.fingerprint == *stream.fingerprint;
}

size_t Dispatcher::MostStreams(const v1::GenerateRequest& request) const {
  if (request.priority() >= 0) return options_.max_requests;
  return static_cast<size_t>(options_.low_priority_share * options_.max_requests);
}

ReplicaClient* Dispatcher::Pick(RequestStream* stream, bool again, Among among) {
  if (stream->keyed.has_value()) return PickHome(*stream, again, among);
  Policy& policy = PolicyOf(stream->model->name);
  const std::vector<ReplicaView> candidates = Candidates(*stream, again, among, policy);
  if (candidates.empty()) return nullptr;
  const size_t pick = policy.Pick(PolicyRequestOf(stream->request), candidates);
  CHECK(pick < candidates.size());
  stream->cached_tokens = candidates[pick].cached_tokens;
  if (policy.uses_cache()) metrics_->Routed(stream->prompt_tokens(), stream->cached_tokens);
  return &fleet_.at(candidates[pick].index);
}

Policy& Dispatcher::PolicyOf(const std::string& model) {
  std::unique_ptr<Policy>& policy = policies_[model];
  if (policy == nullptr) policy = MakePolicy(options_.policy);
  return *policy;
}

ReplicaClient* Dispatcher::PickForRetry(RequestStream* stream, bool again) {
  RequestGroup& group = groups_.at(stream->handle);
  const bool moved =
      group.replica.has_value() && (stream->attempts == 0 || *group.replica != stream->replica);
  const RosterRow* const to =
      moved ? fleet_.roster().Find(*stream->model, *group.replica) : nullptr;
  if (to != nullptr && Usable(*to, *stream) && !to->recovering &&
      (again || stream->IsNewTo(*group.replica, to->well_ns)))
    return to->replica;
  // Instead of one that recovers better wait for whichever is well first.
  ReplicaClient* replica = Pick(stream, again, Among::kWell);
  if (replica != nullptr) group.replica = replica->options().index;
  return replica;
}

bool Dispatcher::IsLive(const RequestStream& stream) const {
  const auto found = groups_.find(stream.handle);
  return found != groups_.end() && found->second.streams[stream.choice] != nullptr;
}

const std::string& Dispatcher::LastReplica(const RequestStream& stream) const {
  static const std::string none;
  const ReplicaClient* replica = stream.attempts == 0 ? nullptr : fleet_.Find(stream.replica);
  return replica == nullptr ? none : replica->replica_id();
}

void Dispatcher::End(const RequestStream& stream) {
  const auto found = groups_.find(stream.handle);
  found->second.streams[stream.choice].reset();
  --num_streams_;
  if (--found->second.num_live == 0) {
    ForgetKey(*found);
    groups_.erase(found);
  }
  ServeQueueSoon();
}

void Dispatcher::LeaveReplica(const RequestStream& stream, Leave leave) {
  ReplicaClient& replica = fleet_.at(stream.replica);
  if (LeftToOthers(stream, leave)) {
    replica.Detach(stream.id);
  } else {
    replica.Abort(stream.id, v1::FINISH_REASON_ABORT);
  }
  UpdateBackendMetrics(replica);
}

void Dispatcher::Drop(uint64_t handle, Leave leave) {
  const auto found = groups_.find(handle);
  if (found == groups_.end()) return;
  if (leave == Leave::kGoesOn && Detach(&found->second)) return;
  RequestGroup group = TakeOut(found);
  LeaveQueue(handle);
  FreeSlots(&group);
  for (const auto& stream : group.streams) {
    if (stream == nullptr) continue;
    finished_.OnEnd(*stream, LastReplica(*stream), "aborted");
    if (stream->parked) continue;
    if (!LeftToOthers(*stream, leave)) fleet_.at(stream->replica).BillLater(*stream);
    LeaveReplica(*stream, leave);
  }
  ServeQueueSoon();
}

bool Dispatcher::AbortByRequestId(const std::string& request_id, const std::string& tenant) {
  std::vector<std::shared_ptr<RequestStream>> matching;
  for (const auto& [handle, group] : groups_) {
    for (const auto& stream : group.streams) {
      if (stream != nullptr && stream->request.request_id() == request_id &&
          stream->sink->tenant() == tenant)
        matching.push_back(stream);
    }
  }
  for (const auto& stream : matching) {
    Drop(stream->handle, Leave::kEndsForAll);
    Finish(*stream, v1::FINISH_REASON_ABORT);
  }
  return !matching.empty();
}

void Dispatcher::Finish(const RequestStream& stream, v1::FinishReason reason) {
  v1::Delta last;
  last.set_last(true);
  last.add_choices()->set_finish_reason(reason);
  v1::Usage* usage = last.mutable_usage();
  usage->set_prompt_tokens(static_cast<int32_t>(stream.prompt_tokens()));
  usage->set_completion_tokens(static_cast<int32_t>(stream.progress.num_tokens()));
  const std::shared_ptr<GenerateSink> sink = stream.sink;  // it may cancel, and be let go
  sink->OnDelta(stream.choice, std::move(last));
}

void Dispatcher::OnStreamDelta(const std::shared_ptr<RequestStream>& stream, v1::Delta delta) {
  if (!IsLive(*stream)) return;
  if (delta.last() || delta.has_error()) UpdateBackendMetrics(fleet_.at(stream->replica));
  stream->progress.OnReceived(delta);
  if (stream->fetching_large) {
    stream->waiting.push_back(std::move(delta));
    return;
  }
  Deliver(stream, std::move(delta));
}

void Dispatcher::Deliver(const std::shared_ptr<RequestStream>& stream, v1::Delta delta) {
  if (delta.has_error()) return OnFault(stream, delta);
  if (delta.large_result_id() != 0) {
    FetchLarge(stream, std::move(delta));
    return;
  }
  const size_t tokens_before = stream->progress.num_tokens();
  if (const Status same = stream->progress.Deliver(&delta); !same.ok()) {
    Log().error("a replica went on differently {} {}",
                Kv("request_id", stream->request.request_id()),
                Kv("replica", fleet_.at(stream->replica).replica_id()));
    if (!delta.last()) LeaveReplica(*stream, Leave::kToOthers);
    ApiError error;
    error.code = same.code();
    error.message = std::string(same.message());
    Fail(stream, error);
    return;
  }
  if (IsEmpty(delta)) return;
  if (!stream->begun()) {
    stream->fingerprint = fleet_.at(stream->replica).model()->fingerprint;
    stream->sink->OnBegun(*stream->fingerprint);
  }
  if (stream->progress.num_tokens() > tokens_before) OnProgress(stream.get());
  if (delta.last()) {
    finished_.OnLast(*stream, LastReplica(*stream), &delta);
    End(*stream);
  }
  const std::shared_ptr<GenerateSink> sink = stream->sink;  // it may cancel, and be let go
  Charge(stream.get(), delta);
  sink->OnDelta(stream->choice, std::move(delta));
}

void Dispatcher::Charge(RequestStream* stream, const v1::Delta& delta) {
  const uint64_t computed = delta.has_computed_tokens()
                                ? delta.computed_tokens()
                                : stream->prompt_tokens() + stream->progress.num_tokens();
  if (delta.repeats())
    stream->bill.PaidUpTo(computed);
  else
    stream->bill.ChargeUpTo(computed, stream->sink->caller());
}

// It goes on, whatever happened to it before.
void Dispatcher::OnProgress(RequestStream* stream) {
  stream->attempts = 1;
  stream->failures = stream->refusals = 0;
  stream->failed_ns.clear();
  stream->waited_ns = 0;
  if (stream->first_token_ns == 0) stream->first_token_ns = RealClock::Now();
  if (stream->lost_ns == 0) return;
  metrics_->FailoverPause(static_cast<double>(RealClock::Now() - stream->lost_ns) / kNsPerSecond);
  stream->lost_ns = 0;
}

void Dispatcher::Fail(const std::shared_ptr<RequestStream>& stream, const ApiError& error) {
  finished_.OnEnd(*stream, LastReplica(*stream), "error");
  End(*stream);
  Drop(stream->handle, LeaveAfter(error));  // its siblings
  stream->sink->OnError(error);
}

}  // namespace flotilla
