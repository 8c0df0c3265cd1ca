#include "router/simulation/fleet_simulator.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <queue>

#include "router/policy/latency_ewma.h"
#include "router/policy/policy.h"

namespace flotilla {
namespace {

constexpr double kViewRefreshS = 0.1;  // of latencies that fade

int64_t Ns(double seconds) { return static_cast<int64_t>(seconds * kNsPerSecond); }

// Most over mean.
double Balance(const std::vector<double>& values) {
  double total = 0, most = 0;
  for (const double value : values) {
    total += value;
    most = std::max(most, value);
  }
  return total == 0 ? 0 : most * static_cast<double>(values.size()) / total;
}

class FleetSimulation {
 public:
  FleetSimulation(const FleetSimOptions& options, std::vector<std::unique_ptr<Policy>> policies)
      : options_(options), policies_(std::move(policies)), workload_(options.workload) {
    const auto stragglers = static_cast<uint32_t>(
        std::lround(options.straggler_share * static_cast<double>(options.replicas)));
    for (uint32_t i = 0; i < options.replicas; ++i)
      replicas_.emplace_back(options.cost, i < stragglers ? options.straggler_slowdown : 1);
    up_.assign(options.replicas, true);
    lives_.assign(options.replicas, 0);
    requests_.assign(options.replicas, 0);
    routers_.resize(options.routers);
    for (Router& router : routers_) {
      router.views.resize(options.replicas);
      router.latencies.resize(options.replicas);
      for (uint32_t i = 0; i < options.replicas; ++i) {
        router.views[i].index = i;
        router.views[i].identity = (i + 1) * 0x9E3779B97F4A7C15ull;
      }
    }
  }

  FleetReport Run() {
    ScheduleConversation();
    ScheduleFailures();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_s_ = event.time_s;
      Handle(event);
    }
    std::vector<double> work, requests;
    for (uint32_t i = 0; i < options_.replicas; ++i) {
      work.push_back(static_cast<double>(replicas_[i].work_tokens()));
      requests.push_back(requests_[i]);
    }
    report_.work_balance = Balance(work);
    report_.request_balance = Balance(requests);
    std::sort(report_.ttft_s.begin(), report_.ttft_s.end());
    std::sort(report_.e2e_s.begin(), report_.e2e_s.end());
    return std::move(report_);
  }

 private:
  enum class Kind { kConversation, kTurn, kStepEnd, kDeath, kReturn };
  struct Event {
    double time_s = 0;
    uint64_t number = 0;  // earlier events of the same time first
    Kind kind = Kind::kConversation;
    uint32_t replica = 0;
    uint64_t life = 0;  // of the replica whose step it was
    Turn turn = {};
    bool operator>(const Event& other) const {
      return time_s != other.time_s ? time_s > other.time_s : number > other.number;
    }
  };
  // What a router knows.
  struct Router {
    std::vector<ReplicaView> views;
    std::vector<LatencyEwma> latencies;
  };

  void Schedule(double in_s, Event event) {
    event.time_s = now_s_ + in_s;
    event.number = next_event_++;
    events_.push(event);
  }
  void ScheduleConversation() {
    const double gap_s = workload_.NextGap();
    if (gap_s >= 0) Schedule(gap_s, {.kind = Kind::kConversation});
  }
  void ScheduleFailures() {
    const double span_s =
        static_cast<double>(options_.workload.num_requests) / options_.workload.rate;
    for (uint32_t i = 0; i < options_.failures; ++i)
      Schedule(span_s * (i + 1) / (options_.failures + 1),
               {.kind = Kind::kDeath, .replica = i * 7919 % options_.replicas});
  }

  void Handle(const Event& event) {
    switch (event.kind) {
      case Kind::kConversation:
        Submit(workload_.Begin());
        ScheduleConversation();
        break;
      case Kind::kTurn:
        Submit(event.turn);
        break;
      case Kind::kStepEnd:
        if (event.life == lives_[event.replica]) EndStep(event.replica);
        break;
      case Kind::kDeath:
        Die(event.replica);
        break;
      case Kind::kReturn:
        up_[event.replica] = true;
        for (const SimRequest& request : std::exchange(parked_, {})) Place(request);
        break;
    }
  }

  void Submit(const Turn& turn) {
    SimRequest request;
    request.turn = turn;
    request.arrival_s = now_s_;
    request.router = static_cast<uint32_t>(next_router_++ % options_.routers);
    report_.prompt_tokens += turn.prompt_tokens;
    Place(request);
  }

  void Place(SimRequest request) {
    Router& router = routers_[request.router];
    RefreshLatencies();
    candidates_.clear();
    const bool uses_cache = policies_[request.router]->uses_cache();
    for (uint32_t i = 0; i < options_.replicas; ++i) {
      if (!up_[i]) continue;
      ReplicaView& view = candidates_.emplace_back(router.views[i]);
      view.waiting_cached_tokens =
          std::min(view.waiting_cached_tokens, view.queued_tokens + view.unreported_tokens);
      if (uses_cache) view.cached_tokens = replicas_[i].Cached(request.turn);
    }
    if (candidates_.empty()) {
      parked_.push_back(request);  // until one is back
      return;
    }
    const PolicyRequest wish{request.turn.prompt_tokens, request.turn.conversation + 1};
    const ReplicaView& picked = candidates_[policies_[request.router]->Pick(wish, candidates_)];
    const uint32_t index = picked.index;
    ReplicaView& view = router.views[index];
    if (!request.answered) request.known_cached = static_cast<uint32_t>(picked.cached_tokens);
    view.waiting_cached_tokens += request.known_cached;
    view.unreported_tokens += request.turn.prompt_tokens;
    ++view.active_requests;
    ++requests_[index];
    request.submitted_s = now_s_;
    replicas_[index].Submit(request);
    if (!replicas_[index].stepping()) BeginStep(index);
  }

  void BeginStep(uint32_t index) {
    const double seconds = replicas_[index].BeginStep();
    if (seconds == 0) return;
    Schedule(seconds, {.kind = Kind::kStepEnd, .replica = index, .life = lives_[index]});
  }

  void EndStep(uint32_t index) {
    result_ = {};
    replicas_[index].EndStep(&result_);
    for (const SimRequest& request : result_.first_tokens) {
      report_.ttft_s.push_back(now_s_ - request.arrival_s);
      routers_[request.router].latencies[index].Add(now_s_ - request.submitted_s, Ns(now_s_));
      routers_[request.router].views[index].waiting_cached_tokens -= request.known_cached;
    }
    for (const SimRequest& request : result_.finished) Finish(index, request);
    for (Router& router : routers_) {  // the frame
      ReplicaView& view = router.views[index];
      view.queued_tokens = replicas_[index].queued_tokens();
      view.running_tokens = replicas_[index].running_tokens();
      view.unreported_tokens = 0;
      view.first_token_s = FirstToken(router, index);
    }
    BeginStep(index);
  }

  void Finish(uint32_t index, const SimRequest& request) {
    --routers_[request.router].views[index].active_requests;
    ++report_.finished;
    report_.cached_tokens += request.cached;
    report_.e2e_s.push_back(now_s_ - request.arrival_s);
    report_.duration_s = now_s_;
    Turn next;
    double pause_s = 0;
    if (workload_.GoOn(request.turn, &next, &pause_s))
      Schedule(pause_s, {.kind = Kind::kTurn, .turn = next});
  }

  void Die(uint32_t index) {
    if (!up_[index]) return;
    up_[index] = false;
    ++lives_[index];
    Schedule(options_.down_s, {.kind = Kind::kReturn, .replica = index});
    std::vector<SimRequest> lost;
    replicas_[index].Die(&lost);
    for (Router& router : routers_) {
      const ReplicaView old = router.views[index];
      router.views[index] = {};
      router.views[index].index = old.index;
      router.views[index].identity = old.identity;
    }
    report_.moved += lost.size();
    for (SimRequest& request : lost) {
      request.Move();
      Place(request);
    }
  }

  void RefreshLatencies() {
    if (now_s_ < next_refresh_s_) return;
    next_refresh_s_ = now_s_ + kViewRefreshS;
    for (Router& router : routers_) {
      for (uint32_t i = 0; i < options_.replicas; ++i)
        router.views[i].first_token_s = FirstToken(router, i);
    }
  }
  double FirstToken(const Router& router, uint32_t index) const {
    return router.views[index].active_requests == 0 ? router.latencies[index].Value(Ns(now_s_))
                                                    : router.latencies[index].Unfaded();
  }

  const FleetSimOptions& options_;
  const std::vector<std::unique_ptr<Policy>> policies_;  // by router
  FleetWorkload workload_;
  std::vector<SimReplica> replicas_;
  std::vector<bool> up_;
  std::vector<uint64_t> lives_;
  std::vector<double> requests_;  // given to each
  std::vector<Router> routers_;
  std::vector<ReplicaView> candidates_;
  std::vector<SimRequest> parked_;
  SimReplica::StepResult result_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t next_event_ = 0, next_router_ = 0;
  double now_s_ = 0, next_refresh_s_ = 0;
  FleetReport report_;
};

}  // namespace

double QuantileOf(const std::vector<double>& rising, double share) {
  if (rising.empty()) return 0;
  const auto index = static_cast<size_t>(share * static_cast<double>(rising.size()));
  return rising[std::min(index, rising.size() - 1)];
}

StatusOr<FleetReport> SimulateFleet(const FleetSimOptions& options, const std::string& policy) {
  std::vector<std::unique_ptr<Policy>> policies;
  for (uint32_t i = 0; i < options.routers; ++i) {
    ASSIGN_OR_RETURN(policies.emplace_back(), CreatePolicy(policy, options.workload.seed + i));
  }
  return FleetSimulation(options, std::move(policies)).Run();
}

}  // namespace flotilla
