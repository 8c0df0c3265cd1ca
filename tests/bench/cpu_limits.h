// What one core can do at most, measured: the figures that the kernels' own are set beside.
//
// Units: multiply-accumulates and bytes a second. Threads: one; measure where nothing else runs.
// Errors: none; a limit of an instruction set that the CPU lacks is 0. Source: ours; loops of
// independent instructions that touch registers only, the best of many short runs, so that a
// neighbour on the machine disturbs few of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flotilla::bench {

struct CpuLimits {
  // int8: the widest instructions an instruction set has for bytes.
  double vnni512_macs = 0;    // vpdpbusd zmm
  double avx2_4bit_macs = 0;  // vpmaddubsw + vpaddw: sums of 4-bit weights fit into 16 bits
  double avx2_8bit_macs = 0;  // vpmaddubsw + vpmaddwd + vpaddd: those of 8-bit weights do not
  double avx512_fmas = 0;     // fp32
  double avx2_fmas = 0;
};
CpuLimits MeasureCpuLimits();

// Seconds of one pass over memory, reading every byte once, in four streams.
double ReadSeconds(const uint8_t* data, size_t bytes);

}  // namespace flotilla::bench
