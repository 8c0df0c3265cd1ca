// Ranks that put their columns side by side, as threads with an emulated device each: by the
// devices themselves, by a communicator, and through the host; whatever follows on what; a rank
// that does not come.
#include "worker_proc/cuda/cuda_gather.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "tests/worker_proc/cuda/gather_setup.h"
#include "worker_proc/cuda/emulation/launch_queue.h"

namespace flotilla::cuda {
namespace {

using testing::Exchange;
using testing::kBoth;
using testing::kMaxCols;
using testing::kMaxRows;
using testing::LoneExchange;
using testing::MeasuredAs;
using testing::Operation;
using testing::Ranks;

constexpr EmulatedLinks kByCommunicator = {.share_memory = false, .have_communicator = true};

const char* WayOf(const EmulatedLinks& links, uint32_t ranks) {
  return links.share_memory && ranks <= kMaxGatherRanks ? "device memory" : "emulated links";
}

// More ranks than reach each other's memory have a communicator.
class CudaGatherTest : public ::testing::TestWithParam<std::pair<uint32_t, EmulatedLinks>> {};

TEST_P(CudaGatherTest, ManyExchangesInARow) {
  const uint32_t ranks = GetParam().first;
  const EmulatedLinks links = GetParam().second;
  Ranks all(ranks, CudaGather::kTimeoutNs, links);
  for (uint32_t epoch = 1; epoch <= 2; ++epoch) {
    all.Connect(epoch);
    all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
      ASSERT_STREQ(rank.gather->by(), WayOf(links, ranks));
      std::mt19937 random(r);
      for (uint32_t n = 0; n < 120; ++n) {
        if (random() % 8 == 0) std::this_thread::yield();
        Exchange(n, r, rank);
        if (::testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Links, CudaGatherTest,
    ::testing::Values(std::pair{2u, EmulatedLinks()}, std::pair{3u, EmulatedLinks()},
                      std::pair{8u, EmulatedLinks()}, std::pair{2u, kByCommunicator},
                      std::pair{5u, kByCommunicator},
                      std::pair{9u, EmulatedLinks{.have_communicator = true}}),
    [](const auto& info) {
      return StrCat(info.param.second.share_memory ? "Memory" : "Communicator", info.param.first);
    });

// Rows too wide for the slots of few rows, between others that fit.
TEST(CudaGatherWideTest, FewWideRowsTakeTurnsWithNarrowOnes) {
  constexpr uint32_t kWide = 100'000;
  Ranks all(2, CudaGather::kTimeoutNs, {}, nullptr, 3 * kWide);
  all.Connect(1);
  all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
    ASSERT_STREQ(rank.gather->by(), "device memory");
    for (uint32_t n = 0; n < 12; ++n) {
      Operation op(n, 2);
      if (n % 3 != 0) op.cols = {kWide - 8 * n, kWide / 3 + n};
      op.rows = op.rows % 3 + 1;
      Exchange(op, n, r, rank);
    }
  });
}

// What is gathered, added and normed by one kernel has the bits of two.
void ExpectBitsOfTwoKernels(uint32_t n, uint32_t r, Ranks::Rank& rank) {
  std::mt19937 random(n);
  const uint32_t ranks = rank.collective->size();
  const uint32_t rows = 1 + random() % kFewRowsBlocks;
  std::vector<uint32_t> cols;
  for (uint32_t i = 0; i < ranks; ++i) {
    cols.push_back(n % 2 == 0 ? 8 + random() % 160 * 8 : 1 + random() % 900);
  }
  const auto sum = [&cols] { return std::accumulate(cols.begin(), cols.end(), 0u); };
  if (n % 2 != 0) cols[0] += sum() % 8 == 0;  // whole runs, but not each rank's: for two kernels
  const uint32_t whole = sum();
  const Element type = n % 3 == 0 ? Element::kFloat32 : Element::kBFloat16;
  std::normal_distribution<float> normal;
  std::vector<float> residual(size_t{rows} * whole), weight(whole), local(size_t{rows} * cols[r]);
  for (float& value : residual) value = normal(random);
  for (float& value : weight) value = normal(random);
  std::mt19937 own(n * 100 + r);
  for (float& value : local) value = normal(own);
  const auto upload = [&](const std::vector<float>& values) {
    auto buffer = rank.device->Allocate(values.size() * sizeof(float));
    CHECK_OK(buffer.status());
    rank.device->UploadAll(values, *buffer);
    return std::move(*buffer);
  };
  const DeviceBuffer local_buffer = upload(local), weights = upload(weight);
  const DeviceBuffer gathered = upload(residual);  // room
  CudaTensor local_tensor{local_buffer.data(), Element::kFloat32};
  CudaTensor gathered_tensor{gathered.data(), Element::kFloat32};
  const Tensor from = {&local_tensor, rows, cols[r]};
  std::vector<float> residuals[2], outs[2];
  for (int fused = 0; fused < 2; ++fused) {
    const DeviceBuffer stream = upload(residual), out = upload(residual);
    const RmsNormArgs norm = {gathered.as<const float>(),
                              stream.as<float>(),
                              weights.as<const float>(),
                              1e-5f,
                              rows,
                              whole,
                              out.data(),
                              type};
    if (fused == 0) {
      CHECK_OK(rank.gather->Run(*rank.collective, cols, from, CudaGather::kAllRanks,
                                {&gathered_tensor, rows, whole}));
      rank.device->kernels().rms_norm(norm, rank.device->stream());
    } else {
      ASSERT_TRUE(rank.gather->AddNorm(cols, from, norm));
    }
    for (auto* to : {&residuals[fused], &outs[fused]}) to->resize(residual.size());
    rank.device->Download(stream.data(), stream.bytes(), residuals[fused].data());
    rank.device->Download(out.data(), out.bytes(), outs[fused].data());
    CHECK_OK(rank.device->Synchronize());
  }
  const auto equal = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  EXPECT_TRUE(equal(residuals[0], residuals[1])) << n;
  EXPECT_FALSE(equal(residuals[0], residual)) << n;
  EXPECT_TRUE(equal(outs[0], outs[1])) << n;
  EXPECT_FALSE(equal(outs[0], residual)) << n;
}

TEST(CudaGatherAddNormTest, HasTheBitsOfTwoKernels) {
  for (const uint32_t ranks : {2u, 5u}) {
    Ranks all(ranks, CudaGather::kTimeoutNs, {}, nullptr, 1 << 16);
    all.Connect(1);
    all.OnAll([](uint32_t r, Ranks::Rank& rank) {
      for (uint32_t n = 0; n < 12; ++n) ExpectBitsOfTwoKernels(n, r, rank);
    });
  }
}

TEST(CudaGatherAddNormTest, NotOfManyRowsNorOfRunsThatTwoRanksShareNorByACommunicator) {
  const auto refuse = [](const EmulatedLinks& links, uint32_t rows, std::array<uint32_t, 2> cols) {
    Ranks all(2, CudaGather::kTimeoutNs, links, nullptr, 1 << 16);
    all.Connect(1);
    all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
      CudaTensor none;
      const Tensor local = {&none, rows, cols[r]};
      EXPECT_FALSE(rank.gather->AddNorm(cols, local, {}));
    });
  };
  refuse({}, kManyRowsBlocks + 1, {8, 8});
  refuse({}, 1, {12, 4});
  refuse(kByCommunicator, 1, {8, 8});
}

TEST(CudaGatherHostTest, ThroughTheHostWhereNothingElseConnectsThem) {
  Ranks all(3, CudaGather::kTimeoutNs, {.share_memory = false});
  all.Connect(1);
  all.OnAll([](uint32_t r, Ranks::Rank& rank) {
    for (uint32_t n = 0; n < 40; ++n) Exchange(n, r, rank);
    EXPECT_STREQ(rank.gather->by(), "host memory");
  });
}

class CudaGatherLostRankTest : public ::testing::TestWithParam<EmulatedLinks> {};

TEST_P(CudaGatherLostRankTest, IsNotWaitedForForEver) {
  constexpr uint64_t kTimeoutNs = 2'000'000'000;  // also for exchanges that must not fail
  EmulatedLinks links = GetParam();
  links.patience_ns = kTimeoutNs;
  Ranks all(2, links.share_memory ? kTimeoutNs : CudaGather::kTimeoutNs, links);
  all.Connect(1);
  all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
    ASSERT_STREQ(rank.gather->by(), WayOf(links, 2));
    Exchange(0, r, rank);
    ASSERT_TRUE(rank.collective->Barrier().ok());  // or the other's may be ended, too
    if (r == 1) return;
    LoneExchange exchange(&rank);
    for (int i = 0; i < 2; ++i) {  // the second waits for nobody any more
      ASSERT_TRUE(exchange.Run().ok());
      ASSERT_TRUE(rank.device->Synchronize().ok());
      EXPECT_EQ(rank.gather->TakeError().code(), absl::StatusCode::kDeadlineExceeded);
    }
  });
  // The next epoch knows nothing of it.
  all.Connect(2);
  all.OnAll([](uint32_t r, Ranks::Rank& rank) {
    for (uint32_t n = 0; n < 10; ++n) Exchange(n, r, rank);
  });
}

INSTANTIATE_TEST_SUITE_P(Links, CudaGatherLostRankTest,
                         ::testing::Values(EmulatedLinks(), kByCommunicator), [](const auto& info) {
                           return info.param.share_memory ? "Memory" : "Communicator";
                         });

// Who waits ends the others' wait, because too much time has passed or because the epoch is over.
struct Abort {
  EmulatedLinks links;
  bool epoch_ends;
  bool large_by_library = false;  // where there are both
};
class CudaGatherAbortTest : public ::testing::TestWithParam<Abort> {};

TEST_P(CudaGatherAbortTest, WhoWaitsForALostRankAborts) {
  const auto [links, epoch_ends, large_by_library] = GetParam();
  std::atomic<uint32_t> epoch = 1;
  ExchangeOptions exchange = MeasuredAs([&](uint64_t) { return GetParam().large_by_library; });
  exchange.least_by_library = 64;
  Ranks all(2, epoch_ends ? CudaGather::kTimeoutNs : 4'000'000'000, links, &epoch,
            uint64_t{kMaxRows} * kMaxCols, exchange);
  all.Connect(1);
  std::thread ends;
  all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
    ASSERT_STREQ(rank.gather->by(), WayOf(links, 2));
    Exchange(0, r, rank);
    ASSERT_TRUE(rank.collective->Barrier().ok());  // or the other's may be aborted, too
    if (r == 1) return;
    LoneExchange exchange(&rank);
    for (int i = 0; i < 3; ++i) {  // all of them are queued, though the first waits
      ASSERT_TRUE(exchange.Run().ok());
    }
    EXPECT_FALSE(rank.device->Idle());
    EXPECT_TRUE(rank.gather->TakeError().ok()) << "it may still come";
    if (epoch_ends) ends = std::thread([&] { epoch = 2; });
    rank.gather->Wait();
    EXPECT_TRUE(rank.device->Idle());
    EXPECT_EQ(rank.gather->TakeError().code(),
              epoch_ends ? absl::StatusCode::kAborted : absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(exchange.Run().ok());
    EXPECT_TRUE(rank.device->Synchronize().ok()) << "nothing is exchanged any more";
  });
  if (ends.joinable()) ends.join();
  all.Connect(2);
  all.OnAll([](uint32_t r, Ranks::Rank& rank) {
    for (uint32_t n = 0; n < 10; ++n) Exchange(n, r, rank);
  });
}

INSTANTIATE_TEST_SUITE_P(Why, CudaGatherAbortTest,
                         ::testing::Values(Abort{{}, true}, Abort{{}, false},
                                           Abort{kByCommunicator, true},
                                           Abort{kByCommunicator, false}, Abort{kBoth, true, true},
                                           Abort{kBoth, false, true}),
                         [](const auto& info) {
                           return StrCat(info.param.large_by_library     ? "TwoWays"
                                         : info.param.links.share_memory ? "Memory"
                                                                         : "Communicator",
                                         info.param.epoch_ends ? "EpochIsOver" : "ItTakesTooLong");
                         });

// A kernel that hangs, and is no exchange: the launcher must find out, so nobody beats for ever.
TEST(CudaGatherWaitTest, ADeviceThatHangsIsNotBeatenFor) {
  constexpr int64_t kTimeoutNs = kNsPerSecond;
  std::atomic<uint32_t> epoch = 1;
  Ranks all(2, kTimeoutNs, {}, &epoch);
  all.Connect(1);
  all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
    if (r == 1) return;
    ASSERT_STREQ(rank.gather->by(), "device memory");
    // It ends after all, or the test would not: when nobody has beaten for as long again.
    std::atomic<int64_t> asked_ns = 0;
    static_cast<emulation::LaunchQueue*>(rank.device->stream())->AddGate([&] {
      asked_ns = all.clock.NowNs();
      return rank.beaten_ns != 0 && asked_ns - rank.beaten_ns > kTimeoutNs;
    });
    const int64_t begin = all.clock.NowNs();
    rank.beaten_ns = 0;
    rank.gather->Wait();
    EXPECT_GE(rank.beaten_ns, begin) << "as long as it may take";
    EXPECT_GT(asked_ns - rank.beaten_ns, kTimeoutNs);
  });
}

TEST(EmulatedCommunicatorTest, WhoJoinsAloneMayGiveUp) {
  auto device = MakeEmulatedDevice(kByCommunicator);
  const auto id = device->NewCommunicatorId();
  ASSERT_TRUE(id.ok());
  int asked = 0;
  const auto joined = device->Join(*id, 0, 2, [&] { return ++asked > 3; });
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace flotilla::cuda
