// Attention alone beside its limit, for each instruction set and type of KV cache: one long
// prefill, many sequences of one token, one long sequence of one token; the heads are
// SmolLM2-135M's.
//
// The limit is the longer of reading K and V once and of the fp32 multiplications, at what this
// machine reads and multiplies, measured in alternation. With one thread times are that thread's
// CPU time, so that a busy machine disturbs little; with more they are the clock's.
//
// Run: build/release/bench/attention_bench [threads] [kv heads] [query heads a kv head] [head dim]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/worker_proc/kernel_cases.h"
#include "worker_proc/bench/bench_batches.h"
#include "worker_proc/bench/cpu_limits.h"
#include "worker_proc/bench/roofline_model.h"
#include "worker_proc/cpu/cpu_backend.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/isa.h"

namespace flotilla::bench {
namespace {

constexpr size_t kCacheBytes = size_t{192} << 20;  // of all layers: more than the caches hold
constexpr uint32_t kPasses = 7;
constexpr double kPassSeconds = 0.05;
constexpr uint32_t kMaxTokens = 512;

struct Setup {
  uint32_t threads = 1, kv_heads = 3, group = 3, dim = 64;
};
struct KvName {
  cpu::KvType type;
  const char* name;
};
constexpr KvName kKvNames[] = {{cpu::KvType::kFloat32, "float32"},
                               {cpu::KvType::kBFloat16, "bfloat16"},
                               {cpu::KvType::kInt8, "int8"}};
struct Case {
  const char* name;
  std::vector<SequenceSize> sequences;
};

double Now(uint32_t threads) {
  timespec time;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// A backend with nothing but a KV cache and a step's tensors.
class AttentionBench {
 public:
  AttentionBench(const Setup& setup, const std::string& isa, cpu::KvType type)
      : setup_(setup), type_(type) {
    CpuBackendOptions options;
    options.kernels = *cpu::SelectKernels(isa);
    options.quant_kernels = *cpu::SelectQuantKernels(isa);
    options.kv_cache_dtype = type;
    options.threads = {setup.threads, setup.threads > 1 ? 50'000 : 0};
    backend_ = MakeCpuBackend(options);
    layer_.num_heads = setup.kv_heads * setup.group;
    layer_.num_kv_heads = setup.kv_heads;
    layer_.qk_dim = layer_.v_dim = setup.dim;
    layer_.scale = 0.125f;
    qkv_ = *backend_->NewTensor(TensorUse::kHidden, kMaxTokens, layer_.qkv_cols());
    out_ = *backend_->NewTensor(TensorUse::kHidden, kMaxTokens, layer_.num_heads * setup.dim);
    CHECK_OK(backend_->Warmup({kMaxTokens, 64, 8192, kPageSize}));
  }

  // Best of several passes over all layers, a layer's seconds; the work of one layer.
  double Run(const Case& c, LimitMeter* meter, Work* work) {
    const uint32_t pages = PagesOf(c.sequences);
    KvCacheShape shape{1, kPageSize, setup_.kv_heads, setup_.dim, setup_.dim};
    const uint64_t layer_bytes = backend_->KvPageBytes(shape) * pages;
    shape.num_layers = static_cast<uint32_t>(std::max<uint64_t>(1, kCacheBytes / layer_bytes));
    CHECK_OK(backend_->AllocateKvCache(shape, pages));
    Fill(shape.num_layers, pages);
    const ForwardBatch batch = MakeBatch(c.sequences);
    const AttentionContext context = backend_->BeginStep(batch);
    const uint64_t key_bytes = cpu::KvRowBytes(type_, setup_.dim) * 2;
    *work = AttentionWorkOf({layer_.num_heads, setup_.kv_heads, setup_.dim, setup_.dim, key_bytes},
                            c.sequences);
    double best = 1e9;
    for (uint32_t pass = 0; pass < kPasses; ++pass) {
      meter->Pass();
      const double start = Now(setup_.threads);
      for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
        if (layer > 0 && Now(setup_.threads) - start > kPassSeconds) break;
        layer_.layer = layer;
        const double begin = Now(setup_.threads);
        backend_->RaggedPagedAttention(layer_, context, qkv_.First(batch.num_tokens),
                                       out_.First(batch.num_tokens));
        best = std::min(best, Now(setup_.threads) - begin);
      }
    }
    return best;
  }

 private:
  void Fill(uint32_t layers, uint32_t pages) {
    const auto values = cpu::testing::RandomFloats(size_t{kMaxTokens} * qkv_.cols, 1);
    std::copy(values.begin(), values.end(), cpu::F32(qkv_));
    RopeSpec spec;
    spec.dim = setup_.dim;
    spec.max_positions = 1;
    const auto rope = *backend_->MakeRope(spec);  // of position 0: no rotation
    for (uint32_t begin = 0; begin < pages * kPageSize; begin += kMaxTokens) {
      const uint32_t tokens = std::min(kMaxTokens, pages * kPageSize - begin);
      const ForwardBatch batch = MakeFillBatch(begin, tokens, 1);
      const AttentionContext context = backend_->BeginStep(batch);
      for (uint32_t layer = 0; layer < layers; ++layer) {
        layer_.layer = layer;
        backend_->RopeAndWriteKv({*rope, layer_}, context, qkv_.First(tokens));
      }
    }
  }

  const Setup setup_;
  const cpu::KvType type_;
  std::unique_ptr<Backend> backend_;
  AttentionLayer layer_;
  Tensor qkv_, out_;
};

std::vector<Case> Cases() {
  return {{"prefill 512 at 8192", {{512, 8192}}},
          {"prefill 512 at 512", {{512, 512}}},
          {"decode 64 at 1024", std::vector<SequenceSize>(64, {1, 1024})},
          {"decode 64 at 192", std::vector<SequenceSize>(64, {1, 192})},
          {"decode 1 at 8192", {{1, 8192}}}};
}

void RunIsa(const Setup& setup, const std::string& isa) {
  auto meter = LimitMeter::Create(isa, {setup.threads, 0}, false);
  CHECK_OK(meter.status());
  for (const KvName& kv : kKvNames) {
    AttentionBench bench(setup, isa, kv.type);
    for (const Case& c : Cases()) {
      meter->Begin();
      Work work;
      const double seconds = bench.Run(c, &*meter, &work);
      const Limit limit = LimitOf(work, meter->all());
      std::printf("%-8s %-9s %-20s %10.1f us, limit %10.1f (%s) %4.0f %%\n", isa.c_str(), kv.name,
                  c.name, seconds * 1e6, limit.seconds * 1e6, limit.bound,
                  100 * limit.seconds / seconds);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace flotilla::bench

int main(int argc, char** argv) {
  flotilla::bench::Setup setup;
  uint32_t* const fields[] = {&setup.threads, &setup.kv_heads, &setup.group, &setup.dim};
  for (int i = 1; i < argc && i <= 4; ++i) {
    *fields[i - 1] = static_cast<uint32_t>(std::max(1, std::atoi(argv[i])));
  }
  for (const std::string& isa : flotilla::cpu::SupportedIsas()) {
    if (isa != "reference") flotilla::bench::RunIsa(setup, isa);
  }
}
