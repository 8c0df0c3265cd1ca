#include "worker_proc/bench/cpu_limits.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "worker_proc/cpu/tile_blocks.h"

namespace flotilla::bench {
namespace {

constexpr int64_t kRounds = 40'000;  // some 60 us: seldom interrupted
constexpr int kLoopRuns = 3;         // of each loop, a pass
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr size_t kPieces = 2;  // that a thread reads beside others at a time
constexpr size_t kMinPassBytes = size_t{32} << 20;
constexpr size_t kMaxPassBytes = size_t{512} << 20;

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Ordinary C++ would let the compiler keep accumulators in memory, and this file is compiled for
// any x86-64. Ten chains hide the latency; where a product is added by a second instruction, the
// sum depends on it, as in any use (independent ones would run a fifth faster on Zen: the additions
// would not compete for the multipliers' pipes).
#define CLOBBERS                                                                           \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"
#define LOOP(body)                                                                         \
  [](int64_t n) {                                                                          \
    asm volatile("vpxor %%xmm15, %%xmm15, %%xmm15\n1:\n" body "dec %0\njnz 1b\nvzeroupper" \
                 : "+r"(n)                                                                 \
                 :                                                                         \
                 : CLOBBERS);                                                              \
  }
#define TEN(STEP) STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9)
#define VNNI(i) "vpdpbusd %%zmm15, %%zmm15, %%zmm" #i "\n"
#define BF16(i) "vdpbf16ps %%zmm15, %%zmm15, %%zmm" #i "\n"
#define FMA512(i) "vfmadd231ps %%zmm15, %%zmm15, %%zmm" #i "\n"
#define FMA256(i) "vfmadd231ps %%ymm15, %%ymm15, %%ymm" #i "\n"
#define PAIRS16(i) \
  "vpmaddubsw %%ymm15, %%ymm15, %%ymm14\nvpaddw %%ymm14, %%ymm" #i ", %%ymm" #i "\n"
#define PAIRS32(i)                                                                            \
  "vpmaddubsw %%ymm15, %%ymm15, %%ymm14\nvpmaddwd %%ymm15, %%ymm14, %%ymm14\nvpaddd %%ymm14," \
  "%%ymm" #i ", %%ymm" #i "\n"

// Products of tiles as the kernels multiply them. One takes the time of a good many steps, and
// counts as that many.
constexpr int kTileSteps = 32;
constexpr uint32_t kTileMacs = cpu::kTileSums * cpu::kQuantBlock;
void TileLoop(int64_t n) {
  int64_t fours = n * kLoopSteps / kTileSteps / 4;
  asm volatile(
      "ldtilecfg %1\n1:\n"
      "tdpbssd %%tmm6, %%tmm4, %%tmm0\ntdpbssd %%tmm6, %%tmm4, %%tmm1\n"
      "tdpbssd %%tmm6, %%tmm4, %%tmm2\ntdpbssd %%tmm6, %%tmm4, %%tmm3\n"
      "dec %0\njnz 1b\ntilerelease"
      : "+r"(fours)
      : "m"(cpu::kTileConfig)
      : "cc");
}

// Reads every line of [data, data + bytes) once, in four streams.
void ReadPiece(const std::byte* data, size_t bytes) {
  const size_t stream = bytes / 4 / 64 * 64;
  uint64_t sum = 0;
  for (size_t i = 0; i < stream; i += 64) {
    for (int s = 0; s < 4; ++s) {
      // One load a line moves the whole line.
      uint64_t word;
      std::memcpy(&word, data + s * stream + i, sizeof(word));
      sum += word;
    }
  }
  asm volatile("" : : "r"(sum));
}

// What a pass must read to leave nothing else in the caches.
size_t PassBytes(uint32_t threads) {
  const long l2 = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L);
  const long l3 = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
  const size_t caches = static_cast<size_t>(l3) + static_cast<size_t>(l2) * threads;
  return std::clamp(caches * 3 / 2, kMinPassBytes, kMaxPassBytes);
}

struct Span {
  std::chrono::steady_clock::time_point begin, end;
  double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
};

double BestRate(const PeakLoops::Kind& kind) {
  if (kind.loop == nullptr) return 0;
  double best = 1e9;
  for (int run = 0; run < kLoopRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    kind.loop(kRounds);
    best = std::min(best, Seconds(start));
  }
  return static_cast<double>(kRounds) * kLoopSteps * kind.macs / best;
}

}  // namespace

PeakLoops LoopsOf(std::string_view isa) {
  PeakLoops loops;
  loops.int4 = {LOOP(TEN(PAIRS16)), 32};
  loops.int8 = {LOOP(TEN(PAIRS32)), 32};
  loops.fp32 = {LOOP(TEN(FMA256)), 8};
  if (isa != "avx512" && isa != "amx") return loops;
  loops.fp32 = {LOOP(TEN(FMA512)), 16};
  if (__builtin_cpu_supports("avx512bf16")) loops.bf16 = {LOOP(TEN(BF16)), 32};
  // Without VNNI the integer kernels are AVX2's too (cpu/isa.cc).
  if (__builtin_cpu_supports("avx512vnni")) loops.int4 = loops.int8 = {LOOP(TEN(VNNI)), 64};
  if (isa == "amx") loops.int4 = loops.int8 = {TileLoop, kTileMacs / kTileSteps};
  return loops;
}

LimitMeter::LimitMeter(const PeakLoops& loops, cpu::Buffer memory, size_t pass_bytes,
                       std::unique_ptr<cpu::ThreadPool> pool)
    : loops_(loops), memory_(std::move(memory)), pass_bytes_(pass_bytes), pool_(std::move(pool)) {
  memory_.Touch(pool_.get(), Heartbeat());
}

StatusOr<LimitMeter> LimitMeter::Create(std::string_view isa, const cpu::ThreadPoolOptions& threads,
                                        bool quick) {
  const size_t step = kPieces * kPieceBytes * threads.threads;
  const size_t wanted = quick ? step : PassBytes(threads.threads);
  const size_t pass_bytes = (wanted + step - 1) / step * step;
  // Several passes' worth: the next finds nothing of what this one has read.
  const size_t bytes = quick ? pass_bytes : 4 * pass_bytes;
  ASSIGN_OR_RETURN(cpu::Buffer memory, cpu::Buffer::Create(bytes, "memory to read"));
  return LimitMeter(LoopsOf(isa), std::move(memory), pass_bytes,
                    std::make_unique<cpu::ThreadPool>(threads));
}

// f(worker) on `threads` threads that begin together: one that was asleep is waited for, where the
// pool alone would let others take its share.
template <typename F>
void LimitMeter::Together(uint32_t threads, const F& f) {
  if (threads == 1) return f(0u);
  std::atomic<uint32_t> arrived{0};
  pool_->ParallelFor(threads, 1, [&](uint32_t begin, uint32_t, uint32_t) {
    arrived.fetch_add(1);
    while (arrived.load() < threads) std::this_thread::yield();
    f(begin);
  });
}

void LimitMeter::Read(uint32_t threads, size_t pieces, Peaks* peaks) {
  const size_t bytes = kPieceBytes * pieces * threads;
  if (next_ + bytes > memory_.bytes()) next_ = 0;
  const std::byte* const data = memory_.data() + next_;
  next_ += bytes;
  std::vector<Span> spans(threads);
  Together(threads, [&](uint32_t i) {
    spans[i].begin = std::chrono::steady_clock::now();
    for (size_t p = 0; p < pieces; ++p) {
      ReadPiece(data + (p * threads + i) * kPieceBytes, kPieceBytes);
    }
    spans[i].end = std::chrono::steady_clock::now();
  });
  Span all = spans[0];
  for (const Span& span : spans) {
    all = {std::min(all.begin, span.begin), std::max(all.end, span.end)};
  }
  peaks->read_bytes = std::max(peaks->read_bytes, static_cast<double>(bytes) / all.seconds());
}

// Threads share nothing here: the sum of what each reaches.
void LimitMeter::Compute(uint32_t threads, Peaks* peaks) {
  std::vector<Peaks> each(threads);
  Together(threads, [&](uint32_t i) {
    for (const auto& [kind, peak] :
         {std::pair(&loops_.int4, &Peaks::int4_macs), std::pair(&loops_.int8, &Peaks::int8_macs),
          std::pair(&loops_.bf16, &Peaks::bf16_macs), std::pair(&loops_.fp32, &Peaks::fp32_macs)}) {
      each[i].*peak = BestRate(*kind);
    }
  });
  Peaks sum;
  for (const Peaks& own : each) {
    sum.int4_macs += own.int4_macs;
    sum.int8_macs += own.int8_macs;
    sum.bf16_macs += own.bf16_macs;
    sum.fp32_macs += own.fp32_macs;
  }
  peaks->RaiseTo(sum);
}

void LimitMeter::Pass() {
  const uint32_t threads = pool_->threads();
  Compute(1, &one_);
  for (int i = 0; i < kLoopRuns; ++i) Read(1, 1, &one_);
  Compute(threads, &all_);
  // This empties the caches.
  for (size_t bytes = 0; bytes < pass_bytes_; bytes += kPieces * kPieceBytes * threads) {
    Read(threads, kPieces, &all_);
  }
}

}  // namespace flotilla::bench
