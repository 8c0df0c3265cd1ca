#include "tests/bench/cpu_limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace flotilla::bench {
namespace {

constexpr int64_t kRounds = 2000;
constexpr int kRuns = 500;

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename Loop>
double Best(const Loop& loop) {
  double best = 1e9;
  for (int i = 0; i < kRuns; ++i) {
    const auto start = std::chrono::steady_clock::now();
    loop(kRounds);
    best = std::min(best, Seconds(start));
  }
  return best;
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
#define FMA512(i) "vfmadd231ps %%zmm15, %%zmm15, %%zmm" #i "\n"
#define FMA256(i) "vfmadd231ps %%ymm15, %%ymm15, %%ymm" #i "\n"
#define PAIRS16(i) \
  "vpmaddubsw %%ymm15, %%ymm15, %%ymm14\nvpaddw %%ymm14, %%ymm" #i ", %%ymm" #i "\n"
#define PAIRS32(i)                                                                            \
  "vpmaddubsw %%ymm15, %%ymm15, %%ymm14\nvpmaddwd %%ymm15, %%ymm14, %%ymm14\nvpaddd %%ymm14," \
  "%%ymm" #i ", %%ymm" #i "\n"

double Rate(double seconds, int instructions, int macs) {
  return static_cast<double>(kRounds) * instructions * macs / seconds;
}

}  // namespace

CpuLimits MeasureCpuLimits() {
  CpuLimits limits;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni")) {
    limits.vnni512_macs = Rate(Best(LOOP(TEN(VNNI))), 10, 64);
    limits.avx512_fmas = Rate(Best(LOOP(TEN(FMA512))), 10, 16);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    limits.avx2_4bit_macs = Rate(Best(LOOP(TEN(PAIRS16))), 10, 32);
    limits.avx2_8bit_macs = Rate(Best(LOOP(TEN(PAIRS32))), 10, 32);
    limits.avx2_fmas = Rate(Best(LOOP(TEN(FMA256))), 10, 8);
  }
  return limits;
}

double ReadSeconds(const uint8_t* data, size_t bytes) {
  const auto start = std::chrono::steady_clock::now();
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
  return Seconds(start);
}

}  // namespace flotilla::bench
