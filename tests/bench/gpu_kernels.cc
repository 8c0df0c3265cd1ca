// Each kernel of a step on a GPU beside what the GPU could do at most: microseconds in a graph,
// bytes or operations a second, and the share of the limit, which this run measures by a large copy
// and a large matrix product.
//
//   build/cuda/bench/gpu_kernels [filter]        about 20 seconds; Markdown on stdout
// Shapes are Qwen3-0.6B's: 1,024 wide, 16 heads over 8 of keys, of 128 dimensions, 3,072 in the
// feed-forward layer, 151,936 tokens, bfloat16; experts are Qwen3-30B-A3B's. Weights and caches are
// taken from so many places that no cache of the GPU holds them, as in a step. What a kernel reads
// of its inputs again is not counted.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/gpu_bench_device.h"
#include "tests/bench/gpu_expert_kernels.h"
#include "worker_proc/cuda/attention_plan.h"
#include "worker_proc/cuda/device.h"
#include "worker_proc/runner/logits_scan.h"
#include "worker_proc/runner/weight_numbers.h"

namespace flotilla::cuda {
namespace {

constexpr uint32_t kHidden = 1024, kHeads = 16, kKvHeads = 8, kDim = 128, kFfn = 3072,
                   kVocab = 151936;
constexpr uint32_t kPageSize = 16;
constexpr uint64_t kPoolBytes = uint64_t{2} << 30;

class Bench : public BenchDevice {
 public:
  explicit Bench(std::string_view filter) : BenchDevice(filter) {
    weights_ = Filled(kPoolBytes, 0.02f);
    cache_ = Filled(kPoolBytes, 1.0f);
    x_ = Filled(uint64_t{64} << 20, 1.0f);
    for (DeviceBuffer* buffer : {&floats_, &more_floats_}) {
      *buffer = Allocate(uint64_t{512} * kVocab * sizeof(float));
      FillFloats(*buffer);
    }
    out_ = Allocate(uint64_t{512} << 20);
  }

  void Run() {
    Limits();
    Products();
    Attention();
    Small();
    Layers();
    Sampling();
    ExpertRows(this);
  }

 private:
  void Limits() {
    // All weights are read once; what is written is nothing beside them.
    constexpr uint32_t kRows = kPoolBytes / 2 / kHidden;
    const GemvArgs read = {weights_.data(), Element::kBFloat16, kRows, kHidden, x_.data(), nullptr,
                           out_.data(),     Element::kFloat32};
    bytes_a_us_ = static_cast<double>(kPoolBytes) /
                  Microseconds([&](uint32_t) { device_->kernels().gemv(read, device_->stream()); });
    constexpr uint32_t kSide = 8192;
    const GemmArgs large = {{weights_.data(), Element::kBFloat16, kSide, kSide, cache_.data(),
                             nullptr, out_.data(), Element::kBFloat16},
                            kSide,
                            false};
    flops_a_us_ =
        2.0 * kSide * kSide * kSide / Microseconds([&](uint32_t) { device_->Gemm(large); });
    std::printf("%s: 2 GiB are read at %.0f GB/s, matrix products of 8,192 do %.0f TFLOP/s.\n\n",
                device_->name(), bytes_a_us_ * 1e-3, flops_a_us_ * 1e-6);
    std::printf("| | us | | | share |\n|---|---|---|---|---|\n");
  }

  void Products() {
    struct Matrix {
      const char* name;
      uint32_t out, in;
      Element y;
    };
    for (const Matrix& m : {Matrix{"qkv", 4096, 1024, Element::kFloat32},
                            {"o", 1024, 2048, Element::kFloat32},
                            {"gate, up", 6144, 1024, Element::kBFloat16},
                            {"down", 1024, 3072, Element::kFloat32},
                            {"head", kVocab, 1024, Element::kFloat32}}) {
      const uint64_t weight_bytes = uint64_t{2} * m.out * m.in;
      const auto args = [&](uint32_t i) {
        const uint64_t at = i * weight_bytes % (kPoolBytes - weight_bytes) / 256 * 256;
        return GemvArgs{weights_.data() + at,
                        Element::kBFloat16,
                        m.out,
                        m.in,
                        x_.data(),
                        nullptr,
                        m.out == kVocab ? more_floats_.data() : out_.data(),
                        m.y};
      };
      for (const uint32_t rows : {1u, 8u, 16u, 64u, 256u, 4096u}) {
        if (m.out == kVocab && rows > 256) continue;
        const double y_bytes = static_cast<double>(rows) * m.out * ElementBytes(m.y);
        const double bytes = static_cast<double>(weight_bytes) + 2.0 * rows * m.in + y_bytes;
        const double flops = 2.0 * rows * m.out * m.in;
        const std::string what = std::string(m.name) + ", rows: " + std::to_string(rows);
        Row(what, bytes, flops, [&](uint32_t i) { device_->Gemm({args(i), rows, true}); });
        Row(what + ", any algorithm", bytes, flops, [&](uint32_t i) {
          device_->Gemm({args(i), rows, false});
        });
        if (rows <= kSkinnyRows) {
          Row(what + ", our kernel", bytes, flops, [&](uint32_t i) {
            device_->kernels().skinny_gemm({args(i), rows}, device_->stream());
          });
        }
        if (rows == 1) {
          Row(what + ", gemv", bytes, flops,
              [&](uint32_t i) { device_->kernels().gemv(args(i), device_->stream()); });
        }
        // In blocks of 256 values, 144 bytes.
        const double fewer_bytes = static_cast<double>(weight_bytes) * (1 - 144.0 / 512);
        Row(what + ", in Q4_K", bytes - fewer_bytes, flops, [&](uint32_t i) {
          Packed({args(i), DType::kQ4_K, rows, m.out});
        });
      }
    }
  }

  // As cuda_products.cc has it: many rows by an expanded copy.
  void Packed(const PackedGemmArgs& args) {
    if (args.rows <= kMostPackedRows)
      return device_->kernels().packed_gemm(args, device_->stream());
    const uint64_t values = uint64_t{args.matrix.out_features} * args.matrix.in_features;
    device_->kernels().expand(
        {args.matrix.weight, args.weight_dtype, values, floats_.data(), args.matrix.type},
        device_->stream());
    GemvArgs matrix = args.matrix;
    matrix.weight = floats_.data();
    matrix.weight_is_new = true;
    device_->Gemm({matrix, args.rows, true});
  }

  // Attention of seqs sequences of q_len queries behind the last of kv_len keys, and its memory.
  struct AttentionCase {
    AttentionArgs args;
    uint64_t cache_bytes = 0;
    DeviceBuffer page_table, items, counters, part_out, part_max, part_sum;
  };
  // in_graph: with as many items as a graph for so many sequences has, most of them empty.
  AttentionCase MakeAttention(uint32_t seqs, uint32_t q_len, uint32_t kv_len,
                              bool in_graph = false) {
    const uint32_t pages = CeilDiv(kv_len, kPageSize);
    std::vector<uint32_t> cu(seqs + 1), kv(seqs, kv_len), table(size_t{seqs} * pages);
    for (uint32_t s = 0; s <= seqs; ++s) cu[s] = s * q_len;
    std::iota(table.begin(), table.end(), 0u);
    std::shuffle(table.begin(), table.end(), rng_);
    AttentionPlanInput input = {.num_seqs = seqs,
                                .cu_q_lens = cu.data(),
                                .kv_lens = kv.data(),
                                .pages_per_seq = pages,
                                .num_kv_heads = kKvHeads,
                                .group = kHeads / kKvHeads,
                                .parallel_blocks = device_->parallel_blocks(),
                                .max_part_rows = 1 << 15,
                                .item_rows = kWideItemRows};
    if (in_graph) input.num_items = FixedItems(seqs * q_len, seqs, input);
    AttentionPlan plan;
    MakeAttentionPlan(input, &plan);
    const uint64_t parts = uint64_t{input.max_part_rows} * kKvHeads;
    AttentionCase out;
    out.cache_bytes = uint64_t{2} * seqs * pages * kPageSize * kKvHeads * kDim * 2;
    out.page_table = Uploaded(table);
    out.items = Uploaded(plan.items);
    out.counters = Uploaded(std::vector<uint32_t>(plan.num_shares * kKvHeads + 1));
    out.part_out = Allocate(parts * kDim * 4);
    out.part_max = Allocate(parts * 4);
    out.part_sum = Allocate(parts * 4);
    AttentionArgs& args = out.args;
    args.kv = {nullptr, nullptr, Element::kBFloat16, kPageSize, kKvHeads, kDim, kDim};
    args.num_heads = kHeads;
    args.scale = 0.088f;
    args.q = floats_.as<float>();
    args.q_stride = (kHeads + 2 * kKvHeads) * kDim;
    args.page_indices = out.page_table.as<uint32_t>();
    args.items = out.items.as<AttentionItem>();
    args.num_items = static_cast<uint32_t>(plan.items.size());
    args.wide_items = plan.wide_items;
    args.narrow_items = plan.narrow_items;
    args.part_out = out.part_out.as<float>();
    args.part_max = out.part_max.as<float>();
    args.part_sum = out.part_sum.as<float>();
    args.counters = out.counters.as<uint32_t>();
    args.out = out_.data();
    args.out_type = Element::kBFloat16;
    return out;
  }
  // Over the i-th part of the cache's memory.
  // rope: of one token, which is taken as it is projected.
  void Attend(const AttentionCase& attention, uint32_t i, const RopeKvArgs* rope = nullptr) {
    AttentionArgs args = attention.args;
    const uint64_t bytes = attention.cache_bytes;
    args.kv.k = cache_.data() + i * bytes % (kPoolBytes - bytes) / 256 * 256;
    args.kv.v = static_cast<std::byte*>(args.kv.k) + bytes / 2;
    args.rotates = rope != nullptr;
    if (args.rotates) args.rope = *rope;
    device_->kernels().paged_attention(args, device_->stream());
  }
  void AttentionRow(uint32_t seqs, uint32_t q_len, uint32_t kv_len) {
    const AttentionCase attention = MakeAttention(seqs, q_len, kv_len);
    const double seen = static_cast<double>(seqs) * q_len * (kv_len - (q_len - 1) / 2.0);
    const double bytes =
        static_cast<double>(attention.cache_bytes) + 6.0 * seqs * q_len * kHeads * kDim;
    Row("attention, " + std::to_string(seqs) + " x " + std::to_string(q_len) + " of " +
            std::to_string(kv_len),
        bytes, 4 * seen * kHeads * kDim, [&](uint32_t i) { Attend(attention, i); });
  }
  void Attention() {
    for (const uint32_t kv_len : {128u, 640u, 4096u, 32768u}) AttentionRow(1, 1, kv_len);
    for (const uint32_t seqs : {16u, 64u}) AttentionRow(seqs, 1, 1024);
    AttentionRow(64, 1, 4096);
    AttentionRow(256, 1, 800);
    AttentionRow(512, 1, 16);
    AttentionRow(1, 4096, 4096);
    AttentionRow(1, 4096, 8192);
    AttentionRow(8, 512, 512);
  }

  struct Tokens {
    DeviceBuffer positions, slots;
  };
  Tokens MakeTokens() {
    std::vector<uint32_t> positions(4096);
    std::vector<int64_t> slots(4096);
    std::iota(positions.begin(), positions.end(), 0u);
    std::iota(slots.begin(), slots.end(), 0);
    return {Uploaded(positions), Uploaded(slots)};
  }
  void Norm(uint32_t rows) {
    device_->kernels().rms_norm({floats_.as<float>(), more_floats_.as<float>(), floats_.as<float>(),
                                 1e-6f, rows, kHidden, out_.data(), Element::kBFloat16},
                                device_->stream());
  }
  void ActMul(uint32_t rows) {
    device_->kernels().act_mul(
        {x_.data(), Element::kBFloat16, HiddenAct::kSilu, rows, kFfn, out_.data()},
        device_->stream());
  }
  RopeKvArgs RopeArgs(const Tokens& tokens, uint32_t rows) {
    RopeKvArgs rope;
    rope.qkv = more_floats_.as<float>();
    rope.tokens = rows;
    rope.num_heads = kHeads;
    rope.kv = {cache_.data(),
               cache_.data() + (kPoolBytes >> 1),
               Element::kBFloat16,
               kPageSize,
               kKvHeads,
               kDim,
               kDim};
    rope.q_norm = rope.k_norm = floats_.as<float>();
    rope.eps = 1e-6f;
    rope.table = floats_.as<float>();
    rope.rope_dim = kDim;
    rope.positions = tokens.positions.as<uint32_t>();
    rope.slot_mapping = tokens.slots.as<int64_t>();
    return rope;
  }
  void Rope(const Tokens& tokens, uint32_t rows) {
    device_->kernels().rope_kv(RopeArgs(tokens, rows), device_->stream());
  }
  void Small() {
    const Tokens tokens = MakeTokens();
    for (const uint32_t rows : {1u, 256u, 4096u}) {
      const std::string of = ", rows: " + std::to_string(rows);
      Row("add, norm" + of, 14.0 * rows * kHidden, 0, [&](uint32_t) { Norm(rows); });
      Row("silu, mul" + of, 6.0 * rows * kFfn, 0, [&](uint32_t) { ActMul(rows); });
      Row("norms, RoPE, cache" + of,
          rows * kDim * (8.0 * (kHeads + kKvHeads) + 4.0 * kKvHeads + 4.0 * kKvHeads), 0,
          [&](uint32_t) { Rope(tokens, rows); });
    }
    FillFloats(more_floats_);
  }

  // All kernels of a layer, as a step of decodes has them.
  void Layers() {
    constexpr uint32_t kKeys = 640;
    constexpr uint32_t kQ = kHeads * kDim, kQkv = kQ + 2 * kKvHeads * kDim;
    constexpr uint64_t kWeights = uint64_t{kHidden} * (kQkv + kQ + 3 * kFfn);
    const Tokens tokens = MakeTokens();
    struct Kind {
      uint32_t rows;
      bool gemv = false;
      bool fused = false;  // norms and sums within products, rotations within attention
    };
    for (const Kind kind : {Kind{1, true}, {1}, {1, false, true}, {8}, {64}, {256}}) {
      const uint32_t rows = kind.rows;
      const AttentionCase attention = MakeAttention(rows, 1, kKeys, /*in_graph=*/true);
      const RopeKvArgs rope = RopeArgs(tokens, rows);
      const auto layer = [&, rows, kind](uint32_t i) {
        const std::byte* weight =
            weights_.data() + i * 2 * kWeights % (kPoolBytes - 2 * kWeights) / 256 * 256;
        const auto product = [&](uint32_t out, uint32_t in, Element y, bool gated) {
          SkinnyGemmArgs args = {{weight, Element::kBFloat16, out, in, x_.data(), nullptr,
                                  out_.data(), y, gated, HiddenAct::kSilu},
                                 rows};
          weight += uint64_t{2} * out * in * (gated ? 2 : 1);
          if (kind.fused) {
            args.matrix.adds = out == kHidden;
            if (out != kHidden) {
              args.matrix.x = args.matrix.norm_weight = floats_.as<float>();
              args.matrix.norm_eps = 1e-6f;
            }
            return device_->kernels().skinny_gemm(args, device_->stream());
          }
          if (kind.gemv) return device_->kernels().gemv(args.matrix, device_->stream());
          if (!gated) return device_->Gemm({args.matrix, rows, true});
          if (HasGatedGemm(args)) {
            return device_->kernels().skinny_gemm(args, device_->stream());
          }
          args.matrix.gated = false;
          args.matrix.out_features *= 2;
          device_->Gemm({args.matrix, rows, true});
          ActMul(rows);
        };
        if (!kind.fused) Norm(rows);
        product(kQkv, kHidden, Element::kFloat32, false);
        if (!kind.fused) Rope(tokens, rows);
        Attend(attention, i, kind.fused ? &rope : nullptr);
        product(kHidden, kQ, Element::kFloat32, false);
        if (!kind.fused) Norm(rows);
        product(kFfn, kHidden, Element::kBFloat16, true);
        product(kHidden, kFfn, Element::kFloat32, false);
      };
      Row("a layer of decodes after " + std::to_string(kKeys) + ", rows: " + std::to_string(rows) +
              (kind.gemv    ? ", gemv"
               : kind.fused ? ", norms in products and attention"
                            : ""),
          static_cast<double>(2 * kWeights + attention.cache_bytes), 2.0 * rows * kWeights, layer);
    }
    FillFloats(more_floats_);
  }

  void Sampling() {
    FillFloats(floats_);  // products have written there
    const DeviceBuffer results = Allocate(512 * sizeof(SampledRow));
    const DeviceBuffer tops = Allocate(512 * 2 * kMaxSampleChunks * sizeof(uint64_t));
    const DeviceBuffer sums = Allocate(512 * SampleTiles(kVocab) * sizeof(uint64_t));
    struct Kind {
      const char* name;
      bool greedy;
      uint32_t top_k;
      float top_p;
      uint32_t num_top;
    };
    for (const Kind& kind : {Kind{"greedy", true, 0, 1, kNoTop},
                             {"temperature", false, 0, 1, kNoTop},
                             {"top-k 20, top-p 0.95", false, 20, 0.95f, kNoTop},
                             {"top-p 0.9", false, 0, 0.9f, kNoTop},
                             {"5 logprobs", true, 0, 1, 5}}) {
      // Some tokens of each row are likely, as a trained model's are.
      for (uint32_t i = 0; i < 256; ++i) {
        for (uint32_t j = 0; j < 8; ++j) {
          const float likely = 18 - static_cast<float>(j);
          const uint64_t at = uint64_t{i} * kVocab + (i * 7919 + j * 104729) % kVocab;
          device_->Upload(&likely, sizeof(likely), floats_.as<float>() + at);
        }
      }
      for (const uint32_t count : {1u, 256u}) {
        std::vector<SampleRow> rows(count);
        for (uint32_t i = 0; i < count; ++i) {
          rows[i].row = i;
          rows[i].greedy = kind.greedy;
          rows[i].top_k = kind.top_k;
          rows[i].top_p = kind.top_p;
          rows[i].num_top = kind.num_top;
          rows[i].to_log2 = weight::kLog2E / 0.6f;
          rows[i].uniform = (i + 0.5) / count;
          SetKind(kVocab, &rows[i]);
        }
        const DeviceBuffer queries = Uploaded(rows);
        SampleArgs args;
        args.logits = floats_.as<float>();
        args.adjusted = more_floats_.as<float>();
        args.vocab = kVocab;
        args.quantum_bits = QuantumBits(kVocab);
        args.rows = queries.as<SampleRow>();
        args.num_rows = count;
        args.out = results.as<SampledRow>();
        args.chunks = std::clamp(2 * device_->parallel_blocks() / count, 1u, kMaxSampleChunks);
        args.tops = tops.as<uint64_t>();
        args.sums = sums.as<uint64_t>();
        args.any_adjusted = false;
        args.any_drawn = rows[0].drawn_from_all;
        args.any_search = rows[0].searches;
        args.any_simple = !rows[0].searches;
        Row(std::string("sampling, ") + kind.name + ", rows: " + std::to_string(count),
            4.0 * count * kVocab, 0,
            [&](uint32_t) { device_->kernels().sample_rows(args, device_->stream()); });
      }
    }
  }

  DeviceBuffer weights_, cache_, x_, floats_, more_floats_, out_;
};

}  // namespace
}  // namespace flotilla::cuda

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each row at once, also into a pipe
  flotilla::cuda::Bench(argc > 1 ? argv[1] : "").Run();
  return 0;
}
