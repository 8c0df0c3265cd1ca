// The queue against a naive model that looks at every request, and each rule of its header alone.
#include "router/admission/admission_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "common/base/clock.h"

namespace flotilla {
namespace {

using Refusal = AdmissionQueue::Refusal;

constexpr int64_t kLater = int64_t{3600} * kNsPerSecond;

AdmissionRequest Request(uint64_t handle, int32_t priority = 0, std::string tenant = "") {
  return {handle, "model", std::move(tenant), priority, kLater};
}

// What leaves the lane, one after the other.
std::vector<uint64_t> TakeAll(AdmissionQueue* queue, const std::string& lane = "model") {
  std::vector<uint64_t> order;
  while (queue->Waits(lane)) {
    order.push_back(queue->Next(lane));
    queue->Take(order.back(), 0);
  }
  return order;
}

TEST(AdmissionQueueTest, NoneMayWaitByDefault) {
  AdmissionQueue queue({});
  EXPECT_FALSE(queue.enabled());
  EXPECT_EQ(queue.Push(Request(1), 0), Refusal::kFull);
  EXPECT_EQ(queue.size(), 0u);
  EXPECT_TRUE(queue.lanes().empty());
}

TEST(AdmissionQueueTest, PriorityThenArrival) {
  AdmissionQueue queue({.max_requests = 10});
  for (const auto& [handle, priority] : {std::pair{1, -5}, {2, 0}, {3, 7}, {4, 0}, {5, 7}})
    ASSERT_FALSE(queue.Push(Request(handle, priority), 0).has_value());
  EXPECT_EQ(TakeAll(&queue), (std::vector<uint64_t>{3, 5, 2, 4, 1}));
}

TEST(AdmissionQueueTest, TenantsTakeTurnsHoweverManyOneSends) {
  AdmissionQueue queue({.max_requests = 20});
  for (uint64_t handle = 1; handle <= 6; ++handle) queue.Push(Request(handle, 0, "many"), 0);
  queue.Push(Request(7, 0, "few"), 0);
  queue.Push(Request(8, 0, "few"), 0);
  EXPECT_EQ(TakeAll(&queue), (std::vector<uint64_t>{1, 7, 2, 8, 3, 4, 5, 6}));
}

TEST(AdmissionQueueTest, WhoAlwaysHasOneHereIsNotAlwaysFirst) {
  AdmissionQueue queue({.max_requests = 20});
  for (uint64_t handle = 1; handle <= 5; ++handle) queue.Push(Request(handle, 0, "many"), 0);
  std::vector<std::string> served;
  for (uint64_t handle = 6; handle < 12; ++handle) {
    if (handle % 2 == 0) queue.Push(Request(handle, 0, "again"), 0);
    const uint64_t next = queue.Next("model");
    served.push_back(next < 6 ? "many" : "again");
    queue.Take(next, 0);
  }
  EXPECT_EQ(std::count(served.begin(), served.end(), "many"), 3);
}

TEST(AdmissionQueueTest, LanesDoNotHoldUpEachOther) {
  AdmissionQueue queue({.max_requests = 10});
  AdmissionRequest other = Request(2, -1);
  other.lane = "other";
  queue.Push(Request(1), 0);
  queue.Push(other, 0);
  EXPECT_EQ(queue.lanes(), (std::vector<std::string>{"model", "other"}));
  EXPECT_EQ(TakeAll(&queue, "other"), (std::vector<uint64_t>{2}));
  EXPECT_EQ(queue.lanes(), (std::vector<std::string>{"model"}));
}

TEST(AdmissionQueueTest, LowPrioritiesFillTheirShareOnly) {
  AdmissionQueue queue({.max_requests = 5, .low_priority_share = 0.4});
  EXPECT_FALSE(queue.Push(Request(1, -1), 0).has_value());
  EXPECT_FALSE(queue.Push(Request(2, -1), 0).has_value());
  EXPECT_EQ(queue.Push(Request(3, -1), 0), Refusal::kFull);
  for (uint64_t handle = 4; handle <= 6; ++handle)
    EXPECT_FALSE(queue.Push(Request(handle), 0).has_value());
  EXPECT_EQ(queue.Push(Request(7, 100), 0), Refusal::kFull);
  queue.Remove(1);
  EXPECT_FALSE(queue.Push(Request(8, -1), 0).has_value());
}

TEST(AdmissionQueueTest, ATenantsBoundIsItsOwn) {
  AdmissionQueue queue({.max_requests = 10, .max_per_tenant = 2});
  for (uint64_t handle : {1, 2}) EXPECT_FALSE(queue.Push(Request(handle, 0, "a"), 0).has_value());
  EXPECT_EQ(queue.Push(Request(3, 0, "a"), 0), Refusal::kTenantFull);
  EXPECT_FALSE(queue.Push(Request(4, 0, "b"), 0).has_value());
  queue.Take(queue.Next("model"), 0);
  EXPECT_FALSE(queue.Push(Request(5, 0, "a"), 0).has_value());
}

TEST(AdmissionQueueTest, TheLowestIsServedBesideAnEndlessStreamOfHigher) {
  AdmissionQueue queue({.max_requests = 10});
  queue.Push(Request(1, -100), 0);
  uint64_t taken = 0;
  for (uint64_t handle = 2; queue.size() > 0 && taken != 1 && handle < 1000; ++handle) {
    queue.Push(Request(handle, 100), 0);
    taken = queue.Next("model");
    queue.Take(taken, 0);
    if (taken == 1) {
      EXPECT_EQ(handle, 1 + AdmissionQueue::kOldestEvery);
    }
  }
  EXPECT_EQ(taken, 1u);
}

TEST(AdmissionQueueTest, WhoIsHeldKeepsItsPlaceAndItsTime) {
  AdmissionQueue queue({.max_requests = 2});
  AdmissionRequest first = Request(1);
  first.expires_ns = 50;
  queue.Push(first, 0);
  queue.Push(Request(2), 10);
  queue.Hold(1);
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.Push(Request(3), 20), Refusal::kFull);
  EXPECT_EQ(queue.Next("model"), 2u);
  EXPECT_TRUE(queue.TakeExpired(60).empty());
  queue.Hold(2);
  EXPECT_FALSE(queue.Waits("model"));
  EXPECT_TRUE(queue.lanes().empty());
  queue.Unhold(1);
  EXPECT_EQ(queue.Next("model"), 1u);
  EXPECT_EQ(queue.next_expiry_ns(), 50);
  EXPECT_EQ(queue.Take(2, 70), 60) << "since it came";
  EXPECT_EQ(queue.TakeExpired(70), (std::vector<uint64_t>{1}));
  EXPECT_EQ(queue.size(), 0u);
}

TEST(AdmissionQueueTest, TenantsTakeTurnsInBeingHeld) {
  AdmissionQueue queue({.max_requests = 20});
  for (uint64_t handle = 1; handle <= 3; ++handle) queue.Push(Request(handle, 0, "many"), 0);
  queue.Push(Request(4, 0, "few"), 0);
  queue.Hold(queue.Next("model"));
  EXPECT_EQ(queue.Next("model"), 4u);
  queue.Unhold(1);
  EXPECT_EQ(TakeAll(&queue), (std::vector<uint64_t>{1, 4, 2, 3})) << "its turn was given back";
}

TEST(AdmissionQueueTest, OnlyWhatIsTakenCountsForRetryAfter) {
  AdmissionQueue queue({.max_requests = 4});
  for (uint64_t handle = 1; handle <= 4; ++handle) queue.Push(Request(handle), 0);
  for (int i = 0; i < 50; ++i) {
    queue.Hold(queue.Next("model"));
    queue.Unhold(1);
  }
  queue.Hold(1);
  queue.Take(1, 5 * kNsPerSecond);
  EXPECT_EQ(queue.RetryAfterMs(Refusal::kFull, "", 5 * kNsPerSecond), 15'000);
}

TEST(AdmissionQueueTest, TakesOutWhoseTimeIsOver) {
  AdmissionQueue queue({.max_requests = 10});
  EXPECT_EQ(queue.next_expiry_ns(), INT64_MAX);
  for (const auto& [handle, expires] : {std::pair{1, 50}, {2, 10}, {3, 30}}) {
    AdmissionRequest request = Request(handle);
    request.expires_ns = expires;
    queue.Push(request, 0);
  }
  EXPECT_EQ(queue.next_expiry_ns(), 10);
  EXPECT_TRUE(queue.TakeExpired(9).empty());
  EXPECT_EQ(queue.TakeExpired(30), (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(queue.next_expiry_ns(), 50);
  EXPECT_EQ(TakeAll(&queue), (std::vector<uint64_t>{1}));
}

// --- Retry-After -------------------------------------------------------------------------------

TEST(DrainRateTest, IsTheMeanOfTheLastIntervals) {
  DrainRate rate;
  rate.OnBusy(0);
  int64_t now_ns = 0;
  for (int i = 0; i < 10; ++i) rate.OnTake(now_ns += 2 * kNsPerSecond);
  EXPECT_EQ(rate.MsFor(5, now_ns), 10'000);
  for (size_t i = 0; i < DrainRate::kIntervals; ++i) rate.OnTake(now_ns += kNsPerSecond);
  EXPECT_EQ(rate.MsFor(5, now_ns), 5000) << "the slow ones are long ago";
  EXPECT_EQ(rate.MsFor(5, now_ns + 3 * kNsPerSecond), 15'000) << "nobody has left for 3 s";
}

TEST(DrainRateTest, StaysWithinItsBounds) {
  DrainRate rate;
  rate.OnBusy(0);
  EXPECT_EQ(rate.MsFor(100, 0), DrainRate::kMinMs) << "nothing is known";
  rate.OnTake(kNsPerMs);
  EXPECT_EQ(rate.MsFor(10, kNsPerMs), DrainRate::kMinMs);
  EXPECT_EQ(rate.MsFor(1'000'000, kNsPerMs), DrainRate::kMaxMs);
}

TEST(DrainRateTest, TimeWithoutAnybodyWaitingDoesNotCount) {
  AdmissionQueue queue({.max_requests = 4, .max_per_tenant = 1});
  int64_t now_ns = 0;
  uint64_t handle = 0;
  for (int i = 0; i < 4; ++i) {
    queue.Push(Request(++handle), now_ns);
    EXPECT_EQ(queue.Take(handle, now_ns + 3 * kNsPerSecond), 3 * kNsPerSecond);
    now_ns += 100 * kNsPerSecond;
  }
  for (const char* tenant : {"a", "b", "c"}) queue.Push(Request(++handle, 0, tenant), now_ns);
  EXPECT_EQ(queue.RetryAfterMs(Refusal::kFull, "a", now_ns), 9000);
  EXPECT_EQ(queue.RetryAfterMs(Refusal::kTenantFull, "a", now_ns), 9000) << "one, in turn";
  queue.Remove(handle);
  EXPECT_EQ(queue.RetryAfterMs(Refusal::kTenantFull, "a", now_ns), 6000);
}

// --- The model ---------------------------------------------------------------------------------

// Says the same with a list of requests and a look at each.
class Model {
 public:
  explicit Model(AdmissionLimits limits) : limits_(limits) {}

  std::optional<Refusal> Push(const AdmissionRequest& request) {
    if (waiting.size() >= limits_.max_requests) return Refusal::kFull;
    const auto low = Count([](const AdmissionRequest& r) { return r.priority < 0; });
    if (request.priority < 0 &&
        low >= static_cast<size_t>(limits_.low_priority_share * limits_.max_requests))
      return Refusal::kFull;
    if (Count([&](const AdmissionRequest& r) { return r.tenant == request.tenant; }) >=
        limits_.max_per_tenant)
      return Refusal::kTenantFull;
    waiting.push_back(request);
    return std::nullopt;
  }
  uint64_t Next(const std::string& lane) {
    std::vector<AdmissionRequest> of_lane;
    for (const AdmissionRequest& request : waiting) {
      if (request.lane == lane && !held.contains(request.handle)) of_lane.push_back(request);
    }
    if (taken_[lane] % 10 == 9) return of_lane.front().handle;
    return std::min_element(of_lane.begin(), of_lane.end(),
                            [this](const AdmissionRequest& a, const AdmissionRequest& b) {
                              return std::tuple(-a.priority, turns_[a.tenant], a.handle) <
                                     std::tuple(-b.priority, turns_[b.tenant], b.handle);
                            })
        ->handle;
  }
  void Hold(uint64_t handle) {
    const auto found = Find(handle);
    uint64_t& turn = turns_[found->tenant];
    held[handle] = {turn, ++turn_};
    turn = turn_;
    ++taken_[found->lane];
  }
  void Unhold(uint64_t handle) {
    const auto found = Find(handle);
    const auto [before, own] = held.at(handle);
    if (turns_[found->tenant] == own) turns_[found->tenant] = before;
    --taken_[found->lane];
    held.erase(handle);
  }
  void Take(uint64_t handle) {
    if (!held.contains(handle)) Hold(handle);
    Remove(handle);
  }
  void Remove(uint64_t handle) {
    const auto found = Find(handle);
    if (found == waiting.end()) return;
    held.erase(handle);
    const std::string lane = found->lane;
    waiting.erase(found);
    if (Count([&](const AdmissionRequest& r) { return r.lane == lane; }) == 0) taken_.erase(lane);
    if (waiting.empty()) turns_.clear();
  }
  std::vector<AdmissionRequest> waiting;                   // by arrival
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> held;  // of these; their tenants' turns

 private:
  template <typename Predicate>
  size_t Count(Predicate predicate) const {
    return static_cast<size_t>(std::count_if(waiting.begin(), waiting.end(), predicate));
  }
  std::vector<AdmissionRequest>::iterator Find(uint64_t handle) {
    return std::find_if(waiting.begin(), waiting.end(),
                        [&](const AdmissionRequest& r) { return r.handle == handle; });
  }
  const AdmissionLimits limits_;
  std::map<std::string, uint64_t> turns_;
  std::map<std::string, uint64_t> taken_;
  uint64_t turn_ = 0;
};

class Walk {
 public:
  explicit Walk(uint64_t seed) : random_(seed) {}
  size_t Draw(size_t below) { return random_() % below; }

  void Step() {
    now_ns_ += static_cast<int64_t>(Draw(5));
    switch (Draw(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        Push();
        break;
      case 4:
        Remove();
        break;
      case 5:
        Expire();
        break;
      case 6:
      case 7:
        Hold();
        break;
      case 8:
        EndHold(/*take=*/false);
        break;
      case 9:
        EndHold(/*take=*/true);
        break;
      default:
        Take();
        break;
    }
    EXPECT_EQ(queue_.size(), model_.waiting.size());
    EXPECT_LE(queue_.size(), kLimits.max_requests);
  }
  // Each that came has left once, in one way.
  void Finish() {
    while (!model_.held.empty()) EndHold(/*take=*/true);
    while (!model_.waiting.empty()) Take();
    EXPECT_EQ(queue_.size(), 0u);
    EXPECT_EQ(left_, pushed_);
    EXPECT_GT(taken_, 100u);
    EXPECT_GT(refused_full_, 0u);
    EXPECT_GT(refused_tenant_, 0u);
  }

 private:
  static constexpr AdmissionLimits kLimits = {
      .max_requests = 12, .max_per_tenant = 6, .low_priority_share = 0.5};

  void Push() {
    const AdmissionRequest request = {
        ++handle_, Draw(4) == 0 ? "b" : "a", std::string(1, static_cast<char>('x' + Draw(3))),
        static_cast<int32_t>(Draw(3)) - 1, now_ns_ + static_cast<int64_t>(Draw(200))};
    const auto refusal = model_.Push(request);
    EXPECT_EQ(queue_.Push(request, now_ns_), refusal);
    if (!refusal.has_value()) ++pushed_;
    if (refusal == Refusal::kFull) ++refused_full_;
    if (refusal == Refusal::kTenantFull) ++refused_tenant_;
  }
  void Take() {
    const std::vector<std::string> lanes = queue_.lanes();
    if (lanes.empty()) return;
    const std::string& lane = lanes[Draw(lanes.size())];
    const uint64_t next = model_.Next(lane);
    EXPECT_EQ(queue_.Next(lane), next);
    queue_.Take(next, now_ns_);
    model_.Take(next);
    ++left_, ++taken_;
  }
  void Hold() {
    const std::vector<std::string> lanes = queue_.lanes();
    if (lanes.empty()) return;
    const std::string& lane = lanes[Draw(lanes.size())];
    const uint64_t next = model_.Next(lane);
    EXPECT_EQ(queue_.Next(lane), next);
    queue_.Hold(next);
    model_.Hold(next);
  }
  void EndHold(bool take) {
    if (model_.held.empty()) return;
    const uint64_t handle =
        std::next(model_.held.begin(), static_cast<std::ptrdiff_t>(Draw(model_.held.size())))
            ->first;
    if (take) {
      queue_.Take(handle, now_ns_);
      model_.Take(handle);
      ++left_, ++taken_;
    } else {
      queue_.Unhold(handle);
      model_.Unhold(handle);
    }
  }
  void Remove() {
    if (model_.waiting.empty()) return;
    const uint64_t handle = model_.waiting[Draw(model_.waiting.size())].handle;
    queue_.Remove(handle);
    queue_.Remove(handle);
    model_.Remove(handle);
    ++left_;
  }
  void Expire() {
    std::vector<std::pair<int64_t, uint64_t>> over;
    for (const AdmissionRequest& request : model_.waiting) {
      if (request.expires_ns <= now_ns_ && !model_.held.contains(request.handle))
        over.emplace_back(request.expires_ns, request.handle);
    }
    std::sort(over.begin(), over.end());
    std::vector<uint64_t> handles;
    for (const auto& [expires_ns, handle] : over) handles.push_back(handle);
    EXPECT_EQ(queue_.TakeExpired(now_ns_), handles);
    for (const uint64_t handle : handles) model_.Remove(handle);
    left_ += handles.size();
  }

  std::mt19937_64 random_;
  AdmissionQueue queue_{kLimits};
  Model model_{kLimits};
  int64_t now_ns_ = 0;
  uint64_t handle_ = 0;
  size_t pushed_ = 0, left_ = 0, taken_ = 0, refused_full_ = 0, refused_tenant_ = 0;
};

TEST(AdmissionQueueTest, DoesWhatTheModelDoes) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Walk walk(seed);
    for (int i = 0; i < 2000 && !testing::Test::HasFailure(); ++i) walk.Step();
    walk.Finish();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

// However the others are: with `ahead` older ones in its lane it is among the next
// kOldestEvery * (ahead + 1) that leave.
TEST(AdmissionQueueTest, NoneWaitsForEver) {
  std::mt19937_64 random(7);
  AdmissionQueue queue({.max_requests = 30, .low_priority_share = 1});
  std::map<uint64_t, uint64_t> latest;  // by handle, the number of the last turn that it may have
  uint64_t handle = 0;
  for (uint64_t turn = 1; turn <= 20'000; ++turn) {
    while (queue.size() < 30) {
      const auto priority = static_cast<int32_t>(random() % 201) - 100;
      latest[++handle] = turn + AdmissionQueue::kOldestEvery * (queue.size() + 1);
      queue.Push(Request(handle, priority, std::to_string(random() % 4)), 0);
    }
    const uint64_t next = queue.Next("model");
    ASSERT_LE(turn, latest.at(next)) << next;
    latest.erase(next);
    queue.Take(next, 0);
    ASSERT_GE(latest.empty() ? UINT64_MAX : latest.begin()->second, turn);
  }
}

}  // namespace
}  // namespace flotilla
