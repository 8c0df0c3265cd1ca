// The numbers of a sampling weight e^x (sampler_kernels.h), said once for the instruction sets of
// the CPU and for the GPU, which use them in the same operations and so give the same bits: e^x is
// 2^t with t = x log2(e), and 2^t is 2^n * 2^r with n whole and |r| <= 1/2.
//
// Plain constants, for nvcc too. Source: ours.
#pragma once

namespace flotilla::weight {

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLeastT = -120.0f;     // far below any quantum, and 2^t is still normal
inline constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
inline constexpr float kHighRound = 48.0f;    // 1.5 * 2^23 * 2^-18: to a multiple of 2^-18
// 2^r = 1 + r (kP1 + r (kP2 + …)), minimax. Relative error at most 2e-7 + 2e-8 |t|.
inline constexpr float kP1 = 6.93147e-1f;
inline constexpr float kP2 = 2.4022242e-1f;
inline constexpr float kP3 = 5.5507336e-2f;
inline constexpr float kP4 = 9.671513e-3f;
inline constexpr float kP5 = 1.3264727e-3f;

}  // namespace flotilla::weight
