#include "router/fleet/fleet.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace flotilla {

void Fleet::Set(size_t source, const std::vector<std::string>& addresses) {
  named_[source] = std::set<std::string>(addresses.begin(), addresses.end());
  for (const auto& [index, replica] : replicas_) {
    const std::string& address = replica->options().address;
    replica->SetRetired(std::none_of(named_.begin(), named_.end(), [&](const auto& each) {
      return each.second.contains(address);
    }));
  }
  DropRetired();
  std::set<std::string> missing = Missing();
  left_out_ = 0;
  // In the order of the list, so that a static fleet has the indices that its order says.
  for (const std::string& address : addresses) {
    if (missing.erase(address) > 0) Add(address);
  }
  for (const std::string& address : missing) Add(address);  // there was no room for them before
}

void Fleet::DropUnused() {
  if (!DropRetired()) return;
  left_out_ = 0;
  for (const std::string& address : Missing()) Add(address);
}

std::set<std::string> Fleet::Missing() const {
  std::set<std::string> missing;
  for (const auto& [number, names] : named_) missing.insert(names.begin(), names.end());
  for (const auto& [index, replica] : replicas_) missing.erase(replica->options().address);
  return missing;
}

void Fleet::Add(const std::string& address) {
  if (replicas_.size() >= options_.max_replicas) {
    ++left_out_;
    return;
  }
  ReplicaOptions replica;
  replica.address = address;
  replica.index = next_index_++;
  replica.router_id = options_.router_id;
  replica.tls = options_.tls;
  replica.backoff_min_ms = options_.backoff_min_ms;
  replica.backoff_max_ms = options_.backoff_max_ms;
  replica.find_keyed_ms = options_.find_keyed_ms;
  replica.max_reattach_ms = options_.max_reattach_ms;
  replica.cache_events = options_.cache_events;
  replica.max_index_pages = options_.max_index_pages;
  auto client = std::make_shared<ReplicaClient>(
      std::move(replica), ReplicaClient::Deps{deps_.io, deps_.tokenizers, &models_, deps_.calls,
                                              &roster_, deps_.listener, options_.model_sampling});
  roster_.Add(client.get());
  replicas_.emplace(client->options().index, client);
  deps_.listener->OnReplicaChanged(client.get());
  client->Start();
}

bool Fleet::DropRetired() {
  const size_t before = replicas_.size();
  for (auto it = replicas_.begin(); it != replicas_.end();) {
    const std::shared_ptr<ReplicaClient> replica = it->second;
    if (!replica->retired() || replica->in_use()) {
      ++it;
      continue;
    }
    Log().info("replica dropped {} {}", Kv("replica", replica->replica_id()),
               Kv("address", replica->options().address));
    it = replicas_.erase(it);
    replica->Stop();
    roster_.Remove(replica.get());
    deps_.listener->OnReplicaRemoved(*replica);
  }
  return replicas_.size() < before;
}

void Fleet::Stop() {
  for (const auto& [index, replica] : replicas_) {
    replica->Stop();
    roster_.Remove(replica.get());
  }
}

ReplicaClient* Fleet::Find(uint32_t index) const {
  const auto found = replicas_.find(index);
  return found == replicas_.end() ? nullptr : found->second.get();
}

}  // namespace flotilla
