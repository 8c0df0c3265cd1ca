// Attention that norms and rotates a step's only token itself, emulated: the bits of the kernel for
// that and of attention behind it, in the output and in the cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "tests/worker_proc/cuda/device_values.h"
#include "worker_proc/cuda/attention_plan.h"
#include "worker_proc/cuda/emulation/launch_queue.h"

namespace flotilla::cuda {
namespace {

using testing::RandomFloats;
using testing::Table;
using testing::Values;

struct Shape {
  uint32_t heads, kv_heads, dim;
  uint32_t window = 0;
  bool norms = true;
  float softcap = 0;
};
constexpr uint32_t kPageSize = 16, kPosition = 2;

// One token behind the others of its sequence, and all that is asked of the device for it.
class Step {
 public:
  Step(const Shape& shape, Element type, uint32_t keys, uint32_t parallel_blocks)
      : shape_(shape),
        type_(type),
        keys_(keys),
        qkv_(RandomFloats((shape.heads + 2 * shape.kv_heads) * shape.dim, 1)),
        q_norm_(RandomFloats(shape.dim, 2)),
        k_norm_(RandomFloats(shape.dim, 3)),
        angles_(RandomFloats(size_t{kPosition + 1} * shape.dim, 4)),
        pages_(CeilDiv(keys, kPageSize)),
        k_(type),
        v_(type),
        out_(type, size_t{shape.heads} * shape.dim) {
    std::iota(pages_.begin(), pages_.end(), 0u);
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937(5));
    const size_t elements = pages_.size() * kPageSize * shape.kv_heads * shape.dim;
    k_ = Values(type, RandomFloats(elements, 5));
    v_ = Values(type, RandomFloats(elements, 6));
    Poison();
    const uint32_t cu_q_lens[] = {0, 1};
    constexpr uint32_t kMostParts = 4096;
    MakeAttentionPlan({.num_seqs = 1,
                       .cu_q_lens = cu_q_lens,
                       .kv_lens = &keys_,
                       .pages_per_seq = static_cast<uint32_t>(pages_.size()),
                       .num_kv_heads = shape.kv_heads,
                       .group = shape.heads / shape.kv_heads,
                       .window = shape.window,
                       .parallel_blocks = parallel_blocks,
                       .max_part_rows = kMostParts,
                       .item_rows = kNarrowItemRows},
                      &plan_);
    plan_.items.push_back({});  // as a graph has them
    const size_t parts = size_t{kMostParts} * shape.kv_heads;
    part_out_.assign(parts * shape.dim, NAN);
    part_max_.assign(parts, NAN);
    part_sum_.assign(parts, NAN);
    counters_.resize(plan_.num_shares * shape.kv_heads);
  }

  void Run(bool rotates, Stream stream) {
    AttentionArgs args;
    args.rope = Rope();
    args.kv = args.rope.kv;
    args.num_heads = shape_.heads;
    args.scale = 0.1f;
    args.softcap = shape_.softcap;
    args.window = shape_.window;
    args.q = qkv_.data();
    args.q_stride = static_cast<uint32_t>(qkv_.size());
    args.page_indices = pages_.data();
    args.items = plan_.items.data();
    args.num_items = static_cast<uint32_t>(plan_.items.size());
    args.wide_items = plan_.wide_items;
    args.narrow_items = plan_.narrow_items;
    args.part_out = part_out_.data();
    args.part_max = part_max_.data();
    args.part_sum = part_sum_.data();
    args.counters = counters_.data();
    args.out = out_.data();
    args.out_type = type_;
    args.rotates = rotates;
    EXPECT_TRUE(CanRotate(args.rope, type_));
    if (!rotates) Table().rope_kv(args.rope, stream);
    Table().paged_attention(args, stream);
  }

  RopeKvArgs Rope() {
    RopeKvArgs rope;
    rope.qkv = qkv_.data();
    rope.tokens = 1;
    rope.num_heads = shape_.heads;
    rope.kv = {k_.data(), v_.data(), type_, kPageSize, shape_.kv_heads, shape_.dim, shape_.dim};
    rope.q_norm = shape_.norms ? q_norm_.data() : nullptr;
    rope.k_norm = shape_.norms ? k_norm_.data() : nullptr;
    rope.eps = 1e-6f;
    rope.table = angles_.data();
    rope.rope_dim = shape_.dim;
    rope.positions = &position_;
    rope.slot_mapping = &slot_;
    return rope;
  }
  void WriteNothing() { slot_ = -1; }
  std::vector<float>& qkv() { return qkv_; }
  const std::vector<uint32_t>& counters() const { return counters_; }
  size_t items() const { return plan_.items.size(); }
  bool SameOutput(const Step& other) const { return out_ == other.out_; }
  bool SameCache(const Step& other) const { return k_ == other.k_ && v_ == other.v_; }

 private:
  // What no query sees, and what the token's key will replace.
  void Poison() {
    const uint32_t own = keys_ - 1;
    const uint32_t seen = shape_.window == 0 || keys_ <= shape_.window ? 0 : keys_ - shape_.window;
    slot_ = int64_t{pages_[own / kPageSize]} * kPageSize + own % kPageSize;
    for (uint32_t key = 0; key < pages_.size() * kPageSize; ++key) {
      if (key >= seen && key < own) continue;
      for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
        const size_t page = size_t{pages_[key / kPageSize]} * shape_.kv_heads + h;
        const size_t at = (page * kPageSize + key % kPageSize) * shape_.dim;
        for (uint32_t d = 0; d < shape_.dim; ++d) {
          k_.Set(at + d, NAN);
          v_.Set(at + d, NAN);
        }
      }
    }
  }

  const Shape shape_;
  const Element type_;
  const uint32_t keys_;
  std::vector<float> qkv_, q_norm_, k_norm_, angles_;
  std::vector<uint32_t> pages_;
  Values k_, v_, out_;
  AttentionPlan plan_;
  std::vector<float> part_out_, part_max_, part_sum_;
  std::vector<uint32_t> counters_;
  const uint32_t position_ = kPosition;
  int64_t slot_ = 0;
};

const Shape kShapes[] = {
    {16, 8, 128},                     // Qwen3-0.6B
    {4, 1, 256},                      // Gemma 3 270M
    {4, 1, 256, 50},                  // its layers with a window
    {9, 3, 64, 0, /*norms=*/false},   // SmolLM2
    {16, 1, 64, 1, /*norms=*/false},  // as many queries of a key as there may be; itself alone
    {2, 2, 128, 200, true, 0.7f},
};

TEST(RotatingAttentionTest, HasTheBitsOfBothKernels) {
  size_t most_items = 0;
  for (const Shape& shape : kShapes) {
    for (const uint32_t keys : {1u, 2u, 64u, 65u, 127u, 128u, 129u, 577u}) {
      const Element type = keys % 2 == 0 ? Element::kFloat16 : Element::kBFloat16;
      for (const uint32_t parallel_blocks : {1u, 1000u}) {
        Step expected(shape, type, keys, parallel_blocks);
        expected.Run(false, nullptr);
        for (const uint64_t seed : testing::kSeeds) {
          emulation::SetSeed(seed);
          Step step(shape, type, keys, parallel_blocks);
          step.Run(true, nullptr);
          EXPECT_TRUE(step.SameOutput(expected) && step.SameCache(expected))
              << shape.heads << " heads of " << shape.dim << ", window " << shape.window << ", "
              << keys << " keys, seed " << seed;
          EXPECT_EQ(step.counters(), std::vector<uint32_t>(step.counters().size()));
          most_items = std::max(most_items, step.items());
        }
      }
    }
  }
  EXPECT_EQ(most_items, 6u) << "five splits, and one that a graph has besides";
}

// The token's q, k and v are what the kernel before writes.
TEST(RotatingAttentionTest, DoesNotReadItsTokenTooEarly) {
  const Shape& shape = kShapes[0];
  Step expected(shape, Element::kBFloat16, 130, 1000);
  expected.Run(false, nullptr);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulation::SetSeed(seed);
    Step step(shape, Element::kBFloat16, 130, 1000);
    std::vector<float>& qkv = step.qkv();
    const std::vector<float> from = std::exchange(qkv, std::vector<float>(qkv.size(), NAN));
    const uint32_t row = 0;
    emulation::LaunchQueue queue;
    Table().select_rows(
        {from.data(), &row, 1, static_cast<uint32_t>(from.size() * sizeof(float)), qkv.data()},
        &queue);
    step.Run(true, &queue);
    queue.Drain();
    EXPECT_TRUE(step.SameOutput(expected) && step.SameCache(expected)) << "seed " << seed;
  }
}

TEST(RotatingAttentionTest, WithoutASlotNothingIsWritten) {
  Step untouched(kShapes[0], Element::kBFloat16, 130, 1000);
  Step expected(kShapes[0], Element::kBFloat16, 130, 1000);
  expected.Run(false, nullptr);
  Step step(kShapes[0], Element::kBFloat16, 130, 1000);
  step.WriteNothing();
  step.Run(true, nullptr);
  EXPECT_TRUE(step.SameCache(untouched));
  EXPECT_TRUE(step.SameOutput(expected)) << "its own key is at hand all the same";
}

TEST(RotatingAttentionTest, IsForATokenAloneWhoseHeadsRotateAsAWhole) {
  Step step(kShapes[0], Element::kBFloat16, 1, 1);
  const RopeKvArgs good = step.Rope();
  EXPECT_TRUE(CanRotate(good, Element::kBFloat16));
  EXPECT_FALSE(CanRotate(good, Element::kFloat32)) << "an output of another type";
  const auto refuses = [&](const auto& change) {
    RopeKvArgs args = good;
    change(&args);
    return !CanRotate(args, args.kv.type);
  };
  EXPECT_TRUE(refuses([](RopeKvArgs* a) { a->tokens = 2; }));
  EXPECT_TRUE(refuses([](RopeKvArgs* a) { a->writes_kv = false; }));
  EXPECT_TRUE(refuses([](RopeKvArgs* a) { a->interleaved = true; }));
  EXPECT_TRUE(refuses([](RopeKvArgs* a) { a->rope_dim = 64; }));
  EXPECT_TRUE(refuses([](RopeKvArgs* a) { a->kv.type = Element::kFloat32; }));
  EXPECT_TRUE(refuses([](RopeKvArgs* a) { a->kv.qk_dim = a->kv.v_dim = a->rope_dim = 96; }));
  EXPECT_TRUE(refuses([](RopeKvArgs* a) { a->num_heads = 17 * a->kv.num_kv_heads; }));
}

}  // namespace
}  // namespace flotilla::cuda
