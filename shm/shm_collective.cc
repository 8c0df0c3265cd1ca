// ShmCollective: every operation is a sequence of rounds, and a round is one synchronisation.
//
// Round n of a rank: write its piece into half n % 2 of its staging buffer, publish n in its flag,
// wait until every peer has published n, read the peers' pieces. A peer that has published n has
// finished reading round n - 1, so when a rank begins round n + 1, nobody reads its half of round
// n - 1 any more and it may write there. All ranks wait for all in each round, also where data
// flows one way only; that is what makes two halves enough.
//
// Epochs: Reset publishes (epoch, 0) and waits until all peers are there. A rank that is in the new
// epoch reads nothing of the old one, so the first write into a staging buffer happens after the
// last old read. A survivor still in the old epoch meets a flag of a newer epoch: Aborted.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "shm/collective.h"
#include "shm/collective_layout.h"
#include "shm/memory_order.h"
#include "shm/points.h"
#include "shm/spin.h"

namespace flotilla {
namespace {

constexpr int64_t kBeatNs = 100 * kNsPerMs;

// Rounds wrap from the last one to 2: odd and even still alternate, and 0 keeps its meaning.
#ifdef FLOTILLA_SHM_POINTS
constexpr uint32_t kLastRound = 31;  // tests see the wrap
#else
constexpr uint32_t kLastRound = UINT32_MAX;
#endif
static_assert(kLastRound % 2 == 1);
uint32_t NextRound(uint32_t round) { return round == kLastRound ? 2 : round + 1; }

enum class OpKind : uint64_t { kAllReduce = 1, kAllGather, kGather, kBroadcast, kBarrier };

// Peers compare it: two ranks in different operations must not take each other's bytes.
uint64_t OpTag(OpKind kind, uint32_t root, uint64_t bytes) {
  return static_cast<uint64_t>(kind) << 56 | uint64_t{root & 0xff} << 48 |
         (bytes & ((uint64_t{1} << 48) - 1));
}

// out[i] = parts[0][i] + parts[1][i] + …, in this order. `out` may be one of the parts.
void SumInOrder(std::span<const float* const> parts, float* out, size_t count) {
  constexpr size_t kBlock = 512;
  float sum[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = std::min(kBlock, count - at);
    std::memcpy(sum, parts[0] + at, n * sizeof(float));
    for (size_t p = 1; p < parts.size(); ++p) {
      const float* part = parts[p] + at;
      for (size_t i = 0; i < n; ++i) sum[i] += part[i];
    }
    std::memcpy(out + at, sum, n * sizeof(float));
  }
}

class ShmCollective final : public Collective {
 public:
  ShmCollective(const CollectiveView& view, const ShmCollectiveOptions& options)
      : view_(view), options_(options), own_(&view.header->lines[options.rank]) {}

  uint32_t rank() const override { return options_.rank; }
  uint32_t size() const override { return view_.ranks; }
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
  enum class Look { kWait, kReady, kAborted, kOutOfStep };

  Status Collect(OpKind kind, std::span<const std::byte> in, std::span<const size_t> counts,
                 std::span<std::byte> out, uint32_t root);
  // Moves on to the next round; the caller then fills staging(rank()).
  Status BeginRound(uint64_t op);
  // Publishes the round and waits for all peers' pieces.
  Status FinishRound();
  std::byte* Staging(uint32_t rank) const { return view_.Half(rank, round_ % 2); }

  void Publish(uint64_t flag);
  Status WaitForPeers();
  Status WaitForPeer(uint32_t peer);
  Look LookAt(const RankLine& line) const;
  // Sleeps until LookAt says something else than kWait, or the deadline.
  StatusOr<Look> Sleep(RankLine* line);
  StatusOr<Look> SleepAnnounced(RankLine* line);

  const CollectiveView view_;
  const ShmCollectiveOptions options_;
  RankLine* const own_;

  uint32_t epoch_ = 0;
  uint32_t round_ = 0;  // the last one published by us …
  uint32_t prev_ = 0;   // … and the one before
  uint64_t op_ = 0;
  bool joining_ = false;     // in Reset
  bool usable_ = false;      // joined, and nothing has failed since
  int64_t deadline_ns_ = 0;  // of the wait in progress; 0: its first sleep sets it
};

Status ShmCollective::BeginRound(uint64_t op) {
  if (!usable_)
    return absl::FailedPreconditionError("collective: Reset to a new epoch comes first");
  prev_ = std::exchange(round_, NextRound(round_));
  op_ = op;
  FLOTILLA_SHM_POINT();
  own_->op[round_ % 2].store(op, std::memory_order_relaxed);
  FLOTILLA_SHM_POINT();
  return OkStatus();
}

Status ShmCollective::FinishRound() {
  FLOTILLA_SHM_POINT();
  Publish(uint64_t{epoch_} << 32 | round_);
  Status status = WaitForPeers();
  for (uint32_t peer = 0; status.ok() && peer < size(); ++peer) {
    // Kept until the peer's round after next, which cannot begin before we publish again.
    const auto& op = view_.header->lines[peer].op[round_ % 2];
    if (peer != rank() && op.load(std::memory_order_relaxed) != op_)
      status = absl::FailedPreconditionError(
          absl::StrCat("collective: rank ", peer, " is in another operation"));
  }
  usable_ = status.ok();
  return status;
}

void ShmCollective::Publish(uint64_t flag) {
  own_->flag.store(flag, kFlagPublish);
  FLOTILLA_SHM_POINT();
  // seq_cst here and in Sleep(): we see the sleeper, or it sees the flag.
  if (own_->sleepers.load(std::memory_order_seq_cst) == 0) return;
  own_->bell.fetch_add(1, std::memory_order_seq_cst);
  FLOTILLA_SHM_POINT();
  FutexWakeAll(&own_->bell);
}

ShmCollective::Look ShmCollective::LookAt(const RankLine& line) const {
  const uint64_t flag = line.flag.load(std::memory_order_seq_cst);
  const uint32_t epoch = static_cast<uint32_t>(flag >> 32);
  const uint32_t round = static_cast<uint32_t>(flag);
  if (epoch == epoch_) {
    if (joining_ || round == round_ || round == NextRound(round_)) return Look::kReady;
    if (round != prev_) return Look::kOutOfStep;
  } else if (epoch > epoch_) {
    return Look::kAborted;
  } else if (!joining_) {
    return Look::kOutOfStep;
  }
  return view_.header->abort_epoch.load(std::memory_order_seq_cst) > epoch_ ? Look::kAborted
                                                                            : Look::kWait;
}

StatusOr<ShmCollective::Look> ShmCollective::Sleep(RankLine* line) {
  line->sleepers.fetch_or(1u << rank(), std::memory_order_seq_cst);
  FLOTILLA_SHM_POINT();
  StatusOr<Look> look = SleepAnnounced(line);
  line->sleepers.fetch_and(~(1u << rank()), std::memory_order_relaxed);
  FLOTILLA_SHM_POINT();
  return look;
}

StatusOr<ShmCollective::Look> ShmCollective::SleepAnnounced(RankLine* line) {
  int64_t now_ns = RealClock::Now();
  int64_t beat_ns = now_ns + kBeatNs;
  if (deadline_ns_ == 0) {
    const bool forever = options_.timeout_ns >= INT64_MAX - now_ns;
    deadline_ns_ = forever ? INT64_MAX : now_ns + options_.timeout_ns;
  }
  for (;;) {
    const uint32_t bell = line->bell.load(std::memory_order_seq_cst);
    const Look look = LookAt(*line);
    if (look != Look::kWait) return look;
    if (now_ns >= deadline_ns_)
      return absl::DeadlineExceededError("collective: a rank did not arrive");
    FutexWait(&line->bell, bell, std::min(deadline_ns_, beat_ns));
    now_ns = RealClock::Now();
    if (now_ns < beat_ns) continue;
    beat_ns = now_ns + kBeatNs;
    if (options_.on_wait != nullptr) options_.on_wait(options_.on_wait_arg);
  }
}

Status ShmCollective::WaitForPeer(uint32_t peer) {
  RankLine* line = &view_.header->lines[peer];
  Look look = Look::kWait;
  const int64_t spin_ns = std::min(options_.wait.spin_ns, kBeatNs);
  if (!SpinUntil(spin_ns, INT64_MAX, [&] { return (look = LookAt(*line)) != Look::kWait; })) {
    ASSIGN_OR_RETURN(look, Sleep(line));
  }
  if (look == Look::kReady) return OkStatus();
  if (look == Look::kAborted)
    return absl::AbortedError(absl::StrCat("collective: epoch ", epoch_, " is over"));
  return absl::InternalError(
      absl::StrCat("collective: rank ", peer, " is out of step in epoch ", epoch_));
}

Status ShmCollective::WaitForPeers() {
  deadline_ns_ = 0;
  for (uint32_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Status status = WaitForPeer(peer);
    if (!status.ok()) return Annotate(status, absl::StrCat("waiting for rank ", peer));
  }
  return OkStatus();
}

Status ShmCollective::Reset(uint32_t epoch) {
  usable_ = false;
  const uint64_t own = own_->flag.load(std::memory_order_relaxed);
  // (epoch, 0) again is harmless: nothing was published since. It lets a Reset that timed out, or
  // that a predecessor began, be repeated.
  if (epoch == 0 || own > uint64_t{epoch} << 32)
    return absl::FailedPreconditionError(absl::StrCat(
        "collective: rank ", rank(), " cannot join epoch ", epoch, " after epoch ", own >> 32));
  epoch_ = epoch;
  round_ = prev_ = 0;
  // A predecessor that died asleep.
  for (uint32_t peer = 0; peer < size(); ++peer)
    view_.header->lines[peer].sleepers.fetch_and(~(1u << rank()), std::memory_order_relaxed);
  FLOTILLA_SHM_POINT();
  Publish(uint64_t{epoch} << 32);
  joining_ = true;
  const Status status = WaitForPeers();
  joining_ = false;
  usable_ = status.ok();
  return status;
}

Status ShmCollective::Barrier() {
  RETURN_IF_ERROR(BeginRound(OpTag(OpKind::kBarrier, 0, 0)));
  return FinishRound();
}

Status ShmCollective::AllReduceSum(std::span<float> data) {
  const uint64_t op = OpTag(OpKind::kAllReduce, 0, data.size_bytes());
  const size_t piece = view_.half_bytes / sizeof(float);
  const float* parts[kMaxRanks];
  for (size_t at = 0; at < data.size(); at += piece) {
    const size_t n = std::min(piece, data.size() - at);
    RETURN_IF_ERROR(BeginRound(op));
    std::memcpy(Staging(rank()), data.data() + at, n * sizeof(float));
    RETURN_IF_ERROR(FinishRound());
    for (uint32_t r = 0; r < size(); ++r)
      parts[r] = r == rank() ? data.data() + at : reinterpret_cast<const float*>(Staging(r));
    SumInOrder({parts, size()}, data.data() + at, n);
  }
  return OkStatus();
}

Status ShmCollective::Collect(OpKind kind, std::span<const std::byte> in,
                              std::span<const size_t> counts, std::span<std::byte> out,
                              uint32_t root) {
  const bool receives = kind == OpKind::kAllGather || root == rank();
  size_t total = 0, longest = 0;
  size_t begin[kMaxRanks] = {};
  for (size_t r = 0; r < counts.size() && r < size(); ++r) {
    begin[r] = total;
    total += counts[r];
    longest = std::max(longest, counts[r]);
  }
  if (counts.size() != size() || in.size() != counts[rank()] || (receives && out.size() != total))
    return absl::InvalidArgumentError("collective: counts do not match the buffers");
  if (receives && !in.empty()) std::memmove(out.data() + begin[rank()], in.data(), in.size());

  const uint64_t op = OpTag(kind, root, total);
  for (size_t at = 0; at < longest; at += view_.half_bytes) {
    const auto piece = [&](uint32_t r) {
      return at < counts[r] ? std::min(view_.half_bytes, counts[r] - at) : 0;
    };
    RETURN_IF_ERROR(BeginRound(op));
    // From `in`, or from its copy in `out`: they may overlap.
    const std::byte* from = receives ? out.data() + begin[rank()] : in.data();
    if (piece(rank()) > 0) std::memcpy(Staging(rank()), from + at, piece(rank()));
    RETURN_IF_ERROR(FinishRound());
    for (uint32_t r = 0; receives && r < size(); ++r)
      if (r != rank() && piece(r) > 0)
        std::memcpy(out.data() + begin[r] + at, Staging(r), piece(r));
  }
  return OkStatus();
}

Status ShmCollective::Broadcast(std::span<std::byte> data, uint32_t root) {
  if (root >= size()) return absl::InvalidArgumentError("collective: no such root");
  const uint64_t op = OpTag(OpKind::kBroadcast, root, data.size());
  for (size_t at = 0; at < data.size(); at += view_.half_bytes) {
    const size_t n = std::min(view_.half_bytes, data.size() - at);
    RETURN_IF_ERROR(BeginRound(op));
    if (root == rank()) std::memcpy(Staging(root), data.data() + at, n);
    RETURN_IF_ERROR(FinishRound());
    if (root != rank()) std::memcpy(data.data() + at, Staging(root), n);
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Collective>> AttachShmCollective(const Segment* segment,
                                                          const ShmCollectiveOptions& options) {
  ASSIGN_OR_RETURN(const CollectiveView view, CheckCollective(*segment));
  if (options.rank >= view.ranks)
    return absl::InvalidArgumentError(
        absl::StrCat("collective: rank ", options.rank, " of ", view.ranks));
  return std::unique_ptr<Collective>(std::make_unique<ShmCollective>(view, options));
}

}  // namespace flotilla
