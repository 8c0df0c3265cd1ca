// The CPU backend's integer kernels at SmolLM2-135M's shapes, one thread, each beside the limit
// that this machine showed in the same run.
//
//   build/release/bench/kernels_bench [--benchmark_filter=<regex>]
//
// Names: kernel/table/format/matrix/tokens; for K types 768 takes the place of 576. Columns: GOPS
// (two operations a multiply-accumulate) and peak_% of the int8 peak; GB/s of weights and read_% of
// the read bandwidth, whose passes alternate with the kernel's over the same pool of memory, larger
// than the caches. Times are the best of many runs: others may use the machine too.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/bench/cpu_limits.h"
#include "tests/worker_proc/quant_cases.h"
#include "worker_proc/cpu/buffer.h"

namespace flotilla::bench {
namespace {

using cpu::ActBlock;
using cpu::Buffer;
using cpu::kPanelRows;
using cpu::kQuantBlock;
using cpu::QuantFormat;
using cpu::QuantKernelTable;

constexpr size_t kPoolBytes = size_t{128} << 20;
constexpr size_t kPassBytes = size_t{4} << 20;  // short enough to be seldom interrupted
constexpr double kPassMacs = 1.5e8;
constexpr uint32_t kTokens[] = {1, 4, 8, 32, 128, 512};

struct Matrix {
  const char* name;
  uint32_t out;
  uint32_t in;
  bool gate_up;  // with SiLU and requantisation
};
const Matrix kMatrices[] = {{"qkv", 960, 576, false},
                            {"o", 576, 576, false},
                            {"gate_up", 3072, 576, true},
                            {"down", 576, 1536, false},
                            {"head/8", 6144, 576, false}};

// Memory much larger than the caches. One half holds the same matrix over and over, so that each
// use finds it in memory, as a step of the model does; the other half is for measuring reads.
class Pool {
 public:
  Pool() {
    auto buffer = Buffer::Create(2 * kPoolBytes, "the pool");
    CHECK(buffer.ok());
    buffer_ = *std::move(buffer);
    cpu::ThreadPool threads;
    buffer_.Touch(&threads, Heartbeat());
  }
  void Fill(const std::vector<uint8_t>& packed) {
    matrix_bytes_ = packed.size();
    copies_ = kPoolBytes / matrix_bytes_;
    for (size_t i = 0; i < copies_; ++i) {
      std::memcpy(data() + i * matrix_bytes_, packed.data(), matrix_bytes_);
    }
  }
  const uint8_t* Next() {
    next_ = (next_ + 1) % copies_;
    return data() + next_ * matrix_bytes_;
  }
  double ReadPassSeconds() {
    read_ = (read_ + kPassBytes) % kPoolBytes;
    return ReadSeconds(data() + kPoolBytes + read_, kPassBytes);
  }

 private:
  uint8_t* data() { return reinterpret_cast<uint8_t*>(buffer_.data()); }
  Buffer buffer_;
  size_t matrix_bytes_ = 0;
  size_t copies_ = 0;
  size_t next_ = 0;
  size_t read_ = 0;
};

struct Context {
  CpuLimits limits;
  Pool pool;
};

// With AVX2, 5 and 6 bits are held against what 4 bits could reach, though their sums in 16 bits
// must be widened more often.
double PeakMacs(const CpuLimits& limits, const QuantKernelTable& table, const QuantFormat& format) {
  if (&table == &cpu::Avx512QuantKernels()) return limits.vnni512_macs;
  return format.bits < 8 ? limits.avx2_4bit_macs : limits.avx2_8bit_macs;
}

struct MatrixRun {
  const QuantKernelTable* table;
  const Matrix* matrix;
  QuantFormat format;
  uint32_t tokens;
  std::vector<ActBlock> x;
  std::vector<float> y;
  std::vector<ActBlock> acts;

  // Panels, or blocks of columns with their gate and up.
  uint32_t units() const { return matrix->out / (matrix->gate_up ? 2 * kQuantBlock : kPanelRows); }
  void Call(const uint8_t* weight, uint32_t begin, uint32_t end) {
    const uint32_t blocks = matrix->in / kQuantBlock;
    if (matrix->gate_up) {
      const uint32_t columns = matrix->out / 2;
      table->gate_up({format, weight, matrix->in, columns, x.data(), blocks, tokens, acts.data(),
                      columns / kQuantBlock, begin, end});
    } else {
      table->gemm({format, weight, matrix->in, matrix->out, x.data(), blocks, tokens, y.data(),
                   matrix->out, begin, end});
    }
  }
};

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void RunMatrix(benchmark::State& state, Context& context, const QuantKernelTable* table,
               const Matrix& named, DType dtype) {
  Matrix fitted = named;
  fitted.in = cpu::testing::WholeBlocks(dtype, named.in);
  const Matrix* const matrix = &fitted;
  const auto tokens = static_cast<uint32_t>(state.range(0));
  const auto tensor = cpu::testing::RandomTensor(dtype, matrix->out, matrix->in, 1);
  const std::vector<uint8_t> packed = cpu::testing::PackAll(tensor->view);
  context.pool.Fill(packed);
  MatrixRun run{table,
                matrix,
                *cpu::QuantFormatOf(dtype),
                tokens,
                cpu::testing::RandomActs(tokens, matrix->in, 2),
                std::vector<float>(size_t{tokens} * matrix->out),
                std::vector<ActBlock>(size_t{tokens} * matrix->out / 2 / kQuantBlock)};
  // Passes short enough to be seldom interrupted: several calls, or a share of one.
  const double macs = static_cast<double>(tokens) * matrix->out * matrix->in;
  const size_t calls = std::max<size_t>(
      1, std::min(kPassBytes / packed.size(), static_cast<size_t>(kPassMacs / macs)));
  const uint32_t units = run.units();
  const uint32_t share =
      std::clamp(static_cast<uint32_t>(units * kPassMacs / macs), std::min(units, 8u), units);
  double best = 1e9;
  double best_read = 1e9;
  uint32_t begin = 0;
  for ([[maybe_unused]] auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < calls; ++i) run.Call(context.pool.Next(), begin, begin + share);
    const double seconds = Seconds(start);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds * units / static_cast<double>(calls * share));
    begin = begin + 2 * share <= units ? begin + share : 0;
    if (tokens <= 8) best_read = std::min(best_read, context.pool.ReadPassSeconds());
  }
  const double bandwidth = static_cast<double>(packed.size()) / best;
  state.counters["us"] = best * 1e6;
  state.counters["GOPS"] = 2e-9 * macs / best;
  state.counters["peak_%"] = 100 * macs / best / PeakMacs(context.limits, *table, run.format);
  if (tokens <= 8) {
    state.counters["GB/s"] = bandwidth * 1e-9;
    state.counters["read_%"] = 100 * bandwidth * best_read / static_cast<double>(kPassBytes);
  }
}

// What lies between the matrices: ns a token.
void RunElementwise(benchmark::State& state, const QuantKernelTable* table, uint32_t cols,
                    bool norm) {
  const auto tokens = static_cast<uint32_t>(state.range(0));
  const std::vector<float> x = cpu::testing::RandomFloats(size_t{tokens} * cols, 1);
  const std::vector<float> weight = cpu::testing::RandomFloats(cols, 2);
  std::vector<float> residual(x.size());
  std::vector<ActBlock> out(x.size() / kQuantBlock);
  double best = 1e9;
  for ([[maybe_unused]] auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    if (norm) {
      table->rms_norm({x.data(), residual.data(), weight.data(), 1e-5f, tokens, cols, out.data()});
    } else {
      table->quantize(x.data(), tokens, cols, out.data());
    }
    const double seconds = Seconds(start);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["ns/token"] = best * 1e9 / tokens;
  state.counters["values/ns"] = static_cast<double>(tokens) * cols / best * 1e-9;
}

template <typename Function>
void Register(const std::string& name, const Function& function) {
  auto* registered = benchmark::RegisterBenchmark(name.c_str(), function)
                         ->UseManualTime()
                         ->Unit(benchmark::kMicrosecond)
                         ->MinTime(0.1);
  for (uint32_t tokens : kTokens) registered->Arg(tokens);
}

void RegisterAll(Context& context) {
  for (const QuantKernelTable* table : cpu::testing::AllQuantTables()) {
    if (table == &cpu::ReferenceQuantKernels()) continue;
    const std::string isa = table->name;
    for (DType dtype : cpu::testing::kQuantTypes) {
      for (const Matrix& matrix : kMatrices) {
        Register((matrix.gate_up ? "gate_up_silu/" : "gemm/") + isa + "/" + Traits(dtype).name +
                     "/" + matrix.name,
                 [&context, table, &matrix, dtype](benchmark::State& state) {
                   RunMatrix(state, context, table, matrix, dtype);
                 });
      }
    }
    Register("rms_norm/" + isa + "/576",
             [table](benchmark::State& state) { RunElementwise(state, table, 576, true); });
    Register("quantize/" + isa + "/576",
             [table](benchmark::State& state) { RunElementwise(state, table, 576, false); });
  }
}

void PrintLimits(Context& context) {
  double read = 1e9;
  for (int i = 0; i < 200; ++i) read = std::min(read, context.pool.ReadPassSeconds());
  const CpuLimits& limits = context.limits;
  std::printf("limits of one thread: read %.1f GB/s\n", kPassBytes / read * 1e-9);
  std::printf(
      "  int8 GOPS: vpdpbusd zmm %.0f, vpmaddubsw + vpaddw ymm %.0f (4-bit weights), "
      "+ vpmaddwd %.0f (8-bit)\n",
      2e-9 * limits.vnni512_macs, 2e-9 * limits.avx2_4bit_macs, 2e-9 * limits.avx2_8bit_macs);
  std::printf("  fp32 GFLOPS: vfmadd zmm %.0f, ymm %.0f\n", 2e-9 * limits.avx512_fmas,
              2e-9 * limits.avx2_fmas);
}

}  // namespace
}  // namespace flotilla::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  flotilla::bench::Context context{flotilla::bench::MeasureCpuLimits(), {}};
  flotilla::bench::PrintLimits(context);
  flotilla::bench::RegisterAll(context);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
