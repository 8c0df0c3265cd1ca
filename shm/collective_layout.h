// The bytes of a collective segment. For shm/'s own files and its tests only.
//
// header page | staging of rank 0 | staging of rank 1 | …; each staging buffer is two halves, used
// by even and odd rounds. It is written by its rank before a round, by its reader after it
// (shm_collective.cc says when).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "shm/replica_control.h"
#include "shm/segment.h"

namespace flotilla {

inline constexpr uint64_t kCollectiveMagic = 0x314c4f4354544c46;  // "FLTTCOL1"
inline constexpr uint32_t kCollectiveVersion = 1;
inline constexpr size_t kMinStagingBytes = 128;

// Written by its rank alone, except bell and sleepers. Two cache lines: spinning peers look at the
// first only.
struct alignas(128) RankLine {
  std::atomic<uint64_t> flag;              // epoch << 32 | last round published; round 0: joined
  std::atomic<uint64_t> op[2];             // what the rank thinks round n does, at n % 2
  alignas(64) std::atomic<uint32_t> bell;  // +1 when a sleeper is woken
  std::atomic<uint32_t> sleepers;          // peers: bit r while rank r sleeps on bell
};

struct CollectiveHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t ranks;
  uint64_t buffer_bytes;
  alignas(128) std::atomic<uint32_t> abort_epoch;  // scheduler: epochs before it are over
  RankLine lines[kMaxRanks];
};

inline constexpr size_t kStagingOffset = 4096;
static_assert(sizeof(CollectiveHeader) <= kStagingOffset);

// A checked copy of the sizes with the addresses that follow from them.
struct CollectiveView {
  CollectiveHeader* header;
  uint32_t ranks;
  size_t half_bytes;  // of staging; a multiple of 64
  size_t stride;      // from one rank's staging to the next

  std::byte* Half(uint32_t rank, uint32_t half) const {
    return reinterpret_cast<std::byte*>(header) + kStagingOffset + rank * stride +
           half * half_bytes;
  }
};
StatusOr<CollectiveView> CheckCollective(const Segment& segment);

}  // namespace flotilla
