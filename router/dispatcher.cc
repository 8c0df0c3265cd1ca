#include "router/dispatcher.h"

#include <algorithm>
#include <random>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/xxh64.h"
#include "common/rpc/choices.h"
#include "router/random.h"

namespace flotilla {
namespace {

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
  fleet.backoff_min_ms = options.backoff_min_ms;
  fleet.backoff_max_ms = options.backoff_max_ms;
  fleet.max_replicas = options.max_replicas;
  fleet.cache_events = MakePolicy(options.policy)->uses_cache();
  fleet.max_index_pages = options.max_index_pages;
  return fleet;
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
      park_timer_(*io) {}

Dispatcher::~Dispatcher() = default;

void Dispatcher::Start() {
  fleet_.Set(Fleet::kStaticSource, options_.replicas);
  metrics_->Replicas(fleet_.replicas().size(), fleet_.left_out());
  StartDiscovery();
}

void Dispatcher::Stop() {
  stopped_ = true;
  groups_.clear();
  num_streams_ = 0;
  parked_.clear();
  park_timer_.cancel();
  for (const auto& watch : watches_) watch->Stop();
  fleet_.Stop();
}

// --- Requests ----------------------------------------------------------------------------------

std::variant<uint64_t, ApiError> Dispatcher::Submit(const v1::GenerateRequest& request,
                                                    const std::shared_ptr<const ModelHandle>& model,
                                                    const std::shared_ptr<GenerateSink>& sink) {
  RequestGroup group;
  for (size_t i = 0; i < ChoicesOf(request).num_candidates; ++i) {
    group.streams.push_back(std::make_shared<RequestStream>());
    group.streams.back()->request = ChoiceRequest(request, i);
    group.streams.back()->model = model;
    group.streams.back()->sink = sink;
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
  group.num_live = group.streams.size();
  if (num_streams_ + group.num_live > MostStreams(group.streams[0]->request)) {
    metrics_->Rejection("max_requests");
    ApiError error = Unavailable(
        StrCat("This router already has ", num_streams_, " requests; try again."), kRetryAfterMs);
    error.code = absl::StatusCode::kResourceExhausted;
    return error;
  }
  const uint64_t handle = next_id_;
  const int64_t arrival_unix_ms = UnixMs();
  for (size_t i = 0; i < group.num_live; ++i) {
    RequestStream& stream = *group.streams[i];
    stream.handle = handle;
    stream.choice = i;
    stream.id = next_id_++;
    stream.arrival_unix_ms = arrival_unix_ms;
    if (!stream.request.has_deadline_ms() || stream.request.deadline_ms() > options_.max_request_ms)
      stream.request.set_deadline_ms(options_.max_request_ms);
  }
  retry_budget_.OnRequest();
  const RequestStream& first = *group.streams[0];
  ReplicaClient* replica = Pick(first, /*again=*/false);
  if (replica == nullptr && options_.failover_wait_ms == 0) {
    metrics_->Rejection("no_replica");
    return NoReplica(first);
  }
  num_streams_ += group.num_live;
  if (replica == nullptr) {
    for (const auto& stream : group.streams) Park(stream);
    groups_.emplace(handle, std::move(group));
    return handle;
  }
  Log().debug("dispatched {} {}", Kv("request_id", first.request.request_id()),
              Kv("replica", replica->replica_id()));
  group.replica = replica->options().index;
  for (const auto& stream : group.streams) {
    stream->attempts = 1;
    replica->Submit(stream);
  }
  groups_.emplace(handle, std::move(group));
  UpdateBackendMetrics(*replica);
  return handle;
}

bool Dispatcher::Usable(const ReplicaClient& replica, const RequestStream& stream) const {
  return replica.ready() && replica.model()->name == stream.model->name &&
         replica.model()->tokenizer_sha256 == stream.model->tokenizer_sha256 &&
         (!stream.begun() || replica.model()->fingerprint == *stream.fingerprint);
}

size_t Dispatcher::MostStreams(const v1::GenerateRequest& request) const {
  if (request.priority() >= 0) return options_.max_requests;
  return static_cast<size_t>(options_.low_priority_share * options_.max_requests);
}

ReplicaClient* Dispatcher::Pick(const RequestStream& stream, bool again) {
  std::vector<ReplicaView> candidates = Candidates(stream, again);
  if (candidates.empty()) return nullptr;
  std::unique_ptr<Policy>& policy = policies_[stream.model->name];
  if (policy == nullptr) policy = MakePolicy(options_.policy);
  if (policy->uses_cache()) AddCached(stream, &candidates);
  const size_t pick = policy->Pick(PolicyRequestOf(stream.request), candidates);
  CHECK(pick < candidates.size());
  if (policy->uses_cache())
    metrics_->Routed(stream.prompt_tokens(), candidates[pick].cached_tokens);
  return &fleet_.at(candidates[pick].index);
}

void Dispatcher::AddCached(const RequestStream& stream,
                           std::vector<ReplicaView>* candidates) const {
  const auto& ids = stream.request.token_ids().ids();
  std::map<uint32_t, std::vector<uint64_t>> hashes;  // by page size: mostly one
  for (ReplicaView& view : *candidates) {
    const PageIndex& pages = fleet_.at(view.index).pages();
    if (pages.size() == 0) continue;
    const auto [of_size, added] = hashes.try_emplace(pages.page_size());
    if (added)
      of_size->second = PromptPageHashes(
          stream.sink->tenant(), {ids.data(), static_cast<size_t>(ids.size())}, pages.page_size());
    view.cached_tokens = uint64_t{pages.page_size()} * pages.Match(of_size->second);
  }
}

ReplicaClient* Dispatcher::PickForRetry(const RequestStream& stream, bool again) {
  RequestGroup& group = groups_.at(stream.handle);
  ReplicaClient* const moved_to = fleet_.Find(group.replica);
  const bool tried = stream.tried.contains(group.replica);
  if (group.replica != stream.replica && moved_to != nullptr && Usable(*moved_to, stream) &&
      (again || !tried))
    return moved_to;
  ReplicaClient* replica = Pick(stream, again);
  if (replica != nullptr) group.replica = replica->options().index;
  return replica;
}

bool Dispatcher::IsLive(const RequestStream& stream) const {
  const auto found = groups_.find(stream.handle);
  return found != groups_.end() && found->second.streams[stream.choice] != nullptr;
}

void Dispatcher::End(const RequestStream& stream) {
  const auto found = groups_.find(stream.handle);
  found->second.streams[stream.choice].reset();
  --num_streams_;
  if (--found->second.num_live == 0) groups_.erase(found);
}

void Dispatcher::Cancel(uint64_t handle) {
  const auto found = groups_.find(handle);
  if (found == groups_.end()) return;
  const RequestGroup group = std::move(found->second);
  groups_.erase(found);
  num_streams_ -= group.num_live;
  for (const auto& stream : group.streams) {
    if (stream == nullptr || stream->parked) continue;
    ReplicaClient& replica = fleet_.at(stream->replica);
    replica.Abort(stream->id, v1::FINISH_REASON_ABORT);
    UpdateBackendMetrics(replica);
  }
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
    Cancel(stream->handle);
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
  stream.sink->OnDelta(stream.choice, std::move(last));
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
  if (delta.has_error()) {
    const ApiError error = FromEngineError(delta.error());
    // What has begun was right once: whatever is wrong now may be right elsewhere, or later.
    const bool begun = stream->begun();
    const bool elsewhere = begun || error.code == absl::StatusCode::kUnavailable ||
                           error.code == absl::StatusCode::kResourceExhausted;
    if (elsewhere && Retry(stream, "refused", /*same_replica_too=*/false)) return;
    if (begun && Park(stream)) return;
    if (error.code == absl::StatusCode::kResourceExhausted) metrics_->Rejection("replica_full");
    Fail(stream, error);
    return;
  }
  if (delta.large_result_id() != 0) {
    FetchLarge(stream, std::move(delta));
    return;
  }
  const size_t tokens_before = stream->progress.num_tokens();
  if (const Status same = stream->progress.Deliver(&delta); !same.ok()) {
    Log().error("a replica went on differently {} {}",
                Kv("request_id", stream->request.request_id()),
                Kv("replica", fleet_.at(stream->replica).replica_id()));
    if (!delta.last()) fleet_.at(stream->replica).Abort(stream->id, v1::FINISH_REASON_ABORT);
    ApiError error;
    error.code = same.code();
    error.message = std::string(same.message());
    Fail(stream, error);
    return;
  }
  if (IsEmpty(delta)) return;
  if (!stream->begun()) stream->fingerprint = fleet_.at(stream->replica).model()->fingerprint;
  if (stream->progress.num_tokens() > tokens_before) OnProgress(stream.get());
  if (delta.last()) End(*stream);
  stream->sink->OnDelta(stream->choice, std::move(delta));
}

// It goes on, whatever happened to it before.
void Dispatcher::OnProgress(RequestStream* stream) {
  stream->attempts = 1;
  stream->tried.clear();
  stream->parked_ns = 0;
  if (stream->lost_ns == 0) return;
  metrics_->FailoverPause(static_cast<double>(RealClock::Now() - stream->lost_ns) / kNsPerSecond);
  stream->lost_ns = 0;
}

// What follows waits, so that prompt logprobs stay in order and before the first token.
void Dispatcher::FetchLarge(const std::shared_ptr<RequestStream>& stream, v1::Delta delta) {
  stream->fetching_large = true;
  const uint64_t large_id = delta.large_result_id();
  auto shared = std::make_shared<v1::Delta>(std::move(delta));
  fleet_.at(stream->replica)
      .FetchLargeResult(
          large_id, [this, stream, shared, id = stream->id](
                        const std::shared_ptr<std::vector<v1::TokenLogprobs>>& entries) {
            if (!IsLive(*stream) || stream->id != id) return;
            if (entries == nullptr) {
              fleet_.at(stream->replica).Abort(id, v1::FINISH_REASON_ABORT);
              OnStreamLost(stream);
              return;
            }
            stream->fetching_large = false;
            stream->progress.OnLargeResult(entries->size());
            shared->clear_large_result_id();
            for (v1::TokenLogprobs& entry : *entries)
              *shared->add_prompt_logprobs() = std::move(entry);
            Deliver(stream, std::move(*shared));
            while (IsLive(*stream) && !stream->fetching_large && !stream->waiting.empty()) {
              v1::Delta next = std::move(stream->waiting.front());
              stream->waiting.pop_front();
              Deliver(stream, std::move(next));
            }
          });
}

void Dispatcher::Fail(const std::shared_ptr<RequestStream>& stream, const ApiError& error) {
  End(*stream);
  Cancel(stream->handle);  // its siblings
  stream->sink->OnError(error);
}

}  // namespace flotilla
