#include "worker_proc/cuda/graph/profile_warmup.h"

#include <gtest/gtest.h>

#include "tests/fakes/fake_graph_api.h"

namespace flotilla::cuda {
namespace {

TEST(ProfileWarmupTest, WhatTheWarmUpTakesIsNotTheCaches) {
  testing::FakeGraphApi api;
  api.total_bytes = 1000;
  api.free_bytes = 800;  // 200: others'
  bool ran = false;
  const auto memory = ProfileWarmup(&api, 800, 0.9, [&]() -> Status {
    RETURN_IF_ERROR(api.AllocateDevice(300).status());
    api.Enqueue([&] { ran = true; });
    return OkStatus();
  });
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(ran) << "the figures are of a device that still runs";
  EXPECT_EQ(memory->used, 500u);
  EXPECT_EQ(memory->current, 300u);
  EXPECT_EQ(memory->peak, 300u);
  EXPECT_EQ(KvCacheBytes(*memory), 400u);
  EXPECT_EQ(ProfileWarmup(&api, 800, 0.9, [] { return absl::InternalError("no"); }).status().code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace flotilla::cuda
