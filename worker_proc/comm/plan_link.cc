#include "worker_proc/comm/plan_link.h"

#include <sys/socket.h>

#include <span>

#include "common/base/wire.h"
#include "shm/replica_control.h"

namespace flotilla {
namespace {

constexpr uint32_t kMaxConfigFields = 64;

struct FrameHeader {
  uint32_t kind;
  uint32_t bytes;
};

Status Malformed(const char* what) {
  return absl::FailedPreconditionError(StrCat("plan link: malformed ", what));
}

}  // namespace

void BuildRankConfig(const RankConfig& config, std::string* body) {
  body->clear();
  WireWriter writer(body);
  writer.Put<uint32_t>(static_cast<uint32_t>(config.size()));
  for (const auto& [flag, value] : config) {
    writer.PutBytes(flag);
    writer.PutBytes(value);
  }
}

StatusOr<RankConfig> ParseRankConfig(std::string_view body) {
  WireReader reader(body);
  const auto count = reader.Get<uint32_t>();
  if (count > kMaxConfigFields) return Malformed("config");
  RankConfig config;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    std::string flag(reader.GetBytes());
    config.emplace_back(std::move(flag), std::string(reader.GetBytes()));
  }
  if (!reader.AtEnd()) return Malformed("config");
  return config;
}

Status CheckSameConfig(const RankConfig& head, const RankConfig& rank) {
  if (head.size() != rank.size()) {
    return absl::InvalidArgumentError("the hosts' programs are of different versions");
  }
  for (size_t i = 0; i < head.size(); ++i) {
    if (head[i].first != rank[i].first) {
      return absl::InvalidArgumentError("the hosts' programs are of different versions");
    }
    if (head[i].second != rank[i].second) {
      return absl::InvalidArgumentError(StrCat(head[i].first, " is ", head[i].second,
                                               " on the head and ", rank[i].second,
                                               " here; it must be the same"));
    }
  }
  return OkStatus();
}

void BuildHeadControl(const HeadControl& control, std::string* body) {
  body->clear();
  WireWriter writer(body);
  writer.Put(control.epoch);
  writer.Put<uint8_t>(control.admitted ? 1 : 0);
  writer.Put<uint8_t>(control.kv_pages_chosen ? 1 : 0);
}

StatusOr<HeadControl> ParseHeadControl(std::string_view body) {
  WireReader reader(body);
  HeadControl control;
  control.epoch = reader.Get<uint32_t>();
  const auto admitted = reader.Get<uint8_t>();
  const auto chosen = reader.Get<uint8_t>();
  if (!reader.AtEnd() || admitted > 1 || chosen > 1) return Malformed("control");
  control.admitted = admitted != 0;
  control.kv_pages_chosen = chosen != 0;
  return control;
}

void BuildRankReport(const RankReport& report, std::string* body) {
  body->clear();
  WireWriter writer(body);
  writer.Put(report.state);
  writer.Put(report.ready_epoch);
  writer.Put(report.heartbeat_age_ns);
  writer.Put(report.weight_bytes);
  writer.Put(report.max_kv_pages);
  writer.Put(report.page_bytes);
  writer.PutBytes(report.backend);
}

StatusOr<RankReport> ParseRankReport(std::string_view body) {
  WireReader reader(body);
  RankReport report;
  report.state = reader.Get<uint32_t>();
  report.ready_epoch = reader.Get<uint32_t>();
  report.heartbeat_age_ns = reader.Get<int64_t>();
  report.weight_bytes = reader.Get<uint64_t>();
  report.max_kv_pages = reader.Get<uint64_t>();
  report.page_bytes = reader.Get<uint64_t>();
  report.backend = reader.GetBytes();
  // What only a launcher may say of a process is not for the process to say.
  const bool may = report.state >= static_cast<uint32_t>(ProcessState::kLoading) &&
                   report.state <= static_cast<uint32_t>(ProcessState::kStopping);
  if (!reader.AtEnd() || !may || report.heartbeat_age_ns < 0 ||
      report.backend.size() > kMaxBackendName) {
    return Malformed("report");
  }
  return report;
}

Status PlanLink::Send(PlanFrame kind, std::string_view body, const SocketWait& wait) {
  out_.clear();
  WireWriter writer(&out_);
  writer.Put(FrameHeader{static_cast<uint32_t>(kind), static_cast<uint32_t>(body.size())});
  out_.append(body);
  return SendAll(fd_.get(), out_, wait);
}

StatusOr<PlanLink::Frame> PlanLink::Receive(const SocketWait& wait) {
  FrameHeader header;
  RETURN_IF_ERROR(ReceiveAll(fd_.get(), std::as_writable_bytes(std::span(&header, 1)), wait));
  if (header.kind < static_cast<uint32_t>(PlanFrame::kConfig) ||
      header.kind > static_cast<uint32_t>(PlanFrame::kReport)) {
    return Malformed("kind of frame");
  }
  if (header.bytes > max_bytes_) {
    return absl::FailedPreconditionError(
        StrCat("plan link: a frame of ", header.bytes, " bytes, ", max_bytes_, " may come"));
  }
  in_.resize(header.bytes);
  RETURN_IF_ERROR(ReceiveAll(fd_.get(), std::as_writable_bytes(std::span(in_)), wait));
  return Frame{static_cast<PlanFrame>(header.kind), in_};
}

void PlanLink::Shutdown() { shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace flotilla
