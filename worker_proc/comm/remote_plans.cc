#include "worker_proc/comm/remote_plans.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "shm/futex.h"

namespace flotilla {

RemotePlans::RemotePlans(const Deps& deps, const RemotePlansOptions& options, RingWriter writer,
                         UniqueFd fd)
    : deps_(deps),
      options_(options),
      slot_(&(*deps.control)->workers[options.rank]),
      incarnation_(slot_->incarnation.load(std::memory_order_acquire)),
      writer_(std::move(writer)),
      link_(std::move(fd), writer_.max_frame_bytes()) {}

StatusOr<std::unique_ptr<RemotePlans>> RemotePlans::Connect(const Deps& deps,
                                                            const RemotePlansOptions& options) {
  ProcessSlot& slot = (*deps.control)->workers[options.rank];
  slot.ready_epoch.store(0, std::memory_order_release);  // a predecessor's
  const SocketWait patient{INT64_MAX, [&]() -> Status {
                             slot.heartbeat_ns.store(RealClock::Now(), std::memory_order_relaxed);
                             if (!deps.stop->load(std::memory_order_relaxed)) return OkStatus();
                             return absl::CancelledError("stopped");
                           }};
  const std::string address = FormatTcpAddress(options.head);
  Log().info("looking for the head {}", Kv("address", address));
  for (RepeatedFailure failure(0);;) {
    auto plans = TryConnect(deps, options, patient);
    if (plans.ok()) {
      (*plans)->Start();
      return plans;
    }
    // It ends, or has just begun, or its program is another.
    const Status& status = plans.status();
    if (!absl::IsAborted(status) && !absl::IsDeadlineExceeded(status)) {
      return Annotate(status, address);
    }
    if (failure.ShouldLog()) {
      Log().warn("the head hung up or is silent, trying on; its log may say why {} {}",
                 Kv("address", address), Kv("reason", std::string(status.message())));
    }
    RETURN_IF_ERROR(PollOnce(-1, 0, patient).status());
  }
}

StatusOr<std::unique_ptr<RemotePlans>> RemotePlans::TryConnect(const Deps& deps,
                                                               const RemotePlansOptions& options,
                                                               const SocketWait& patient) {
  ASSIGN_OR_RETURN(RingWriter writer, RingWriter::Attach(deps.step_ring));
  // Only this rank reads here, and nothing that was meant for a predecessor.
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    if (rank != options.rank) writer.DeactivateReader(rank);
  }
  writer.ActivateReader(options.rank);
  const LinkHello hello{LinkPurpose::kPlans, options.rank, options.ranks, 0, 0};
  ASSIGN_OR_RETURN(UniqueFd fd, ConnectLink(options.head, hello, options.secret, patient,
                                            /*handshake_ns=*/kPlanLinkSilenceNs));
  std::unique_ptr<RemotePlans> plans(
      new RemotePlans(deps, options, std::move(writer), std::move(fd)));
  RETURN_IF_ERROR(plans->Greet());
  return plans;
}

RemotePlans::~RemotePlans() {
  over_.store(true, std::memory_order_release);
  link_.Shutdown();
  ReplicaControl::Ring(&(*deps_.control)->doorbell);
  if (receiver_.joinable()) receiver_.join();
  if (sender_.joinable()) sender_.join();
}

SocketWait RemotePlans::Wait() const {
  return {RealClock::Now() + kPlanLinkSilenceNs, [this]() -> Status {
            if (!over_.load(std::memory_order_acquire)) return OkStatus();
            return absl::CancelledError("the link is closed");
          }};
}

Status RemotePlans::Greet() {
  std::string body;
  BuildRankConfig(options_.config, &body);
  RETURN_IF_ERROR(link_.Send(PlanFrame::kConfig, body, Wait()));
  ASSIGN_OR_RETURN(const PlanLink::Frame frame, link_.Receive(Wait()));
  if (frame.kind == PlanFrame::kRefused) {
    return absl::InvalidArgumentError(StrCat("the head refuses this host: ", frame.body));
  }
  if (frame.kind != PlanFrame::kWelcome) {
    return absl::FailedPreconditionError("plan link: the head did not welcome us");
  }
  ASSIGN_OR_RETURN(const HeadControl control, ParseHeadControl(frame.body));
  kv_pages_chosen_ = control.kv_pages_chosen;
  Apply(control);
  return OkStatus();
}

void RemotePlans::Start() {
  receiver_ = std::thread([this] { Lose(Annotate(ReceivePlans(), "plans of the head")); });
  sender_ = std::thread([this] { Lose(Annotate(SendReports(), "reports to the head")); });
}

void RemotePlans::Lose(const Status& status) {
  if (over_.exchange(true)) return;
  link_.Shutdown();
  deps_.on_lost(status);
}

void RemotePlans::Apply(const HeadControl& control) {
  (*deps_.control)->epoch.store(control.epoch, std::memory_order_release);
  const bool was = slot_->admitted.load(std::memory_order_relaxed) == incarnation_;
  if (!control.admitted || was) return;
  slot_->admitted.store(incarnation_, std::memory_order_release);
  ReplicaControl::Ring(&(*deps_.control)->worker_bell);
}

Status RemotePlans::ReceivePlans() {
  for (;;) {
    ASSIGN_OR_RETURN(const PlanLink::Frame frame, link_.Receive(Wait()));
    if (frame.kind == PlanFrame::kPlan) {
      RETURN_IF_ERROR(WritePlan(frame.body));
    } else if (frame.kind == PlanFrame::kControl) {
      ASSIGN_OR_RETURN(const HeadControl control, ParseHeadControl(frame.body));
      Apply(control);
    } else {
      return absl::FailedPreconditionError("plan link: the head sent what only a rank sends");
    }
  }
}

// A worker that does not read holds up the head, as it would beside it.
Status RemotePlans::WritePlan(std::string_view plan) {
  for (;;) {
    Status written = writer_.Write(plan, RealClock::Now() + kPlanLinkBeatNs);
    if (!absl::IsDeadlineExceeded(written)) return written;
    if (over_.load(std::memory_order_acquire)) return absl::CancelledError("the link is closed");
  }
}

RankReport RemotePlans::Report() const {
  const WorkerReport& from = (*deps_.control)->reports[options_.rank];
  RankReport report;
  // The state first: what was written before it is then there too.
  report.state = static_cast<uint32_t>(ReplicaControl::State(*slot_));
  report.ready_epoch = slot_->ready_epoch.load(std::memory_order_acquire);
  report.heartbeat_age_ns =
      std::max<int64_t>(0, RealClock::Now() - slot_->heartbeat_ns.load(std::memory_order_relaxed));
  report.weight_bytes = from.weight_bytes.load(std::memory_order_relaxed);
  report.max_kv_pages = from.max_kv_pages.load(std::memory_order_acquire);
  report.page_bytes = from.page_bytes.load(std::memory_order_relaxed);
  report.backend = ReplicaControl::BackendName(from);
  return report;
}

// With each ring of the bell, which the worker's loop rings when its state changes.
Status RemotePlans::SendReports() {
  const std::atomic<uint32_t>& bell = (*deps_.control)->doorbell;
  std::string body;
  while (!over_.load(std::memory_order_acquire)) {
    const uint32_t seen = bell.load(std::memory_order_acquire);
    BuildRankReport(Report(), &body);
    RETURN_IF_ERROR(link_.Send(PlanFrame::kReport, body, Wait()));
    FutexWait(&bell, seen, RealClock::Now() + kPlanLinkBeatNs);
  }
  return OkStatus();
}

}  // namespace flotilla
