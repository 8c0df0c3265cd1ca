// All-reduce and all-gather between the ranks of a replica, at the sizes that a model of hidden
// size 576 exchanges, beside the memcpy that moves as many bytes.
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "shm/collective.h"
#include "shm/spin.h"
#include "tests/bench/shm_bench.h"

namespace flotilla {
namespace {

constexpr size_t kStagingBytes = 1 << 20;  // as the launcher's
constexpr size_t kLargeBytes = 256 << 10;
constexpr size_t kSmallBytes = 2 << 10;
constexpr int64_t kSpinNs = 200 * kNsPerUs;
constexpr uint32_t kMaxTp = 16;

// Memory as a backend's: tensors begin on a cache line.
template <typename T>
struct LineAllocator {
  using value_type = T;
  T* allocate(size_t n) { return static_cast<T*>(operator new(n * sizeof(T), kAlign)); }
  void deallocate(T* memory, size_t) { operator delete(memory, kAlign); }
  bool operator==(const LineAllocator&) const { return true; }
  static constexpr std::align_val_t kAlign{64};
};
using AlignedFloats = std::vector<float, LineAllocator<float>>;
using AlignedBytes = std::vector<std::byte, LineAllocator<std::byte>>;

// What two cores cost each other: a word there and back.
struct Lines {
  alignas(128) std::atomic<uint32_t> there;
  alignas(128) std::atomic<uint32_t> back;
};

// One rank: all ranks run the same measurements in the same order, rank 0 reports.
class Rank {
 public:
  Rank(uint32_t rank, const ShmBenchOptions& bench, const Segment* collective,
       const Segment* mailboxes)
      : rank_(rank),
        tp_(bench.tp),
        round_ns_(bench.round_ns),
        mailboxes_(static_cast<std::byte*>(mailboxes->data())) {
    ShmCollectiveOptions options;
    options.rank = rank;
    options.wait.spin_ns = bench.Fits(tp_) ? kSpinNs : 0;
    auto attached = AttachShmCollective(collective, options);
    CHECK_OK(attached.status());
    collective_ = std::move(*attached);
    CHECK_OK(collective_->Reset(1));
  }

  // The time of op(), with before() untimed ahead of each. Rank 0 ends the round when it is over.
  std::vector<int64_t> Measure(int iterations, const std::function<void()>& before,
                               const std::function<void()>& op) {
    std::vector<int64_t> samples;
    const int batch = std::max(iterations / 10, 1);
    const int64_t over_ns = RealClock::Now() + round_ns_;
    std::byte more{1};
    for (int b = 0; b < 11 && more != std::byte{0}; ++b) {
      for (int i = 0; i < batch; ++i) {
        if (before) before();
        const int64_t begin_ns = RealClock::Now();
        op();
        if (b > 0) samples.push_back(RealClock::Now() - begin_ns);  // the first batch warms up
      }
      more = std::byte{samples.empty() || RealClock::Now() < over_ns};
      CHECK_OK(collective_->Broadcast({&more, 1}, 0));
    }
    return samples;
  }

  std::vector<int64_t> PingPong(int iterations, Lines* lines) {
    uint32_t turn = 0;
    lines->there.store(0);
    lines->back.store(0);
    CHECK_OK(collective_->Barrier());
    return Measure(iterations, nullptr, [&] {
      ++turn;
      if (rank_ == 0) lines->there.store(turn);
      if (rank_ == 1) {
        while (lines->there.load() != turn) CpuRelax();
        lines->back.store(turn);
      }
      while (rank_ == 0 && lines->back.load() != turn) CpuRelax();
    });
  }

  std::vector<int64_t> AllReduce(int iterations, size_t bytes) {
    AlignedFloats memory(bytes / sizeof(float), 1.0f);
    const std::span<float> data(memory);
    CHECK_OK(collective_->AllReduceSum(data));
    for (const float sum : data) CHECK(sum == static_cast<float>(tp_));
    std::fill(data.begin(), data.end(),
              0.0f);  // a sum that stays as it is however often it is formed
    return Measure(iterations, nullptr, [&] { CHECK_OK(collective_->AllReduceSum(data)); });
  }

  std::vector<int64_t> AllGather(int iterations, std::span<const size_t> counts) {
    const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
    AlignedBytes in(counts[rank_], static_cast<std::byte>(rank_)), out(total);
    return Measure(iterations, nullptr, [&] { CHECK_OK(collective_->AllGather(in, counts, out)); });
  }

  std::vector<int64_t> Barrier(int iterations) {
    return Measure(iterations, nullptr, [&] { CHECK_OK(collective_->Barrier()); });
  }

  // memcpy out of private into shared memory, both in this core's cache.
  std::vector<int64_t> WarmCopy(int iterations, size_t bytes) {
    const AlignedBytes from(bytes, std::byte{1});
    return Measure(iterations, nullptr, [&] { std::memcpy(Mailbox(rank_), from.data(), bytes); });
  }

  // memcpy of what another rank has just written into shared memory, to private memory; all ranks
  // at once, as in a collective.
  std::vector<int64_t> PeerCopy(int iterations, size_t bytes) {
    AlignedBytes to(bytes);
    int turn = 0;
    return Measure(
        iterations,
        [&] {
          CHECK_OK(collective_->Barrier());  // the last copy is over
          std::memset(Mailbox(rank_), ++turn & 0xff, bytes);
          CHECK_OK(collective_->Barrier());
        },
        [&] { std::memcpy(to.data(), Mailbox((rank_ + 1) % tp_), bytes); });
  }

 private:
  std::byte* Mailbox(uint32_t rank) const { return mailboxes_ + rank * kLargeBytes; }

  const uint32_t rank_, tp_;
  const int64_t round_ns_;
  std::byte* const mailboxes_;
  std::unique_ptr<Collective> collective_;
};

struct Gather {
  const char* name;
  size_t unit_bytes;  // what is not divided between ranks
  size_t units;       // a token
};
constexpr Gather kGathers[] = {
    {"576 f32", 4, 576},
    {"9 heads of 64 in 3 groups, quantised", 3 * 2 * 40, 3},
    {"1536 quantised", 40, 48},
};
constexpr uint32_t kTokens[] = {1, 8, 32};

std::vector<size_t> Counts(const Gather& gather, uint32_t tokens, uint32_t tp) {
  std::vector<size_t> counts(tp);
  for (uint32_t r = 0; r < tp; ++r) {
    // The first ranks take one more: 3 groups become 2 + 1.
    const size_t units = gather.units / tp + (r < gather.units % tp);
    counts[r] = units * gather.unit_bytes * tokens;
  }
  return counts;
}

struct Results {
  Rounds lines, barrier, warm, peer, small, large;
  Rounds gathers[std::size(kGathers)][std::size(kTokens)];
  Rounds copies[std::size(kGathers)][std::size(kTokens)];
};

void RunRank(Rank* rank, const ShmBenchOptions& options, Lines* lines, Results* results) {
  const int fast = options.iterations, slow = std::max(options.iterations / 5, 100);
  for (int round = 0; round < options.rounds; ++round) {
    if (options.Fits(options.tp)) results->lines.Add(rank->PingPong(fast, lines));
    results->barrier.Add(rank->Barrier(fast));
    results->small.Add(rank->AllReduce(fast, kSmallBytes));
    results->warm.Add(rank->WarmCopy(slow, kLargeBytes));
    results->peer.Add(rank->PeerCopy(slow, kLargeBytes));
    results->large.Add(rank->AllReduce(slow, kLargeBytes));
    for (size_t g = 0; g < std::size(kGathers); ++g) {
      for (size_t t = 0; t < std::size(kTokens); ++t) {
        const auto counts = Counts(kGathers[g], kTokens[t], options.tp);
        results->gathers[g][t].Add(rank->AllGather(slow, counts));
        results->copies[g][t].Add(rank->PeerCopy(slow, counts[0]));
      }
    }
  }
}

void ReportAll(const ShmBenchOptions& options, const Results& r, Report* report) {
  const bool judged = options.tp == 2;
  const auto target = [&](Target t) { return judged ? std::optional<Target>(t) : std::nullopt; };
  if (options.Fits(options.tp))
    report->Add({"a word there and back (how near the cores are): p50",
                 r.lines.P50Us(),
                 "us",
                 {},
                 r.lines.Note()});
  report->Add({"barrier: p50", r.barrier.P50Us(), "us", {}, r.barrier.Note()});
  report->Add(
      {"all-reduce of 2 KiB: p50", r.small.P50Us(), "us", target(AtMost(5)), r.small.Note()});
  report->Add({"all-reduce of 256 KiB: p50", r.large.P50Us(), "us", {}, r.large.Note()});
  report->Add(
      {"memcpy of 256 KiB, private to shared, warm: p50", r.warm.P50Us(), "us", {}, r.warm.Note()});
  report->Add({"  all-reduce has of its rate", 100 * r.warm.P50Us() / r.large.P50Us(), "%",
               target(AtLeast(40)), ""});
  report->Add(
      {"memcpy of 256 KiB that the peer just wrote: p50", r.peer.P50Us(), "us", {}, r.peer.Note()});
  report->Add({"  all-reduce has of its rate", 100 * r.peer.P50Us() / r.large.P50Us(), "%",
               target(AtLeast(40)), ""});
  for (size_t g = 0; g < std::size(kGathers); ++g) {
    for (size_t t = 0; t < std::size(kTokens); ++t) {
      const Rounds& copy = r.copies[g][t];
      report->Add({StrCat("all-gather ", kGathers[g].name, " x ", kTokens[t], ": p50"),
                   r.gathers[g][t].P50Us(),
                   "us",
                   {},
                   StrCat(r.gathers[g][t].Note(), "; memcpy of the peer's share ",
                          static_cast<int>(copy.P50Us() * 1e3), " ns")});
    }
  }
}

}  // namespace

void RunCollectives(const ShmBenchOptions& options, Report* report) {
  const uint32_t tp = options.tp;
  report->Section(StrCat("collectives at TP ", tp));
  if (!options.Fits(tp))
    report->Note(StrCat(tp, " ranks on ", options.cores.size(), " cores: they sleep"));
  const Segment collective =
      *Segment::Create("bench-collective", CollectiveSegmentBytes(tp, kStagingBytes));
  CHECK_OK(InitCollective(collective, tp, kStagingBytes));
  const Segment mailboxes = *Segment::Create("bench-mailboxes", kMaxTp * kLargeBytes);
  SharedValue<Lines> lines;
  const auto run = [&](uint32_t r, Results* results) {
    Rank rank(r, options, &collective, &mailboxes);
    RunRank(&rank, options, &*lines, results);
  };
  std::vector<std::unique_ptr<BenchProcess>> peers;
  for (uint32_t r = 1; r < tp; ++r) {
    peers.push_back(std::make_unique<BenchProcess>(options.Core(r, tp), [&, r] {
      Results ignored;
      run(r, &ignored);
    }));
  }
  Results results;
  const ScopedPin pin(options.Core(0, tp));
  run(0, &results);
  for (const auto& peer : peers) peer->Join();
  ReportAll(options, results, report);
}

}  // namespace flotilla
