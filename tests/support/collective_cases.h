// What every collective must give, whatever carries its bytes: exact sums in rank order, and the
// results of random sequences of operations.
//
// `run` starts a thread for each of `ranks` ranks, each joined to epoch 1, and calls body(rank,
// collective) on it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "shm/collective.h"

namespace flotilla::testing {

using RankBody = std::function<void(uint32_t rank, Collective* collective)>;
using RunRanks = std::function<void(uint32_t ranks, const RankBody& body)>;

inline float Contribution(uint32_t rank, size_t i, uint32_t round) {
  // Of very different sizes: another order of addition gives other bits.
  return std::ldexp(1.0f + 0.37f * static_cast<float>((i * 7 + rank * 3 + round) % 97),
                    static_cast<int>((rank * 11 + i) % 24));
}

inline void AllReduceAddsInRankOrder(const RunRanks& run, std::span<const size_t> sizes) {
  for (uint32_t ranks : {1u, 2u, 3u, 5u}) {
    SCOPED_TRACE(ranks);
    run(ranks, [&](uint32_t rank, Collective* collective) {
      uint32_t round = 0;
      for (size_t n : sizes) {
        ++round;
        std::vector<float> data(n), expected(n);
        for (size_t i = 0; i < n; ++i) {
          data[i] = Contribution(rank, i, round);
          expected[i] = Contribution(0, i, round);
          for (uint32_t r = 1; r < ranks; ++r) expected[i] += Contribution(r, i, round);
        }
        ASSERT_TRUE(collective->AllReduceSum(data).ok());
        ASSERT_TRUE(n == 0 || std::memcmp(data.data(), expected.data(), n * sizeof(float)) == 0);
      }
    });
  }
}

inline std::byte Pattern(uint32_t rank, size_t i, uint32_t round) {
  return static_cast<std::byte>(rank * 101 + i * 3 + i / 256 + round * 17);
}

// One of every kind, sizes and roots drawn alike on all ranks, against what they must give.
inline void RandomOperations(const RunRanks& run, uint32_t ranks, uint32_t seed, int steps) {
  run(ranks, [&](uint32_t rank, Collective* collective) {
    std::mt19937 random(seed);
    for (int step = 0; step < steps; ++step) {
      const uint32_t kind = random() % 5, root = random() % ranks;
      std::vector<size_t> counts(ranks);
      for (size_t& count : counts) count = random() % 3 ? random() % 300 : 0;
      const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
      const bool in_place = random() % 2;
      if (kind == 0) {
        ASSERT_TRUE(collective->Barrier().ok());
      } else if (kind == 1) {
        std::vector<float> data(counts[0]);
        for (size_t i = 0; i < data.size(); ++i) data[i] = Contribution(rank, i, step);
        ASSERT_TRUE(collective->AllReduceSum(data).ok());
        for (size_t i = 0; i < data.size(); ++i) {
          float sum = Contribution(0, i, step);
          for (uint32_t r = 1; r < ranks; ++r) sum += Contribution(r, i, step);
          ASSERT_EQ(data[i], sum);
        }
      } else if (kind == 2) {
        std::vector<std::byte> data(counts[0]);
        for (size_t i = 0; i < data.size(); ++i) data[i] = Pattern(rank, i, step);
        ASSERT_TRUE(collective->Broadcast(data, root).ok());
        for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], Pattern(root, i, step));
      } else {
        std::vector<std::byte> in(counts[rank]), out(total);
        const size_t begin = std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
        for (size_t i = 0; i < in.size(); ++i) in[i] = Pattern(rank, i, step);
        std::span<const std::byte> from = in;
        const bool receives = kind == 3 || root == rank;
        if (in_place && receives) {
          std::copy(in.begin(), in.end(), out.begin() + begin);
          from = std::span(out).subspan(begin, in.size());
        }
        ASSERT_TRUE((kind == 3 ? collective->AllGather(from, counts, out)
                               : collective->Gather(from, counts, out, root))
                        .ok());
        if (!receives) continue;
        size_t at = 0;
        for (uint32_t r = 0; r < ranks; ++r)
          for (size_t i = 0; i < counts[r]; ++i) ASSERT_EQ(out[at++], Pattern(r, i, step));
      }
    }
  });
}

}  // namespace flotilla::testing
