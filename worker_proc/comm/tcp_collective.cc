#include "worker_proc/comm/tcp_collective.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "shm/cache_lines.h"
#include "shm/replica_control.h"
#include "shm/spin.h"
#include "worker_proc/comm/tcp_mesh.h"

namespace flotilla {
namespace {

constexpr int64_t kRoundTickNs = 100 * kNsPerMs;
// Up to this, an all-reduce is one message to everyone: latency counts.
constexpr size_t kOneRoundBytes = 16 << 10;

enum class OpKind : uint32_t { kAllReduce = 1, kAllGather, kGather, kBroadcast, kBarrier };

// Before each message. Both ends compare all of it.
struct MessageHeader {
  uint32_t kind = 0;
  uint32_t root = 0;
  uint64_t round = 0;  // of the epoch
  uint64_t total = 0;  // bytes of the operation
  uint64_t bytes = 0;  // of this message, which the receiver knows too
  bool operator==(const MessageHeader&) const = default;
};

// What goes to a peer and comes from it in one round.
struct Flow {
  bool sends = false, receives = false;
  std::span<const std::byte> out;
  std::span<std::byte> in;
  MessageHeader header_out, header_in;
  size_t sent = 0, received = 0;  // header included

  size_t to_send() const { return sends ? sizeof(MessageHeader) + out.size() : 0; }
  size_t to_receive() const { return receives ? sizeof(MessageHeader) + in.size() : 0; }
  bool done() const { return sent == to_send() && received == to_receive(); }
};

// The rest of header and body, from byte `done` on.
template <typename Header, typename Bytes>
size_t Rest(Header* header, Bytes body, size_t done, std::array<iovec, 2>* parts) {
  size_t count = 0;
  if (done < sizeof(MessageHeader)) {
    auto* const bytes = reinterpret_cast<char*>(header);
    (*parts)[count++] = {bytes + done, sizeof(MessageHeader) - done};
    done = sizeof(MessageHeader);
  }
  const size_t at = done - sizeof(MessageHeader);
  if (at < body.size()) {
    (*parts)[count++] = {const_cast<std::byte*>(body.data()) + at, body.size() - at};
  }
  return count;
}

class TcpCollective final : public Collective {
 public:
  TcpCollective(const TcpCollectiveOptions& options, TcpMesh mesh)
      : options_(options), mesh_(std::move(mesh)), flows_(options.ranks) {}

  uint32_t rank() const override { return options_.rank; }
  uint32_t size() const override { return options_.ranks; }
  Status AllReduceSum(std::span<float> data) override;
  Status AllGather(std::span<const std::byte> in, std::span<const size_t> counts,
                   std::span<std::byte> out) override {
    return Collect(OpKind::kAllGather, in, counts, out, 0);
  }
  Status Gather(std::span<const std::byte> in, std::span<const size_t> counts,
                std::span<std::byte> out, uint32_t root) override {
    if (root >= size()) return absl::InvalidArgumentError("collective: no such root");
    return Collect(OpKind::kGather, in, counts, out, root);
  }
  Status Broadcast(std::span<std::byte> data, uint32_t root) override;
  Status Barrier() override;
  Status Reset(uint32_t epoch) override;

 private:
  // Begins a round of an operation; the caller then says what flows.
  Status Begin(OpKind kind, uint32_t root, uint64_t total);
  void Sends(uint32_t peer, std::span<const std::byte> out);
  void Receives(uint32_t peer, std::span<std::byte> in);
  Status Finish();  // moves everything
  Status MoveAll();
  // What can be moved now; true: something was.
  StatusOr<bool> MoveSome();
  StatusOr<bool> SendSome(uint32_t peer);
  StatusOr<bool> ReceiveSome(uint32_t peer);
  Status SleepUntilReady(int64_t deadline_ns);
  Status Tick();
  // All connections are closed, so that nobody waits for us. What it was: see the header.
  Status Fail(const Status& status);
  bool AllDone() const {
    return std::all_of(flows_.begin(), flows_.end(), [](const Flow& flow) { return flow.done(); });
  }

  Status Collect(OpKind kind, std::span<const std::byte> in, std::span<const size_t> counts,
                 std::span<std::byte> out, uint32_t root);
  Status ReduceInOneRound(std::span<float> data);
  Status ReduceInTwoRounds(std::span<float> data);

  const TcpCollectiveOptions options_;
  TcpMesh mesh_;
  uint32_t epoch_ = 0;
  bool usable_ = false;
  MessageHeader header_;     // of the round
  std::vector<Flow> flows_;  // of each peer
  std::vector<pollfd> polled_;
  std::vector<float> parts_;  // of an all-reduce, from each peer
};

Status TcpCollective::Tick() {
  if (options_.on_wait != nullptr) options_.on_wait(options_.on_wait_arg);
  if (options_.epoch == nullptr || options_.epoch->load(std::memory_order_acquire) <= epoch_) {
    return OkStatus();
  }
  return absl::AbortedError(StrCat("collective: epoch ", epoch_, " is over"));
}

Status TcpCollective::Reset(uint32_t epoch) {
  if (epoch == 0 || epoch < epoch_ || (epoch == epoch_ && header_.round > 0)) {
    usable_ = false;
    return absl::FailedPreconditionError(
        StrCat("collective: rank ", rank(), " cannot join epoch ", epoch, " after epoch ", epoch_));
  }
  usable_ = false;
  epoch_ = epoch;
  header_ = MessageHeader();
  RETURN_IF_ERROR(Tick());
  const SocketWait wait{RealClock::Now() + options_.timeout_ns, [this] { return Tick(); }};
  const Status joined = mesh_.Join(epoch, wait);
  if (!joined.ok()) return Fail(joined);
  usable_ = true;
  Status together = Barrier();
  header_.round = 0;  // nothing was asked for yet
  return together;
}

Status TcpCollective::Begin(OpKind kind, uint32_t root, uint64_t total) {
  if (!usable_)
    return absl::FailedPreconditionError("collective: Reset to a new epoch comes first");
  header_ = {static_cast<uint32_t>(kind), root, header_.round + 1, total, 0};
  for (Flow& flow : flows_) flow = Flow();
  return OkStatus();
}

void TcpCollective::Sends(uint32_t peer, std::span<const std::byte> out) {
  Flow& flow = flows_[peer];
  flow.sends = true;
  flow.out = out;
  flow.header_out = header_;
  flow.header_out.bytes = out.size();
}

void TcpCollective::Receives(uint32_t peer, std::span<std::byte> in) {
  flows_[peer].receives = true;
  flows_[peer].in = in;
}

Status TcpCollective::Finish() {
  const Status status = MoveAll();
  return status.ok() ? status : Fail(status);
}

Status TcpCollective::Fail(const Status& status) {
  usable_ = false;
  mesh_.Close();
  if (!absl::IsAborted(status) || options_.epoch == nullptr) return status;
  const SocketWait wait{RealClock::Now() + options_.death_known_ns, [this] { return Tick(); }};
  Status waited = Tick();
  while (waited.ok()) waited = PollOnce(-1, 0, wait).status();
  if (!absl::IsDeadlineExceeded(waited)) return waited;
  return absl::DeadlineExceededError(StrCat(status.message(), ", but the epoch goes on"));
}

Status TcpCollective::MoveAll() {
  Status status;
  const auto moved_all = [&] {
    for (;;) {
      const StatusOr<bool> moved = MoveSome();
      status.Update(moved.status());
      if (!status.ok() || AllDone()) return true;
      if (!*moved) return false;
    }
  };
  if (SpinUntil(std::min(options_.wait.spin_ns, kRoundTickNs), INT64_MAX, moved_all)) return status;
  const int64_t now_ns = RealClock::Now();
  const bool forever = options_.timeout_ns >= INT64_MAX - now_ns;
  const int64_t deadline_ns = forever ? INT64_MAX : now_ns + options_.timeout_ns;
  while (!moved_all()) RETURN_IF_ERROR(SleepUntilReady(deadline_ns));
  return status;
}

StatusOr<bool> TcpCollective::MoveSome() {
  bool any = false;
  for (uint32_t peer = 0; peer < size(); ++peer) {
    ASSIGN_OR_RETURN(const bool sent, SendSome(peer));
    ASSIGN_OR_RETURN(const bool received, ReceiveSome(peer));
    any = any || sent || received;
  }
  return any;
}

StatusOr<bool> TcpCollective::SendSome(uint32_t peer) {
  Flow& flow = flows_[peer];
  if (flow.sent == flow.to_send()) return false;
  std::array<iovec, 2> parts;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = Rest(&flow.header_out, flow.out, flow.sent, &parts);
  const ssize_t sent = sendmsg(mesh_.fd(peer), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) {
    flow.sent += static_cast<size_t>(sent);
    return true;
  }
  if (errno == EAGAIN || errno == EINTR) return false;
  return absl::AbortedError(StrCat("collective: rank ", peer, " is gone"));
}

StatusOr<bool> TcpCollective::ReceiveSome(uint32_t peer) {
  Flow& flow = flows_[peer];
  if (flow.received == flow.to_receive()) return false;
  // The header by itself: the bytes behind one that is not ours have no place here.
  std::array<iovec, 2> parts;
  const size_t count = Rest(&flow.header_in, flow.in, flow.received, &parts);
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = flow.received < sizeof(MessageHeader) ? 1 : count;
  const ssize_t got = recvmsg(mesh_.fd(peer), &message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) return absl::AbortedError(StrCat("collective: rank ", peer, " is gone"));
  const bool had_header = flow.received >= sizeof(MessageHeader);
  flow.received += static_cast<size_t>(got);
  if (had_header || flow.received < sizeof(MessageHeader)) return true;
  MessageHeader expected = header_;
  expected.bytes = flow.in.size();
  if (flow.header_in == expected) return true;
  return absl::FailedPreconditionError(
      StrCat("collective: rank ", peer, " is in another operation"));
}

Status TcpCollective::SleepUntilReady(int64_t deadline_ns) {
  const int64_t now_ns = RealClock::Now();
  if (now_ns >= deadline_ns) {
    return absl::DeadlineExceededError("collective: a rank did not arrive");
  }
  polled_.clear();
  for (uint32_t peer = 0; peer < size(); ++peer) {
    const Flow& flow = flows_[peer];
    if (flow.done()) continue;
    const int events = (flow.sent < flow.to_send() ? POLLOUT : 0) |
                       (flow.received < flow.to_receive() ? POLLIN : 0);
    polled_.push_back({mesh_.fd(peer), static_cast<short>(events), 0});
  }
  const int64_t timeout_ns = std::min(kRoundTickNs, deadline_ns - now_ns);
  const int timeout_ms = static_cast<int>((timeout_ns + kNsPerMs - 1) / kNsPerMs);
  const int ready = poll(polled_.data(), polled_.size(), timeout_ms);
  return ready > 0 ? OkStatus() : Tick();
}

Status TcpCollective::Barrier() {
  RETURN_IF_ERROR(Begin(OpKind::kBarrier, 0, 0));
  for (uint32_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    Sends(peer, {});
    Receives(peer, {});
  }
  return Finish();
}

Status TcpCollective::AllReduceSum(std::span<float> data) {
  return data.size_bytes() <= kOneRoundBytes ? ReduceInOneRound(data) : ReduceInTwoRounds(data);
}

// Everyone adds everything.
Status TcpCollective::ReduceInOneRound(std::span<float> data) {
  RETURN_IF_ERROR(Begin(OpKind::kAllReduce, 0, data.size_bytes()));
  parts_.resize(std::max(parts_.size(), size_t{size()} * data.size()));
  const float* parts[kMaxRanks];
  for (uint32_t peer = 0; peer < size(); ++peer) {
    float* const part = parts_.data() + peer * data.size();
    parts[peer] = peer == rank() ? data.data() : part;
    if (peer == rank()) continue;
    Sends(peer, std::as_bytes(data));
    Receives(peer, std::as_writable_bytes(std::span(part, data.size())));
  }
  RETURN_IF_ERROR(Finish());
  float* const out = data.data();
  SumInOrder({parts, size()}, {&out, 1}, data.size());
  return OkStatus();
}

// Rank r adds the r-th chunk of everyone, then all collect the sums.
Status TcpCollective::ReduceInTwoRounds(std::span<float> data) {
  const auto begin_of = [&](uint32_t r) { return data.size() * r / size(); };
  const auto chunk = [&](uint32_t r) {
    return data.subspan(begin_of(r), begin_of(r + 1) - begin_of(r));
  };
  const std::span<float> own = chunk(rank());
  RETURN_IF_ERROR(Begin(OpKind::kAllReduce, 0, data.size_bytes()));
  parts_.resize(std::max(parts_.size(), size_t{size()} * own.size()));
  const float* parts[kMaxRanks];
  for (uint32_t peer = 0; peer < size(); ++peer) {
    float* const part = parts_.data() + peer * own.size();
    parts[peer] = peer == rank() ? own.data() : part;
    if (peer == rank()) continue;
    Sends(peer, std::as_bytes(chunk(peer)));
    Receives(peer, std::as_writable_bytes(std::span(part, own.size())));
  }
  RETURN_IF_ERROR(Finish());
  float* const out = own.data();
  SumInOrder({parts, size()}, {&out, 1}, own.size());

  RETURN_IF_ERROR(Begin(OpKind::kAllReduce, 0, data.size_bytes()));
  for (uint32_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    Sends(peer, std::as_bytes(own));
    Receives(peer, std::as_writable_bytes(chunk(peer)));
  }
  return Finish();
}

Status TcpCollective::Collect(OpKind kind, std::span<const std::byte> in,
                              std::span<const size_t> counts, std::span<std::byte> out,
                              uint32_t root) {
  const bool all = kind == OpKind::kAllGather;
  const bool receives = all || root == rank();
  size_t total = 0;
  for (const size_t count : counts) total += count;
  if (counts.size() != size() || in.size() != counts[rank()] || (receives && out.size() != total))
    return absl::InvalidArgumentError("collective: counts do not match the buffers");

  RETURN_IF_ERROR(Begin(kind, root, total));
  size_t begin = 0;
  for (uint32_t peer = 0; peer < size(); begin += counts[peer++]) {
    if (peer != rank()) {
      if (all || peer == root) Sends(peer, in);
      if (receives) Receives(peer, out.subspan(begin, counts[peer]));
    } else if (receives && !in.empty() && in.data() != out.data() + begin) {
      std::memcpy(out.data() + begin, in.data(), in.size());
    }
  }
  return Finish();
}

Status TcpCollective::Broadcast(std::span<std::byte> data, uint32_t root) {
  if (root >= size()) return absl::InvalidArgumentError("collective: no such root");
  RETURN_IF_ERROR(Begin(OpKind::kBroadcast, root, data.size()));
  for (uint32_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    if (root == rank()) Sends(peer, data);
    if (root == peer) Receives(peer, data);
  }
  return Finish();
}

}  // namespace

StatusOr<std::unique_ptr<Collective>> MakeTcpCollective(const TcpCollectiveOptions& options) {
  if (options.ranks > kMaxRanks || options.rank >= options.ranks)
    return absl::InvalidArgumentError(
        StrCat("collective: rank ", options.rank, " of ", options.ranks));
  ASSIGN_OR_RETURN(TcpMesh mesh, TcpMesh::Create(options));
  return std::unique_ptr<Collective>(std::make_unique<TcpCollective>(options, std::move(mesh)));
}

}  // namespace flotilla
