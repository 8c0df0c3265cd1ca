// Whole models on a CUDA device, emulated or real: what their tests have in common. Each test is a
// small random checkpoint, written and opened.
//
// Threads: as RankThreads'. Errors: CHECK; a test without a device is skipped, with the reason.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "tests/fakes/gguf_builder.h"
#include "tests/worker_proc/plan_driver.h"
#include "tests/worker_proc/rank_threads.h"
#include "worker_proc/cuda/cuda_backend.h"
#include "worker_proc/cuda/emulation/block.h"

namespace flotilla::cuda::testing {

using flotilla::testing::DriverRequest;
using flotilla::testing::RankThreadsOptions;
using flotilla::testing::TinyLlamaOptions;

struct ModelSetup {
  std::string name;
  Element dtype;
  Element kv;
  double worst_logit_error;  // seen, with some room; logits are of order 1
  TinyLlamaOptions model;
};
inline void PrintTo(const ModelSetup& setup, std::ostream* out) { *out << setup.name; }

// On a real device all ranks share the first.
inline std::unique_ptr<Backend> OpenBackend(const cuda::CudaBackendOptions& options) {
  auto device = cuda::OpenDevice(0);
  CHECK_OK(device.status());
  return cuda::MakeCudaBackend(std::move(*device), options);
}

// Why a real device can't be tested here; empty: it can, or it is the emulation.
inline std::string NoDevice() {
  const auto device = cuda::OpenDevice(0);
  return absl::IsNotFound(device.status()) ? StrCat("skipped: ", device.status().message()) : "";
}

class CudaModelTest : public ::testing::TestWithParam<ModelSetup> {
 protected:
  void SetUp() override {
    if (const std::string reason = NoDevice(); !reason.empty()) GTEST_SKIP() << reason;
    const std::string path = StrCat(::testing::TempDir(), "cuda_model_test_", getpid(), ".gguf");
    flotilla::testing::WriteTinyLlama(path, GetParam().model);
    auto opened = OpenCheckpoint(path);
    CHECK_OK(opened.status());
    checkpoint_ = std::move(*opened);
    unlink(path.c_str());  // the mapping stays
  }

  std::vector<DriverRequest> Requests() const {
    std::vector<DriverRequest> requests;
    std::mt19937 rng(4);
    for (const uint32_t length : {1u, 40u, 7u, 65u}) {
      DriverRequest& request = requests.emplace_back();
      for (uint32_t i = 0; i < length; ++i) {
        request.prompt.push_back(static_cast<int32_t>(rng() % checkpoint_->config().vocab_size));
      }
      request.max_new_tokens = 3 + length % 4;
      request.sampling.temperature = length % 2 == 0 ? 0.0f : 0.8f;
      request.sampling.seed = length;
      request.sampling.num_logprobs = 5;
      request.sampling.num_prompt_logprobs = 5;
    }
    requests[1].sampling.repetition_penalty = 1.2f;
    requests[1].sampling.frequency_penalty = 0.3f;
    DriverRequest& embed = requests.emplace_back();
    embed.prompt = requests[1].prompt;
    embed.max_new_tokens = 0;
    embed.embed = embed.mean = true;
    return requests;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
};

// Threads of one process can't each wait for the other on one real device: what one of them loads
// may wait for all that runs. There ranks are processes with a GPU each.
inline bool MayBeRanks(uint32_t tp) {
  return tp == 1 || std::string(OpenBackend({})->name()).starts_with("cuda-emulated");
}

inline RankThreadsOptions Options(const cuda::CudaBackendOptions& backend) {
  RankThreadsOptions options;
  options.make_backend = [backend] { return OpenBackend(backend); };
  options.max_running_requests = 8;
  options.chunked_prefill_size = 64;
  // Of each kind one beside the largest: an emulated device takes its time.
  options.precompile_token_paddings = {5};
  options.precompile_bs_paddings = {2};
  return options;
}

inline void ExpectEqualBits(const std::vector<DriverRequest>& requests,
                            const std::vector<DriverRequest>& expected) {
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].output, expected[i].output) << i;
    EXPECT_EQ(requests[i].embedding_bits(), expected[i].embedding_bits()) << i;
    ASSERT_EQ(requests[i].prompt_logprobs.size(), expected[i].prompt_logprobs.size());
    for (size_t p = 0; p < requests[i].prompt_logprobs.size(); ++p) {
      const auto& a = requests[i].prompt_logprobs[p].top;
      const auto& b = expected[i].prompt_logprobs[p].top;
      ASSERT_EQ(a.size(), b.size());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(TokenLogprob)), 0) << p;
    }
  }
}

}  // namespace flotilla::cuda::testing
