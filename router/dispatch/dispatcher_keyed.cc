// Dispatcher: requests with an idempotency key. Each has two homes, the replicas that rendezvous
// hashing of its key puts first, the same in every router. It runs at the first of them that can
// take it, or waits for them. Before, and after a wait, kNumAsked replicas are asked whether they
// have it, also those that take no new requests: the first may have been away when it ran, or be
// new, and it may have gone on elsewhere since. While they are asked after a wait it keeps its
// place in the admission queue, and room is held for it. When its client leaves it goes on as
// before, with nobody to tell.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/xxh64.h"
#include "router/dispatch/dispatcher.h"

namespace flotilla {
namespace {

constexpr size_t kNumHomes = 2;
constexpr size_t kNumAsked = 4;  // two replicas more may be lost, or come, after it began

// Where pieces go that nobody waits for. What is computed is still the caller's.
class NobodysSink final : public GenerateSink {
 public:
  NobodysSink(Caller caller, std::string traceparent)
      : caller_(std::move(caller)), traceparent_(std::move(traceparent)) {}
  void OnDelta(size_t, v1::Delta&&) override {}
  void OnError(const ApiError&) override {}
  const Caller& caller() const override { return caller_; }
  const std::string& traceparent() const override { return traceparent_; }

 private:
  const Caller caller_;
  const std::string traceparent_;
};

}  // namespace

size_t Dispatcher::active() const {
  return static_cast<size_t>(std::count_if(groups_.begin(), groups_.end(),
                                           [](const auto& each) { return !each.second.detached; }));
}

bool Dispatcher::Detach(RequestGroup* group) {
  const auto is_keyed = [](const auto& stream) {
    return stream != nullptr && stream->keyed.has_value() && stream->attempts > 0;
  };
  if (!std::any_of(group->streams.begin(), group->streams.end(), is_keyed)) return false;
  group->detached = true;
  for (const auto& stream : group->streams) {
    if (stream == nullptr) continue;
    const GenerateSink& sink = *stream->sink;
    stream->sink = std::make_shared<NobodysSink>(sink.caller(), sink.traceparent());
  }
  return true;
}

std::vector<const RosterRow*> Dispatcher::HomesOf(const RequestStream& stream) const {
  return RankedBy(stream, &Dispatcher::Usable, kNumHomes);
}

std::vector<const RosterRow*> Dispatcher::HoldersOf(const RequestStream& stream) const {
  return RankedBy(stream, &Dispatcher::CanTell, kNumAsked);
}

// Choice 0's key stands for all, so that they stay together.
std::vector<const RosterRow*> Dispatcher::RankedBy(const RequestStream& stream, MayHave* may_have,
                                                   size_t most) const {
  std::vector<const RosterRow*> rows;
  std::vector<ReplicaView> left;
  for (const RosterRow& row : RowsFor(stream)) {
    if (!may_have(row, stream)) continue;
    rows.push_back(&row);
    left.push_back(row.view);
  }
  const uint64_t key = Xxh64(stream.keyed->key());
  std::vector<const RosterRow*> ranked;
  while (ranked.size() < most && !left.empty()) {
    const auto next = static_cast<std::ptrdiff_t>(PickByRendezvous(key, left));
    ranked.push_back(rows[static_cast<size_t>(next)]);
    rows.erase(rows.begin() + next);
    left.erase(left.begin() + next);
  }
  return ranked;
}

ReplicaClient* Dispatcher::PickHome(const RequestStream& stream, bool again, Among among) const {
  const int64_t now_ns = RealClock::Now();
  ReplicaClient* unhealthy = nullptr;
  for (const RosterRow* home : HomesOf(stream)) {
    if (!again && !stream.IsNewTo(home->view.index, home->well_ns)) continue;
    if (among == Among::kWell && home->recovering) continue;
    if (!stream.begun() && !MayTakeNew(*home)) continue;
    if (Healthy(*home, now_ns)) return home->replica;
    if (unhealthy == nullptr) unhealthy = home->replica;
  }
  return unhealthy;
}

std::variant<uint64_t, ApiError> Dispatcher::Locate(RequestGroup group) {
  if (HoldersOf(*group.streams[0]).empty()) return Place(std::move(group));
  for (const auto& stream : group.streams) stream->parked = true;
  RequestGroup* const entered = Enter(std::move(group));
  Search(entered);
  return entered->streams[0]->handle;
}

void Dispatcher::Search(RequestGroup* group) {
  struct Answers {
    size_t num_left = 0;
    std::optional<uint32_t> home;
  };
  const RequestStream& first = *group->streams[0];
  std::vector<ReplicaClient*> holders;
  for (const RosterRow* row : HoldersOf(first)) holders.push_back(row->replica);
  auto answers = std::make_shared<Answers>();
  answers->num_left = holders.size();
  group->located = false;
  group->sent_meanwhile.reset();
  for (ReplicaClient* home : holders) {
    home->FindKeyed(first.keyed->key(), [this, answers, handle = first.handle,
                                         index = home->options().index](bool found) {
      if (found) answers->home = index;
      if (--answers->num_left == 0) OnLocated(handle, answers->home);
    });
  }
}

void Dispatcher::ForgetKey(const Groups::value_type& entry) {
  if (entry.second.key.empty()) return;
  auto [at, end] = handles_by_key_.equal_range(entry.second.key);
  at = std::find_if(at, end, [&](const auto& keyed) { return keyed.second == entry.first; });
  CHECK(at != end);
  handles_by_key_.erase(at);
}

void Dispatcher::TellSearches(const RequestStream& sent) {
  const auto [begin, end] = handles_by_key_.equal_range(sent.keyed->key());
  for (auto at = begin; at != end; ++at) {
    RequestGroup& group = groups_.at(at->second);
    if (!group.located) group.sent_meanwhile = sent.replica;
  }
}

std::optional<uint32_t> Dispatcher::SentTo(const std::string& key) const {
  const auto [begin, end] = handles_by_key_.equal_range(key);
  for (auto at = begin; at != end; ++at) {
    const auto& first = groups_.at(at->second).streams[0];
    if (first != nullptr && first->attempts > 0 && !first->parked) return first->replica;
  }
  return std::nullopt;
}

void Dispatcher::OnLocated(uint64_t handle, std::optional<uint32_t> home) {
  const auto found = groups_.find(handle);
  if (found == groups_.end()) return;  // the client has left
  RequestGroup& group = found->second;
  group.located = true;
  const bool queued = FreeSlots(&group);
  const RequestStream& first = *group.streams[0];
  const bool parked = first.parked_ns != 0;
  const auto forget_if_away = [&] {  // it has what it will not tell
    const ReplicaClient* at = home.has_value() ? fleet_.Find(*home) : nullptr;
    if (at != nullptr && at->away()) home.reset();
  };
  forget_if_away();
  if (!home.has_value()) home = SentTo(first.keyed->key());  // its homes may not have it yet
  if (!home.has_value()) home = group.sent_meanwhile;        // it may have come, and be over
  forget_if_away();
  const RosterRow* row = home.has_value() ? fleet_.roster().Find(*first.model, *home) : nullptr;
  ReplicaClient* replica = row != nullptr && CanTell(*row, first) ? row->replica : nullptr;
  if (replica == nullptr && (queued || parked))
    replica = PickHome(first, /*again=*/false, Among::kAll);
  if (replica != nullptr) {
    if (queued) CountAdmitted(handle);
    Dispatch(&group, replica);
    ServeQueueSoon();  // it may run where no room was held for it
  } else if (queued) {
    admission_.Unhold(handle);
  } else if (parked) {
    ParkAgain(group);
  } else {
    const std::shared_ptr<GenerateSink> sink = first.sink;
    const auto placed = Place(TakeOut(found));
    if (const auto* error = std::get_if<ApiError>(&placed)) sink->OnError(*error);
  }
}

}  // namespace flotilla
