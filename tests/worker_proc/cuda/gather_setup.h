// Ranks as threads with an emulated device each, and what they exchange. For tests of CudaGather.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "shm/collective.h"
#include "worker_proc/cuda/cuda_gather.h"
#include "worker_proc/cuda/emulation/emulated_device.h"

namespace flotilla::cuda::testing {

inline constexpr uint32_t kMaxRows = 70;  // more than there are blocks, and not a multiple
inline constexpr uint32_t kMaxCols = 40;  // of a rank

class Ranks {
 public:
  Ranks(uint32_t ranks, uint64_t timeout_ns, const EmulatedLinks& links = {},
        const std::atomic<uint32_t>* epoch = nullptr,
        uint64_t values = uint64_t{kMaxRows} * kMaxCols, const ExchangeOptions& exchange = {})
      : room_bytes_(values * sizeof(float)),
        epoch_(epoch),
        timeout_ns_(timeout_ns),
        exchange_(exchange),
        segment_(MakeSegment(ranks)) {
    for (uint32_t r = 0; r < ranks; ++r) {
      Rank& rank = ranks_.emplace_back();
      ShmCollectiveOptions options;
      options.rank = r;
      auto collective = AttachShmCollective(segment_.get(), options);
      CHECK_OK(collective.status());
      rank.collective = std::move(*collective);
      rank.device = MakeEmulatedDevice(links);
      Start(&rank, exchange);
    }
  }

  struct Rank {
    std::unique_ptr<Collective> collective;
    std::unique_ptr<Device> device;
    std::unique_ptr<CudaGather> gather;
    std::atomic<int64_t> beaten_ns = 0;
    DeviceBuffer local, whole;  // to measure with
  };
  // As a new process would, maybe with other options.
  void Replace(uint32_t rank) { Replace(rank, exchange_); }
  void Replace(uint32_t rank, const ExchangeOptions& exchange) { Start(&ranks_[rank], exchange); }
  const RealClock clock;
  void OnAll(const std::function<void(uint32_t, Rank&)>& run) {
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      threads.emplace_back([&, r] { run(r, ranks_[r]); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void Connect(uint32_t epoch) {
    OnAll([&](uint32_t, Rank& rank) {
      CHECK_OK(rank.collective->Reset(epoch));
      CHECK_OK(rank.gather->Connect(*rank.collective,
                                    {.local = {rank.local.data(), rank.local.bytes()},
                                     .whole = {rank.whole.data(), rank.whole.bytes()}}));
    });
  }

 private:
  void Start(Rank* rank, const ExchangeOptions& exchange) {
    const uint64_t whole_bytes = room_bytes_ * rank->collective->size();
    rank->gather = std::make_unique<CudaGather>(
        rank->device.get(), CudaGather::Options{.epoch = epoch_,
                                                .heartbeat = Heartbeat(&clock, &rank->beaten_ns),
                                                .timeout_ns = timeout_ns_,
                                                .exchange = exchange});
    CHECK_OK(rank->gather->Reserve(whole_bytes));
    auto local = rank->device->Allocate(room_bytes_);
    auto whole = rank->device->Allocate(whole_bytes);
    CHECK(local.ok() && whole.ok());
    rank->local = std::move(*local);
    rank->whole = std::move(*whole);
  }
  static std::unique_ptr<Segment> MakeSegment(uint32_t ranks) {
    auto segment = Segment::Create("ranks", CollectiveSegmentBytes(ranks, 1 << 16));
    CHECK_OK(segment.status());
    CHECK_OK(InitCollective(*segment, ranks, 1 << 16));
    return std::make_unique<Segment>(std::move(*segment));
  }

  const uint64_t room_bytes_;  // of a rank
  const std::atomic<uint32_t>* const epoch_;
  const uint64_t timeout_ns_;
  const ExchangeOptions exchange_;
  std::unique_ptr<Segment> segment_;
  std::deque<Rank> ranks_;
};

// Operation n: the same on all ranks, drawn from n.
struct Operation {
  uint32_t rows = 0;
  std::vector<uint32_t> cols;
  Element type = Element::kFloat32;
  uint32_t root = CudaGather::kAllRanks;

  Operation(uint32_t n, uint32_t ranks) {
    std::mt19937 random(n);
    rows = random() % 3 == 0 ? 1 : 1 + random() % kMaxRows;
    for (uint32_t r = 0; r < ranks; ++r) {
      cols.push_back(random() % 4 == 0 ? 8 : 1 + random() % kMaxCols);
    }
    type = random() % 2 == 0 ? Element::kFloat32 : Element::kBFloat16;
    if (random() % 3 == 0) root = random() % ranks;
  }
  // A row's bytes of one rank, after its columns of the ranks before.
  std::byte Value(uint32_t n, uint32_t rank, uint32_t row, uint32_t byte) const {
    return static_cast<std::byte>(n * 131 + rank * 31 + row * 7 + byte);
  }
};

inline void Exchange(const Operation& op, uint32_t n, uint32_t r, Ranks::Rank& rank) {
  const uint32_t ranks = rank.collective->size();
  const uint32_t element = ElementBytes(op.type);
  uint32_t whole_cols = 0;
  for (const uint32_t c : op.cols) whole_cols += c;
  const uint32_t own = op.cols[r] * element;
  std::vector<std::byte> local(size_t{op.rows} * own);
  for (uint32_t row = 0; row < op.rows; ++row) {
    for (uint32_t b = 0; b < own; ++b) local[row * own + b] = op.Value(n, r, row, b);
  }
  auto local_buffer = rank.device->Allocate(local.size());
  auto out_buffer = rank.device->Allocate(size_t{op.rows} * whole_cols * element);
  ASSERT_TRUE(local_buffer.ok() && out_buffer.ok());
  rank.device->Upload(local.data(), local.size(), local_buffer->data());
  CudaTensor local_tensor{local_buffer->data(), op.type};
  CudaTensor out_tensor{out_buffer->data(), op.type};
  ASSERT_TRUE(rank.gather
                  ->Run(*rank.collective, op.cols, {&local_tensor, op.rows, op.cols[r]}, op.root,
                        {&out_tensor, op.rows, whole_cols})
                  .ok());
  ASSERT_TRUE(rank.device->Synchronize().ok());
  ASSERT_TRUE(rank.gather->TakeError().ok());
  if (op.root != CudaGather::kAllRanks && op.root != r) return;
  const std::byte* at = out_buffer->data();
  for (uint32_t row = 0; row < op.rows; ++row) {
    for (uint32_t from = 0; from < ranks; ++from) {
      for (uint32_t b = 0; b < op.cols[from] * element; ++b, ++at) {
        ASSERT_EQ(*at, op.Value(n, from, row, b))
            << "operation " << n << " rank " << r << " row " << row << " from " << from;
      }
    }
  }
}

inline void Exchange(uint32_t n, uint32_t r, Ranks::Rank& rank) {
  Exchange(Operation(n, rank.collective->size()), n, r, rank);
}

// Of equal shares, which is what may go by a communicator where there is memory, too.
inline Operation EqualShares(uint32_t n, uint32_t ranks) {
  Operation op(n, ranks);
  op.cols.assign(ranks, op.cols[0]);
  return op;
}

// One operation of two ranks, over and over, whether the other comes or not.
class LoneExchange {
 public:
  explicit LoneExchange(Ranks::Rank* rank)
      : rank_(*rank), buffer_(*rank->device->Allocate(kMaxRows * kMaxCols * 2 * sizeof(float))) {}
  Status Run() {
    CudaTensor tensor{buffer_.data(), op_.type};
    return rank_.gather->Run(*rank_.collective, op_.cols, {&tensor, op_.rows, op_.cols[0]},
                             CudaGather::kAllRanks, {&tensor, op_.rows, op_.cols[0] + op_.cols[1]});
  }

 private:
  const Operation op_ = EqualShares(1, 2);
  Ranks::Rank& rank_;
  DeviceBuffer buffer_;
};

inline constexpr EmulatedLinks kBoth = {.have_communicator = true};
inline constexpr uint64_t kLeast = 2048;

// Ranks that have memory and a communicator: which way a test says is the faster one.
inline ExchangeOptions MeasuredAs(std::function<bool(uint64_t bytes)> library_wins,
                                  std::atomic<uint32_t>* asked = nullptr) {
  ExchangeOptions options;
  options.least_by_library = kLeast;
  options.time_ns = [library_wins = std::move(library_wins), asked](uint64_t bytes,
                                                                    bool by_library) -> int64_t {
    if (asked != nullptr) ++*asked;
    return library_wins(bytes) == by_library ? 50 : 100;
  };
  return options;
}

}  // namespace flotilla::cuda::testing
