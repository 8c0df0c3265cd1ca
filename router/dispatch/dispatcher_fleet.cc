// Dispatcher: which replicas there are, what they serve, and whether they can.
#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "router/dispatch/dispatcher.h"

namespace flotilla {
namespace {

// What replicas have cached of a prompt.
class PromptPages {
 public:
  explicit PromptPages(const RequestStream& stream) : stream_(stream) {}

  uint64_t CachedIn(const PageIndex& pages) {
    if (pages.size() == 0) return 0;
    return uint64_t{pages.page_size()} * pages.Match(Hashes(pages.page_size()));
  }

 private:
  const std::vector<uint64_t>& Hashes(uint32_t page_size) {
    const auto [of_size, added] = hashes_.try_emplace(page_size);
    if (added) {
      const auto& ids = stream_.request.token_ids().ids();
      of_size->second = PromptPageHashes(stream_.sink->tenant(),
                                         {ids.data(), static_cast<size_t>(ids.size())}, page_size);
    }
    return of_size->second;
  }

  const RequestStream& stream_;
  std::map<uint32_t, std::vector<uint64_t>> hashes_;  // by page size: mostly one
};

}  // namespace

void Dispatcher::StartDiscovery() {
  // Of the watch that is added next.
  const auto on_result = [this] {
    const size_t source = Fleet::kStaticSource + 1 + watches_.size();
    return [this, source](FoundReplicas addresses) {
      boost::asio::post(*io_, [this, source, addresses = std::move(addresses)]() mutable {
        OnDiscovered(source, std::move(addresses));
      });
    };
  };
  for (const std::string& text : options_.replica_dns) {
    const StatusOr<DnsName> name = ParseDnsName(text);
    CHECK_OK(name.status());  // main checked it
    watches_.push_back(std::make_unique<DnsWatch>(
        DnsWatch::Options{*name, options_.replica_dns_interval_ms, options_.resolve}, on_result()));
  }
  for (const ServiceWatch::Options& service : options_.replica_services)
    watches_.push_back(std::make_unique<ServiceWatch>(service, on_result()));
}

// A name that can't be resolved, or that has no address for a moment, takes no replica away: those
// that are gone are known by their connections. That a Service has no pods is said by an empty
// list.
void Dispatcher::OnDiscovered(size_t source, FoundReplicas addresses) {
  if (stopped_) return;
  const std::string error = addresses.ok() ? "" : std::string(addresses.status().message());
  if (std::exchange(discovery_errors_[source], error) != error && !error.empty())
    Log().warn("can't find replicas {}", Kv("error", error));
  if (!addresses.ok()) {
    metrics_->Discovery(absl::IsNotFound(addresses.status()) ? "nothing" : "failed");
    return;
  }
  metrics_->Discovery(addresses->empty() ? "nothing" : "found");
  const size_t left_out_before = fleet_.left_out();
  fleet_.Set(source, *addresses);
  metrics_->Replicas(fleet_.replicas().size(), fleet_.left_out());
  if (fleet_.left_out() > left_out_before)
    Log().warn("more replicas than --max-replicas {}", Kv("left_out", fleet_.left_out()));
}

void Dispatcher::OnReplicaRemoved(const ReplicaClient& replica) {
  const auto label = backend_labels_.find(replica.options().index);
  if (label != backend_labels_.end()) {
    ForgetLabel(label->second);
    backend_labels_.erase(label);
  }
  models_of_.erase(replica.options().index);
  if (replica.model() != nullptr) models_left_ns_[replica.model()->name] = RealClock::Now();
  RebuildModels();
  UpdateReady();
}

void Dispatcher::ForgetLabel(const std::string& label) {
  metrics_->ForgetBackend(label);
  const auto uses = label_uses_.find(label);
  if (--uses->second == 0) label_uses_.erase(uses);
}

// Later, since the replica is in the midst of it.
void Dispatcher::OnReplicaUnused() {
  if (std::exchange(drop_posted_, true)) return;
  boost::asio::post(*io_, [this] {
    drop_posted_ = false;
    if (stopped_) return;
    fleet_.DropUnused();
    metrics_->Replicas(fleet_.replicas().size(), fleet_.left_out());
  });
}

std::shared_ptr<const ModelTable> Dispatcher::models() const {
  std::lock_guard<std::mutex> lock(models_mutex_);
  return models_;
}

void Dispatcher::OnReplicaChanged(ReplicaClient* replica) {
  if (replica->ready()) ListModelOf(*replica);
  UpdateBackendMetrics(*replica);
  UpdateReady();
  if (!replica->ready()) return;
  PlaceParked();
  ServeQueueSoon();
}

void Dispatcher::UpdateReady() {
  const bool any = std::any_of(fleet_.replicas().begin(), fleet_.replicas().end(),
                               [](const auto& each) { return each.second->ready(); });
  ready_.store(any, std::memory_order_release);
  if (on_ready_changed_) on_ready_changed_();
}

void Dispatcher::ListModelOf(const ReplicaClient& replica) {
  std::shared_ptr<const ModelHandle>& listed = models_of_[replica.options().index];
  const bool has_changed = listed != nullptr && listed != replica.model();
  listed = replica.model();
  const std::shared_ptr<const ModelTable> table = models();
  const auto known = table->find(listed->name);
  if (has_changed || known == table->end() || known->second != listed) RebuildModels();
}

// What each replica serves, or served last; of two under one name a ready one's, of two of these
// the one that takes less.
void Dispatcher::RebuildModels() {
  auto table = std::make_shared<ModelTable>();
  std::set<std::string_view> least;  // that a ready replica serves without structural tags
  for (const auto& [index, replica] : fleet_.replicas()) {
    const std::shared_ptr<const ModelHandle>& model = replica->model();
    if (model == nullptr) continue;
    if (table->contains(model->name) && (!replica->ready() || least.contains(model->name)))
      continue;
    (*table)[model->name] = model;
    if (replica->ready() && !model->structural_tags) least.insert(model->name);
  }
  KeepModels(table.get());
  std::lock_guard<std::mutex> lock(models_mutex_);
  models_ = std::move(table);
}

void Dispatcher::KeepModels(ModelTable* table) {
  const int64_t now_ns = RealClock::Now();
  std::optional<int64_t> next_ns;
  const std::shared_ptr<const ModelTable> listed = models();
  for (auto left = models_left_ns_.begin(); left != models_left_ns_.end();) {
    const auto& [name, left_ns] = *left;
    const int64_t end_ns = left_ns + options_.model_memory_ms * kNsPerMs;
    const auto model = listed->find(name);
    if (table->contains(name) || model == listed->end() || now_ns >= end_ns) {
      left = models_left_ns_.erase(left);
      continue;
    }
    table->insert(*model);
    next_ns = std::min(end_ns, next_ns.value_or(end_ns));
    ++left;
  }
  models_timer_.cancel();
  if (!next_ns.has_value()) return;
  models_timer_.expires_after(std::chrono::nanoseconds(*next_ns - now_ns));
  models_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) RebuildModels();
  });
}

// A replica is known by its address until it has told its id, and also then if another one has the
// same id: pods of a StatefulSet need not differ.
void Dispatcher::UpdateBackendMetrics(const ReplicaClient& replica) {
  const uint32_t index = replica.options().index;
  std::string& label = backend_labels_[index];
  const auto uses = label_uses_.find(replica.replica_id());
  const bool shared =
      uses != label_uses_.end() && uses->second > (label == replica.replica_id() ? 1 : 0);
  const std::string& now = shared ? replica.options().address : replica.replica_id();
  if (label != now) {
    if (!label.empty()) ForgetLabel(label);
    label = now;
    ++label_uses_[label];
  }
  metrics_->Backend(label, replica.ready() && !replica.recovering(), replica.active(),
                    static_cast<int>(replica.health().circuit(RealClock::Now())));
  if (replica.options().cache_events)
    metrics_->CacheIndex(label, replica.pages().size(), replica.pages().left_out());
}

// --- Which of them should take a request -------------------------------------------------------

std::vector<ReplicaView> Dispatcher::Candidates(const RequestStream& stream, bool again,
                                                Among among, const Policy& policy) {
  const int64_t now_ns = RealClock::Now();
  EjectOutliers(now_ns);
  const std::span<const RosterRow> rows = RowsFor(stream);
  const auto able = [&](const RosterRow& row) {
    return Usable(row, stream) && (again || stream.IsNewTo(row.view.index, row.well_ns)) &&
           (among == Among::kAll || !row.recovering);
  };
  double warmest = 0;
  for (const RosterRow& row : rows) {
    if (able(row)) warmest = std::max(warmest, WarmthOf(row, now_ns));
  }
  // By how much they should: not, but for want of another one; later; now.
  std::array<std::vector<ReplicaView>, 3> candidates;
  candidates[2].reserve(rows.size());
  PromptPages prompt(stream);
  const auto draw = [this] { return std::uniform_real_distribution<>(0, 1)(random_); };
  bool any_healthy = false;
  for (const RosterRow& row : rows) {
    if (!able(row)) continue;
    // One that opened a moment ago is half open by now, or what it is called has changed.
    if (!row.closed) UpdateBackendMetrics(*row.replica);
    const bool healthy = Healthy(row, now_ns);
    const bool now = healthy && TakesItsTurn(WarmthOf(row, now_ns), warmest, draw);
    any_healthy = any_healthy || healthy;
    if (!stream.begun() && !MayTakeNew(row)) continue;
    ReplicaView& view = candidates[now ? 2 : healthy ? 1 : 0].emplace_back(row.view);
    if (policy.uses_cache()) view.cached_tokens = prompt.CachedIn(row.replica->pages());
    if (policy.uses_latency()) view.first_token_s = row.replica->first_token_s(now_ns);
  }
  if (!candidates[2].empty()) return std::move(candidates[2]);
  if (any_healthy) return std::move(candidates[1]);
  return std::move(candidates[0]);
}

// It gets requests while there is another one for them.
bool Dispatcher::Healthy(const RosterRow& row, int64_t now_ns) {
  return !row.recovering && (row.closed || row.replica->health().Allows(now_ns));
}

double Dispatcher::WarmthOf(const RosterRow& row, int64_t now_ns) const {
  return Warmth(now_ns - row.ready_ns, options_.slow_start_ms * kNsPerMs);
}

void Dispatcher::EjectOutliers(int64_t now_ns) {
  if (now_ns - outliers_checked_ns_ < options_.outlier_interval_ms * kNsPerMs) return;
  outliers_checked_ns_ = now_ns;
  std::map<std::string, std::vector<LatencySample>> by_model;
  for (const auto& [index, replica] : fleet_.replicas()) {
    const double shortest_s = replica->TakeShortest();
    if (replica->ready()) by_model[replica->model()->name].push_back({index, shortest_s});
  }
  for (const auto& [model, samples] : by_model) EjectOutliersOf(samples, now_ns);
}

void Dispatcher::EjectOutliersOf(const std::vector<LatencySample>& samples, int64_t now_ns) {
  for (const uint32_t index : FindOutliers(samples)) {
    ReplicaClient& replica = fleet_.at(index);
    if (replica.health().circuit(now_ns) != ReplicaHealth::Circuit::kClosed) continue;
    Log().warn("replica is much slower than the others: it gets nothing for a while {}",
               Kv("replica", replica.replica_id()));
    replica.Eject(now_ns);
    metrics_->Ejection();
    UpdateBackendMetrics(replica);
  }
}

}  // namespace flotilla
