#include "worker_proc/comm/rank_proxy.h"

#include <thread>
#include <utility>

#include "common/base/log.h"
#include "shm/futex.h"
#include "shm/step_plan.h"

namespace flotilla {
namespace {

constexpr int64_t kLookNs = 100 * kNsPerMs;
// A config is short; reports are shorter.
constexpr size_t kMaxFromRank = 64 << 10;

}  // namespace

RankProxy::RankProxy(const Deps& deps, const RankProxyOptions& options)
    : deps_(deps),
      options_(options),
      slot_(&(*deps.control)->workers[options.rank]),
      incarnation_(slot_->incarnation.load(std::memory_order_acquire)),
      metrics_(deps.registry, options.rank) {}

void RankProxy::SetState(ProcessState state) {
  ReplicaControl::SetState(slot_, state);
  ReplicaControl::Ring(&(*deps_.control)->doorbell);
  ReplicaControl::Ring(&(*deps_.control)->launcher_bell);
}

Status RankProxy::Tick() const {
  if (deps_.stop->load(std::memory_order_relaxed)) return absl::CancelledError("stopped");
  if (over_.load(std::memory_order_acquire)) return absl::AbortedError("the link is lost");
  return OkStatus();
}

SocketWait RankProxy::Wait() const {
  return {RealClock::Now() + kPlanLinkSilenceNs, [this] { return Tick(); }};
}

Status RankProxy::Run() {
  SetState(ProcessState::kLoading);
  StatusOr<UniqueFd> listener = ListenOn(options_.listen);
  RETURN_IF_ERROR(listener.status());
  Log().info("waiting for a rank of another host {} {}", Kv("rank", options_.rank),
             Kv("address", FormatTcpAddress(options_.listen)));
  const std::string host = HostOfSocket(listener->get());
  if (IsLoopback(host) && host != options_.listen.host && options_.listen.host != "localhost") {
    Log().warn(
        "on this host the name is an address that no other host reaches (see /etc/hosts); "
        "--join-address takes an address of the network, or 0.0.0.0 {} {}",
        Kv("name", options_.listen.host), Kv("address", host));
  }
  StatusOr<std::unique_ptr<PlanLink>> link = AcceptRank(*std::move(listener));
  if (absl::IsCancelled(link.status())) return OkStatus();
  RETURN_IF_ERROR(link.status());
  const Status ended = Serve(link->get());
  metrics_.connected->Set(0);
  return absl::IsCancelled(ended) ? OkStatus() : ended;
}

SocketWait RankProxy::Patient() const {
  return {INT64_MAX, [this]() -> Status {
            slot_->heartbeat_ns.store(RealClock::Now(), std::memory_order_relaxed);
            return Tick();
          }};
}

StatusOr<std::unique_ptr<PlanLink>> RankProxy::AcceptRank(UniqueFd listener) {
  const SocketWait wait = Patient();
  LinkAcceptor acceptor(std::move(listener), options_.secret);
  for (;;) {
    StatusOr<AcceptedLink> link = acceptor.Next(wait);
    RETURN_IF_ERROR(link.status());
    if (link->hello.purpose != LinkPurpose::kPlans) {
      Log().warn("a connection that wants no plans {}", Kv("host", link->host));
      continue;
    }
    auto plans = std::make_unique<PlanLink>(std::move(link->fd), kMaxFromRank);
    const Status greeted =
        Greet(plans.get(), link->hello, {RealClock::Now() + kPlanLinkSilenceNs, wait.tick});
    if (greeted.ok()) {
      Log().info("the rank's host is {}", Kv("host", link->host));
      return plans;
    }
    RETURN_IF_ERROR(wait.tick());
    Log().warn("a rank's host was not taken {} {}", Kv("host", link->host),
               Kv("reason", std::string(greeted.message())));
  }
}

Status RankProxy::CheckIsOurs(const LinkHello& hello, const RankConfig& config) const {
  RETURN_IF_ERROR(CheckSameConfig(options_.config, config));
  if (hello.rank == options_.rank && hello.ranks == options_.ranks) return OkStatus();
  return absl::InvalidArgumentError(
      StrCat("--rank is ", hello.rank, " of ", hello.ranks, " here, and this is the port of rank ",
             options_.rank, " of ", options_.ranks, "; --head must be its --join-address"));
}

Status RankProxy::Greet(PlanLink* link, const LinkHello& hello, const SocketWait& wait) {
  ASSIGN_OR_RETURN(const PlanLink::Frame frame, link->Receive(wait));
  if (frame.kind != PlanFrame::kConfig) {
    return absl::FailedPreconditionError("plan link: the rank did not begin with its config");
  }
  ASSIGN_OR_RETURN(const RankConfig config, ParseRankConfig(frame.body));
  const Status ours = CheckIsOurs(hello, config);
  if (!ours.ok()) {
    RETURN_IF_ERROR(link->Send(PlanFrame::kRefused, std::string(ours.message()), wait));
    return ours;
  }
  sent_ = LookAtControl();
  BuildHeadControl(sent_, &body_);
  return link->Send(PlanFrame::kWelcome, body_, wait);
}

Status RankProxy::Serve(PlanLink* link) {
  metrics_.connected->Set(1);
  std::thread receiver([&] {
    const Status ended = ReceiveReports(link);
    const std::lock_guard<std::mutex> lock(lost_mutex_);
    lost_ = ended;
    over_.store(true, std::memory_order_release);
  });
  const Status ended = SendPlans(link);
  over_.store(true, std::memory_order_release);
  link->Shutdown();
  receiver.join();
  // The receiver knows best why a link was lost.
  const bool stopped = deps_.stop->load(std::memory_order_relaxed);
  if (!absl::IsAborted(ended) || stopped) return ended;
  return absl::AbortedError(StrCat("the rank is lost: ", lost_.message()));
}

HeadControl RankProxy::LookAtControl() const {
  HeadControl control;
  const ReplicaControlBlock& block = *deps_.control->operator->();
  control.epoch = block.epoch.load(std::memory_order_acquire);
  control.admitted = slot_->admitted.load(std::memory_order_acquire) == incarnation_;
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    control.kv_pages_chosen |= block.workers[rank].ready_epoch.load() != 0;
  }
  return control;
}

Status RankProxy::SendControlIfDue(PlanLink* link) {
  const HeadControl control = LookAtControl();
  const int64_t now_ns = RealClock::Now();
  if (control == sent_ && now_ns - sent_ns_ < kPlanLinkBeatNs) return OkStatus();
  sent_ = control;
  sent_ns_ = now_ns;
  BuildHeadControl(control, &body_);
  return link->Send(PlanFrame::kControl, body_, Wait());
}

StatusOr<std::optional<std::string_view>> RankProxy::NextPlan() {
  const int64_t until_ns = RealClock::Now() + kLookNs;
  if (!reader_.has_value()) {
    const std::atomic<uint32_t>& bell = (*deps_.control)->worker_bell;
    const uint32_t seen = bell.load(std::memory_order_acquire);
    if (!LookAtControl().admitted) {
      FutexWait(&bell, seen, until_ns);
      return std::nullopt;
    }
    ASSIGN_OR_RETURN(reader_, RingReader::Attach(deps_.step_ring, options_.rank, WaitPolicy{}));
  }
  StatusOr<std::string_view> frame = reader_->Read(until_ns);
  if (absl::IsDeadlineExceeded(frame.status())) return std::nullopt;
  RETURN_IF_ERROR(Annotate(frame.status(), "step ring"));
  return *frame;
}

Status RankProxy::SendPlans(PlanLink* link) {
  for (;;) {
    RETURN_IF_ERROR(Tick());
    RETURN_IF_ERROR(SendControlIfDue(link));
    ASSIGN_OR_RETURN(const std::optional<std::string_view> plan, NextPlan());
    if (!plan.has_value()) continue;
    // The plan may be the first of an epoch that began just now.
    RETURN_IF_ERROR(SendControlIfDue(link));
    // Rank 0 alone samples, and masks may be most of a plan.
    const std::string_view sent = DropMasks(*plan, &without_masks_) ? without_masks_ : *plan;
    RETURN_IF_ERROR(link->Send(PlanFrame::kPlan, sent, Wait()));
    metrics_.plans->Increment();
    metrics_.bytes->Increment(static_cast<double>(sent.size()));
    reader_->Release();
  }
}

Status RankProxy::ReceiveReports(PlanLink* link) {
  for (;;) {
    ASSIGN_OR_RETURN(const PlanLink::Frame frame, link->Receive(Wait()));
    if (frame.kind != PlanFrame::kReport) {
      return absl::FailedPreconditionError("plan link: the rank sent no report");
    }
    ASSIGN_OR_RETURN(const RankReport report, ParseRankReport(frame.body));
    Apply(report);
  }
}

void RankProxy::Apply(const RankReport& report) {
  WorkerReport& to = (*deps_.control)->reports[options_.rank];
  to.weight_bytes.store(report.weight_bytes, std::memory_order_relaxed);
  to.page_bytes.store(report.page_bytes, std::memory_order_relaxed);
  ReplicaControl::SetBackend(&to, report.backend);
  to.max_kv_pages.store(report.max_kv_pages, std::memory_order_release);
  slot_->heartbeat_ns.store(RealClock::Now() - report.heartbeat_age_ns, std::memory_order_relaxed);
  const auto state = static_cast<ProcessState>(report.state);
  if (slot_->ready_epoch.load(std::memory_order_relaxed) == report.ready_epoch &&
      ReplicaControl::State(*slot_) == state) {
    return;
  }
  slot_->ready_epoch.store(report.ready_epoch, std::memory_order_release);
  SetState(state);
}

}  // namespace flotilla
