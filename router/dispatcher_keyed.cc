// Dispatcher: requests with an idempotency key. Each has two homes, the replicas that rendezvous
// hashing of its key puts first, the same in every router. It runs at the first of them that can
// take it; before, both are asked whether they have it, since the first may have been away when it
// ran, or be new.
#include <utility>

#include "common/base/xxh64.h"
#include "router/dispatcher.h"

namespace flotilla {
namespace {

constexpr size_t kNumHomes = 2;

}  // namespace

// Choice 0's key stands for all, so that they stay together.
std::vector<ReplicaClient*> Dispatcher::HomesOf(const RequestStream& stream) const {
  std::vector<ReplicaView> usable;
  for (const auto& [index, replica] : fleet_.replicas()) {
    if (Usable(*replica, stream)) usable.push_back(replica->view());
  }
  const uint64_t key = Xxh64(stream.keyed->key());
  std::vector<ReplicaClient*> homes;
  while (homes.size() < kNumHomes && !usable.empty()) {
    const auto next = usable.begin() + static_cast<std::ptrdiff_t>(PickByRendezvous(key, usable));
    homes.push_back(fleet_.Find(next->index));
    usable.erase(next);
  }
  return homes;
}

std::variant<uint64_t, ApiError> Dispatcher::Locate(RequestGroup group) {
  const RequestStream& first = *group.streams[0];
  const std::vector<ReplicaClient*> homes = HomesOf(first);
  if (homes.empty()) return Place(std::move(group));
  struct Search {
    size_t num_left = 0;
    std::optional<uint32_t> home;
  };
  auto search = std::make_shared<Search>();
  search->num_left = homes.size();
  for (ReplicaClient* home : homes) {
    home->FindKeyed(first.keyed->key(), [this, search, handle = first.handle,
                                         index = home->options().index](bool found) {
      if (found) search->home = index;
      if (--search->num_left == 0) OnLocated(handle, search->home);
    });
  }
  for (const auto& stream : group.streams) stream->parked = true;
  return Enter(std::move(group))->streams[0]->handle;
}

void Dispatcher::OnLocated(uint64_t handle, std::optional<uint32_t> home) {
  const auto found = groups_.find(handle);
  if (found == groups_.end()) return;  // the client has left
  ReplicaClient* replica = home.has_value() ? fleet_.Find(*home) : nullptr;
  if (replica != nullptr && Usable(*replica, *found->second.streams[0])) {
    Dispatch(&found->second, replica);
    return;
  }
  RequestGroup group = TakeOut(found);
  const std::shared_ptr<GenerateSink> sink = group.streams[0]->sink;
  const auto placed = Place(std::move(group));
  if (const auto* error = std::get_if<ApiError>(&placed)) sink->OnError(*error);
}

}  // namespace flotilla
