// Columns of all ranks put side by side, by each rank's own GPU over memory that all of them reach:
// one kernel and no library, for the small messages of a step.
//
// A rank writes its columns into its arena, says so by a flag for each block, waits for the same
// block's flags of the others, and reads their columns from their arenas. Blocks have the same rows
// on all ranks. Two slots take turns: who writes one for the second time has seen that all others
// began the operation in between, so they have read what was there. Which operation it is, a
// counter in memory says, so the kernel may be in a graph. Operations of few rows and those of many
// have blocks, flags, counters and slots of their own (GatherChannel), as if there were no others.
//
// Who has given up does so for good: it publishes nothing any more and waits for nobody, so that a
// step's other exchanges take no time and no rank reads what was never there.
//
// Every rank runs the same operations in the same order, also those whose result only one of them
// wants (it waits all the same). Shapes: local [rows, bytes[rank]], out [rows, sum of bytes].
// Units: bytes, all multiples of 2. Threads: the stream's. Errors: *failed and *stopped become 1
// when a rank does not come before the deadline, or *abort is set; out is then undefined. Source:
// ours; the one-shot all-reduce of vLLM and TensorRT-LLM has the same idea.
#pragma once

#include "worker_proc/cuda/kernels/launch.h"
#include "worker_proc/cuda/kernels/norm.h"

namespace flotilla::cuda {

inline constexpr uint32_t kMaxGatherRanks = 8;
inline constexpr uint32_t kGatherSlots = 2;

struct GatherChannel {
  uint32_t blocks = 0;
  uint32_t first_block = 0;  // among those of both
  uint64_t slots_at = 0;     // in each rank's arena
  uint64_t slot_bytes = 0;
};
inline constexpr uint32_t kFewRowsBlocks = 32;    // a decode waits for all of them
inline constexpr uint32_t kManyRowsBlocks = 128;  // what reads from all ranks as fast as links are
inline constexpr uint32_t kGatherBlocks = kFewRowsBlocks + kManyRowsBlocks;

// Of one rank, at the beginning of its arena; the slots follow.
struct GatherFlags {
  uint32_t begun[kGatherBlocks];  // operations that the block has put its rows into
};
inline constexpr uint64_t kGatherSlotsAt = 1024;
static_assert(sizeof(GatherFlags) <= kGatherSlotsAt);

struct GatherArgs {
  std::byte* const* arenas =
      nullptr;                   // [ranks], on the device: each rank's, as this GPU reaches it
  GatherChannel channel;         // of an operation of so many rows and bytes, on all ranks alike
  uint32_t* counters = nullptr;  // [kGatherBlocks], this rank's operations
  uint32_t* stopped = nullptr;   // on the device: 1: this rank has given up
  uint32_t rank = 0;
  uint32_t ranks = 1;
  const std::byte* local = nullptr;
  std::byte* out = nullptr;  // null: this rank wants nothing
  uint32_t rows = 0;
  uint32_t bytes[kMaxGatherRanks] = {};  // of a row
  uint64_t timeout_ns = 0;
  const uint32_t* abort = nullptr;
  uint32_t* failed = nullptr;
};

// Columns of floats, and what follows on them in a layer, without a pass over memory in between:
//
//   residual += gathered;  norm.out = norm(residual)
//
// with the bits of both kernels. rows: at most channel.blocks; norm.rows, norm.x and gather.out are
// not read.
struct GatherAddNormArgs {
  GatherArgs gather;
  RmsNormArgs norm;
};
// A block has one row; the norm's threads take runs of columns, of which none may be two ranks'.
inline bool HasGatherAddNorm(const GatherArgs& gather) {
  uint32_t whole = 0;
  bool all_in_runs = true;
  for (uint32_t r = 0; r < gather.ranks; ++r) {
    whole += gather.bytes[r];
    all_in_runs = all_in_runs && gather.bytes[r] % kNormRunBytes == 0;
  }
  return gather.rows <= gather.channel.blocks && (all_in_runs || whole % kNormRunBytes != 0);
}

// What a Communicator gathered, each rank's rows one after another, as rows of all ranks' columns:
// `from` has rank r's `rows` rows of bytes[r] behind those of the ranks before. As for GatherArgs.
struct InterleaveArgs {
  static constexpr uint32_t kMaxRanks = 64;
  const std::byte* from = nullptr;
  std::byte* out = nullptr;
  uint32_t rows = 0;
  uint32_t ranks = 1;
  uint32_t bytes[kMaxRanks] = {};
};

}  // namespace flotilla::cuda
