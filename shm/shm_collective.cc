// ShmCollective: every operation is a sequence of rounds, and a round is one synchronisation.
//
// Round n of a rank: write its piece into half n % 2 of its staging buffer, publish n in its flag,
// wait until every peer has published n, read the peers' pieces. A peer that has published n has
// finished with round n - 1, so when a rank begins round n + 1, nobody touches its half of round
// n - 1 any more and it may write there. All ranks wait for all in each round, also where data
// flows one way only; that is what makes two halves enough.
//
// Between a round and the next, a staged byte that has one reader belongs to it: the reader writes
// there too, for the sake of the caches (cache_lines.h) or to leave a sum for the owner. That is
// each byte between two ranks, and each chunk of a large all-reduce.
//
// Epochs: Reset publishes (epoch, 0) and waits until all peers are there. A rank that is in the new
// epoch touches nothing of the old one, so the first write into a staging buffer happens after the
// last old one. A survivor still in the old epoch meets a flag of a newer epoch: Aborted.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "shm/cache_lines.h"
#include "shm/collective.h"
#include "shm/collective_layout.h"
#include "shm/memory_order.h"
#include "shm/points.h"
#include "shm/spin.h"

namespace flotilla {
namespace {

constexpr int64_t kBeatNs = 100 * kNsPerMs;

// Rounds wrap from the last one to 2: odd and even still alternate, and 0 keeps its meaning.
// Up to kOneRoundBytes, an all-reduce is one round: latency counts, and a round may be a wake-up.
#ifdef FLOTILLA_SHM_POINTS  // tests see the wrap, and both ways with their small buffers
constexpr uint32_t kLastRound = 31;
constexpr size_t kOneRoundBytes = 64;
#else
constexpr uint32_t kLastRound = UINT32_MAX;
constexpr size_t kOneRoundBytes = 2048;
#endif
static_assert(kLastRound % 2 == 1);
uint32_t NextRound(uint32_t round) { return round == kLastRound ? 2 : round + 1; }

enum class OpKind : uint64_t { kAllReduce = 1, kAllGather, kGather, kBroadcast, kBarrier };

// Peers compare it: two ranks in different operations must not take each other's bytes.
uint64_t OpTag(OpKind kind, uint32_t root, uint64_t bytes) {
  return static_cast<uint64_t>(kind) << 56 | uint64_t{root & 0xff} << 48 |
         (bytes & ((uint64_t{1} << 48) - 1));
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
  // Copies a peer's staged piece.
  void Receive(uint32_t from, size_t bytes, std::byte* out) const;
  Status ReduceInOneRound(uint64_t op, std::span<float> data);
  Status ReduceInTwoRounds(uint64_t op, std::span<float> data);
  // Moves on to the next round; the caller then fills Staging(rank()).
  Status BeginRound(uint64_t op);
  // Shows the peers what is there.
  void PublishRound();
  // Waits for all peers' pieces.
  Status AwaitRound();
  Status FinishRound() {
    PublishRound();
    return AwaitRound();
  }
  std::byte* Staging(uint32_t rank) const { return view_.Half(rank, round_ % 2); }
  float* FloatStaging(uint32_t rank) const { return reinterpret_cast<float*>(Staging(rank)); }

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
  return OkStatus();
}

void ShmCollective::PublishRound() {
  FLOTILLA_SHM_POINT();
  // Not earlier: it shares a line with the flag, at which peers may be looking already.
  own_->op[round_ % 2].store(op_, std::memory_order_relaxed);
  FLOTILLA_SHM_POINT();
  Publish(uint64_t{epoch_} << 32 | round_);
}

Status ShmCollective::AwaitRound() {
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
  Status status = WaitForPeers();
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
  for (size_t at = 0; at < data.size(); at += piece) {
    const std::span<float> part = data.subspan(at, std::min(piece, data.size() - at));
    RETURN_IF_ERROR(part.size_bytes() <= kOneRoundBytes ? ReduceInOneRound(op, part)
                                                        : ReduceInTwoRounds(op, part));
  }
  return OkStatus();
}

// Everyone adds everything.
Status ShmCollective::ReduceInOneRound(uint64_t op, std::span<float> data) {
  RETURN_IF_ERROR(BeginRound(op));
  std::memcpy(Staging(rank()), data.data(), data.size_bytes());
  RETURN_IF_ERROR(FinishRound());
  const float* parts[kMaxRanks];
  for (uint32_t r = 0; r < size(); ++r) parts[r] = r == rank() ? data.data() : FloatStaging(r);
  float* outs[2] = {data.data()};
  size_t num_outs = 1;
  if (size() == 2) outs[num_outs++] = FloatStaging(1 - rank());  // its only reader takes it
  SumInOrder({parts, size()}, {outs, num_outs}, data.size());
  return OkStatus();
}

// Rank r adds the r-th chunk of everyone, and puts the sums where the summands were: so every line
// of staging has one reader at a time, which is also the next to write to it.
Status ShmCollective::ReduceInTwoRounds(uint64_t op, std::span<float> data) {
  constexpr size_t kLineFloats = kCacheLineBytes / sizeof(float);
  const size_t lines = (data.size() + kLineFloats - 1) / kLineFloats;
  const auto begin_of = [&](uint32_t r) {
    return std::min(data.size(), lines * r / size() * kLineFloats);
  };
  const size_t begin = begin_of(rank()), end = begin_of(rank() + 1);

  RETURN_IF_ERROR(BeginRound(op));
  float* const staged = FloatStaging(rank());
  std::memcpy(staged, data.data(), begin * sizeof(float));
  std::memcpy(staged + end, data.data() + end, (data.size() - end) * sizeof(float));
  RETURN_IF_ERROR(FinishRound());
  const float* parts[kMaxRanks];
  float* outs[kMaxRanks];
  for (uint32_t r = 0; r < size(); ++r) {
    outs[r] = (r == rank() ? data.data() : FloatStaging(r)) + begin;
    parts[r] = outs[r];
  }
  FLOTILLA_SHM_POINT();
  SumInOrder({parts, size()}, {outs, size()}, end - begin);

  RETURN_IF_ERROR(BeginRound(op));
  RETURN_IF_ERROR(FinishRound());
  std::memcpy(data.data(), staged, begin * sizeof(float));
  std::memcpy(data.data() + end, staged + end, (data.size() - end) * sizeof(float));
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

  const uint64_t op = OpTag(kind, root, total);
  for (size_t at = 0; at < longest; at += view_.half_bytes) {
    const auto piece = [&](uint32_t r) {
      return at < counts[r] ? std::min(view_.half_bytes, counts[r] - at) : 0;
    };
    RETURN_IF_ERROR(BeginRound(op));
    const size_t own = piece(rank());
    if (own > 0) std::memcpy(Staging(rank()), in.data() + at, own);
    PublishRound();
    if (receives && own > 0 && in.data() != out.data() + begin[rank()])
      std::memcpy(out.data() + begin[rank()] + at, in.data() + at, own);
    RETURN_IF_ERROR(AwaitRound());
    for (uint32_t r = 0; receives && r < size(); ++r)
      if (r != rank()) Receive(r, piece(r), out.data() + begin[r] + at);
  }
  return OkStatus();
}

void ShmCollective::Receive(uint32_t from, size_t bytes, std::byte* out) const {
  if (bytes == 0) return;
  if (size() == 2) {
    TakeBytes(Staging(from), bytes, out);  // we are its only reader
  } else {
    std::memcpy(out, Staging(from), bytes);
  }
}

Status ShmCollective::Broadcast(std::span<std::byte> data, uint32_t root) {
  if (root >= size()) return absl::InvalidArgumentError("collective: no such root");
  const uint64_t op = OpTag(OpKind::kBroadcast, root, data.size());
  for (size_t at = 0; at < data.size(); at += view_.half_bytes) {
    const size_t n = std::min(view_.half_bytes, data.size() - at);
    RETURN_IF_ERROR(BeginRound(op));
    if (root == rank()) std::memcpy(Staging(root), data.data() + at, n);
    RETURN_IF_ERROR(FinishRound());
    if (root != rank()) Receive(root, n, data.data() + at);
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
