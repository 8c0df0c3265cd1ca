// --device and the flags that go with it, with the emulation for a GPU.
#include "worker_proc/runner/open_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "shm/collective.h"
#include "tests/fakes/gguf_builder.h"
#include "worker_proc/model/loader.h"
#include "worker_proc/runner/model_runner.h"
#include "worker_proc/runner/weight_bytes.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

class OpenBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = StrCat(::testing::TempDir(), "open_backend_test_", getpid(), ".gguf");
    testing::WriteTinyLlama(path_);
    auto opened = OpenCheckpoint(path_);
    CHECK_OK(opened.status());
    checkpoint_ = std::move(*opened);
    flags_.cpu.pack_cache_dir = "off";
  }
  void TearDown() override { unlink(path_.c_str()); }

  StatusOr<OpenedBackend> Open(uint32_t rank = 0, uint32_t ranks = 1) const {
    return OpenBackend(flags_, {path_, checkpoint_.get(), rank, ranks, Heartbeat()});
  }
  std::string NameOf() const {
    const StatusOr<OpenedBackend> opened = Open();
    return opened.ok() ? opened->backend->name() : std::string(opened.status().message());
  }

  std::string path_;
  std::unique_ptr<Checkpoint> checkpoint_;
  DeviceFlags flags_;
};

TEST_F(OpenBackendTest, TheDefaultIsTheCpuWhoseMemoryIsTheHosts) {
  const StatusOr<OpenedBackend> opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(opened->backend->name(), HasSubstr("cpu-"));
  EXPECT_FALSE(opened->device_memory);
  EXPECT_GT(opened->available_memory(), 0u);
  EXPECT_NE(opened->sampler_kernels, nullptr);
}

TEST_F(OpenBackendTest, CudaHasTypesOfItsOwn) {
  flags_.device = "cuda";
  EXPECT_EQ(NameOf(), "cuda-emulated-bfloat16-kv-bfloat16");
  flags_.cpu.dtype = "float16";
  EXPECT_EQ(NameOf(), "cuda-emulated-float16-kv-float16");
  flags_.cpu.kv_cache_dtype = "float32";
  EXPECT_EQ(NameOf(), "cuda-emulated-float16-kv-float32");
  flags_.gpu_flags.disable_batch_invariance = true;
  EXPECT_EQ(NameOf(), "cuda-emulated-float16-kv-float32-gemv");
  flags_.cpu.kv_cache_dtype = "int8";
  EXPECT_EQ(NameOf(),
            "--kv-cache-dtype int8: --device cuda has auto, bfloat16, float16 and float32");
  flags_.cpu.dtype = "int8";
  EXPECT_EQ(NameOf(), "--dtype int8: --device cuda has auto, bfloat16, float16 and float32");
  flags_.device = "cpu";
  flags_.cpu.dtype = "bfloat16";
  EXPECT_EQ(NameOf(), "--dtype bfloat16: --device cpu has auto, int8 and float32");
}

TEST_F(OpenBackendTest, MatricesStayPackedWhereAskedForOrWhereTheOthersTakeTooMuch) {
  flags_.device = "cuda";
  const auto bytes = [&] {  // of a matrix of the file's
    const StatusOr<OpenedBackend> opened = Open();
    CHECK_OK(opened.status());
    return opened->backend->WeightBytes(*checkpoint_->Find("model.layers.0.mlp.up_proj.weight"));
  };
  const TensorView& view = *checkpoint_->Find("model.layers.0.mlp.up_proj.weight");
  const uint64_t packed = view.data.size();
  const uint64_t expanded = view.rows * view.cols * 2;
  ASSERT_LT(packed, expanded);
  EXPECT_EQ(bytes(), expanded) << "auto: it is a small model";
  flags_.gpu_flags.gpu_weights = "packed";
  EXPECT_EQ(bytes(), packed);
  flags_.gpu_flags.gpu_weights = "auto";
  flags_.gpu_flags.gpu_memory_utilization = 1e-6;
  EXPECT_EQ(bytes(), packed);
  flags_.gpu_flags.gpu_weights = "expanded";
  EXPECT_EQ(bytes(), expanded);
  flags_.gpu_flags.gpu_weights = "packed";
  flags_.cpu.dtype = "float32";
  EXPECT_EQ(NameOf(),
            "--gpu-weights packed: needs --dtype bfloat16 or float16; float32 has them expanded");
}

// A device has the whole table on each rank; the CPU reads it from the file.
TEST_F(OpenBackendTest, AnEmbeddingCountsWhereItIsCopied) {
  const TensorView& embedding = *checkpoint_->Find("model.embed_tokens.weight");
  for (const char* device : {"cpu", "cuda"}) {
    flags_.device = device;
    const StatusOr<OpenedBackend> opened = Open();
    ASSERT_TRUE(opened.ok());
    const Backend& backend = *opened->backend;
    const uint64_t one = WeightBytesOfRank(*checkpoint_, backend, 1);
    const uint64_t copied = flags_.device == "cuda" ? embedding.rows * embedding.cols * 2 : 0;
    EXPECT_EQ(WeightBytesOfRank(*checkpoint_, backend, 2), one / 2 + copied) << "it is tied";
    const auto rows = static_cast<uint32_t>(embedding.rows);
    const auto cols = static_cast<uint32_t>(embedding.cols);
    WeightLoader loader(checkpoint_.get(), opened->backend.get(), {}, nullptr);
    ASSERT_TRUE(loader.Embedding("model.embed_tokens", rows, cols).ok());
    EXPECT_EQ(loader.bytes_read(), copied == 0 ? 0 : embedding.data.size());
    const Shard all = {rows, {0, rows}};
    ASSERT_TRUE(loader.Linear("model.embed_tokens", std::span(&all, 1), {cols}).ok());
    EXPECT_EQ(loader.bytes_read(), embedding.data.size()) << "once";
  }
}

// Its rank runs the largest step by itself, before the KV cache is sized: the other rank of this
// replica never comes.
TEST_F(OpenBackendTest, ADevicesKvCacheIsWhatTheLargestStepLeaves) {
  flags_.device = "cuda";
  constexpr uint32_t kBufferBytes = 1 << 16;
  auto segment = Segment::Create("ranks", CollectiveSegmentBytes(2, kBufferBytes));
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE(InitCollective(*segment, 2, kBufferBytes).ok());
  auto collective = AttachShmCollective(&*segment, {});
  ASSERT_TRUE(collective.ok());
  const StatusOr<OpenedBackend> opened = Open(0, 2);
  ASSERT_TRUE(opened.ok());
  const RealClock clock;
  const Heartbeat heartbeat;
  uint64_t asked = 0;
  uint64_t activations = 0;
  ModelRunnerOptions options;
  options.context_length = 64;
  options.max_running_requests = 5;
  options.chunked_prefill_size = 32;
  options.available_memory = opened->available_memory;
  options.device_memory = [&] {
    ++asked;
    activations = opened->backend->memory().activations;
    DeviceMemory memory;
    memory.total = 100 << 20;
    memory.utilization = 0.5;
    memory.used = 30 << 20;
    return memory;
  };
  const auto runner =
      ModelRunner::Create({checkpoint_.get(), opened->backend.get(), collective->get(), &heartbeat,
                           &clock, opened->sampler_kernels},
                          options);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ(asked, 1u);
  EXPECT_EQ(opened->backend->memory().kv_cache, 0u) << "the largest step's is given back";
  // But for what is kept back for graphs.
  const uint64_t pages = (*runner)->max_kv_pages();
  const uint64_t all_pages = (uint64_t{20} << 20) / (*runner)->kv_page_bytes();
  EXPECT_LT(pages, all_pages);
  EXPECT_GT(pages, all_pages * 9 / 10);
  // What attention needs it has taken by then.
  EXPECT_EQ(opened->backend->memory().activations, activations);
  EXPECT_GT(activations, 0u);
}

}  // namespace
}  // namespace flotilla
