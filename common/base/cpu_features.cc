#include "common/base/cpu_features.h"

#include <cpuid.h>

namespace flotilla {

// The compiler's cpuid helper also asks xgetbv whether the system saves the registers.
bool CpuHasAvx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // clang's helper does not know f16c
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool CpuHasAvx512() {
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool CpuHasAvx512Vnni() { return CpuHasAvx512() && __builtin_cpu_supports("avx512vnni"); }
bool CpuHasAvx512Bf16() { return CpuHasAvx512() && __builtin_cpu_supports("avx512bf16"); }

std::vector<std::string> SupportedIsaNames() {
  std::vector<std::string> names;
  if (CpuHasAvx512()) names.emplace_back("avx512");
  if (CpuHasAvx2()) names.insert(names.end(), {"avx2", "reference"});
  return names;
}

}  // namespace flotilla
