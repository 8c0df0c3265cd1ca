// What this machine can do at most, measured: the figures that the kernels' own are set beside.
//
// Units: multiply-accumulates (MACs) and bytes a second. Arithmetic: loops of independent
// instructions that touch registers only, the instructions that an instruction set has for the job.
// Reading: every byte of memory that is larger than the caches, so a pass also empties them.
// Threads: the caller's and the pool's, which is the meter's own. Ownership: the meter owns its
// memory. Errors: ResourceExhausted for that memory; a limit of what the CPU lacks is 0. Source:
// ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "worker_proc/bench/roofline_model.h"
#include "worker_proc/cpu/buffer.h"
#include "worker_proc/cpu/thread_pool.h"

namespace flotilla::bench {

// An instruction set's loops; null where this CPU has none. Each runs n rounds of kLoopSteps.
struct PeakLoops {
  using Loop = void (*)(int64_t n);
  struct Kind {
    Loop loop = nullptr;
    uint32_t macs = 0;  // a step
  };
  // int8 with sums of 4-bit weights, which AVX2 may add up in 16 bits, and of 8-bit ones.
  Kind int4, int8, bf16, fp32;
};
inline constexpr int kLoopSteps = 10;
// isa: avx2 | avx512 | amx. The CPU has it.
PeakLoops LoopsOf(std::string_view isa);

// Measures in passes that alternate with the kernels', and keeps the best since Begin: a neighbour
// on the machine disturbs few of many short ones.
class LimitMeter {
 public:
  // quick: with little memory, which stays in the caches, and so may what the kernels read.
  static StatusOr<LimitMeter> Create(std::string_view isa, const cpu::ThreadPoolOptions& threads,
                                     bool quick);

  void Begin() { all_ = one_ = Peaks{}; }
  // Every limit once; afterwards the caches hold nothing of what was there before.
  void Pass();
  const Peaks& all() const { return all_; }  // all threads together
  const Peaks& one() const { return one_; }  // one thread

 private:
  LimitMeter(const PeakLoops& loops, cpu::Buffer memory, size_t pass_bytes,
             std::unique_ptr<cpu::ThreadPool> pool);
  template <typename F>
  void Together(uint32_t threads, const F& f);
  void Read(uint32_t threads, size_t pieces, Peaks* peaks);
  void Compute(uint32_t threads, Peaks* peaks);

  PeakLoops loops_;
  cpu::Buffer memory_;
  size_t pass_bytes_ = 0;
  size_t next_ = 0;  // where the next piece begins
  std::unique_ptr<cpu::ThreadPool> pool_;
  Peaks all_, one_;
};

}  // namespace flotilla::bench
