#include "worker_proc/model/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "worker_proc/cpu/cpu_backend.h"
#include "worker_proc/cpu/cpu_tensor.h"
#include "worker_proc/cpu/isa.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// F32 tensors in memory; element i of the tensor number n is 100 * n + i.
class MemoryCheckpoint final : public Checkpoint {
 public:
  MemoryCheckpoint() {
    Add("attn.q_proj.weight", 4, 2);
    Add("attn.k_proj.weight", 3, 2);
    Add("mlp.down_proj.weight", 2, 3);
  }
  void Add(std::string name, uint64_t rows, uint64_t cols) {
    auto values = std::make_unique<std::vector<float>>(rows * cols);
    std::iota(values->begin(), values->end(), 100.0f * static_cast<float>(names_.size()));
    names_.push_back(std::make_unique<std::string>(std::move(name)));
    views_.push_back({*names_.back(),
                      DType::kF32,
                      rows,
                      cols,
                      {reinterpret_cast<const uint8_t*>(values->data()), rows * cols * 4}});
    values_.push_back(std::move(values));
  }
  const ModelConfig& config() const override { return config_; }
  const TensorView* Find(std::string_view name) const override {
    for (const TensorView& view : views_) {
      if (view.name == name) return &view;
    }
    return nullptr;
  }
  const std::vector<TensorView>& tensors() const override { return views_; }
  const std::string& Digest(const std::function<void()>&) const override { return *names_.front(); }

 private:
  ModelConfig config_;
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<std::unique_ptr<std::vector<float>>> values_;
  std::vector<TensorView> views_;
};

constexpr PackedModule kMapping[] = {{"q_proj", "qkv_proj"}, {"k_proj", "qkv_proj"}};

class LoaderTest : public ::testing::Test {
 protected:
  // W * unit vectors: the matrix the backend made, row by row.
  std::vector<float> Rows(const LinearWeight& weight) {
    const uint32_t in = weight.in_features;
    Tensor x = *backend_->NewTensor(TensorUse::kLinearInput, in, in);
    Tensor y = *backend_->NewTensor(TensorUse::kHidden, in, weight.out_features);
    for (uint32_t i = 0; i < in; ++i) cpu::F32(x)[i * in + i] = 1;
    backend_->Linear(weight, x, y);
    std::vector<float> rows;
    for (uint32_t r = 0; r < weight.out_features; ++r) {
      for (uint32_t k = 0; k < in; ++k) {
        rows.push_back(cpu::F32(y)[k * weight.out_features + r]);
      }
    }
    return rows;
  }

  MemoryCheckpoint checkpoint_;
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(
      {.kernels = *cpu::SelectKernels("auto"), .quant_kernels = *cpu::SelectQuantKernels("auto")});
  std::vector<std::pair<uint64_t, uint64_t>> progress_;
  WeightLoader loader_{&checkpoint_, backend_.get(), kMapping, [this](uint64_t done, uint64_t all) {
                         progress_.push_back({done, all});
                       }};
};

TEST_F(LoaderTest, APackedModuleIsItsSourcesRowsInOrderAndOnlyTheyAreRead) {
  const Shard shards[] = {{4, {1, 3}}, {3, {2, 3}}};
  const auto weight = loader_.Linear("attn.qkv_proj", shards, {2});
  ASSERT_TRUE(weight.ok()) << weight.status();
  EXPECT_THAT(Rows(**weight), ElementsAre(2, 3, 4, 5, 104, 105));
  EXPECT_EQ(loader_.bytes_read(), 3u * 2 * 4);
  EXPECT_THAT(progress_, ElementsAre(std::pair<uint64_t, uint64_t>{16, 80},
                                     std::pair<uint64_t, uint64_t>{24, 80}));
}

TEST_F(LoaderTest, ABiasIsThatOfTheRowsAndMustBeThere) {
  checkpoint_.Add("attn.q_proj.bias", 1, 4);  // 300 …
  const Shard shards[] = {{4, {1, 3}}, {3, {2, 3}}};
  const auto missing = loader_.Linear("attn.qkv_proj", shards, {2, true});
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("attn.k_proj.bias"));
  checkpoint_.Add("attn.k_proj.bias", 1, 3);  // 400 …
  const auto weight = loader_.Linear("attn.qkv_proj", shards, {2, true});
  ASSERT_TRUE(weight.ok()) << weight.status();
  EXPECT_THAT(Rows(**weight),
              ElementsAre(2 + 301, 3 + 301, 4 + 302, 5 + 302, 104 + 402, 105 + 402));
}

TEST_F(LoaderTest, AnOffsetIsAddedToAVector) {
  checkpoint_.Add("norm.weight", 1, 3);
  const auto norm = loader_.Vector("norm", 3, {0.5f});
  ASSERT_TRUE(norm.ok()) << norm.status();
  EXPECT_THAT(static_cast<const cpu::CpuVector&>(**norm).values,
              ElementsAre(300.5f, 301.5f, 302.5f));
}

TEST_F(LoaderTest, AnUnmappedModuleIsTakenDirectly) {
  const Shard shard[] = {{2, {0, 2}}};
  const auto weight = loader_.Linear("mlp.down_proj", shard, {3});
  ASSERT_TRUE(weight.ok()) << weight.status();
  EXPECT_THAT(Rows(**weight), ElementsAre(200, 201, 202, 203, 204, 205));
}

TEST_F(LoaderTest, MissingMisshapenAndUnusedTensorsAreNamed) {
  const Shard shard[] = {{2, {0, 2}}};
  const auto missing = loader_.Linear("mlp.up_proj", shard, {3});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("mlp.up_proj.weight"));
  const auto misshapen = loader_.Linear("mlp.down_proj", shard, {5});
  EXPECT_EQ(misshapen.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(misshapen.status().message()), HasSubstr("2 x 3, the config says 2 x 5"));
  EXPECT_EQ(loader_.Vector("attn.q_proj", 2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(loader_.CheckAllUsed().message()), HasSubstr("attn.q_proj.weight"));
}

}  // namespace
}  // namespace flotilla
