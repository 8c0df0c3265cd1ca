#include "common/base/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace flotilla {
namespace {

// Linux 5.16 and later. Refused where the CPU has none, by sandboxes, and where a thread's
// alternate signal stack is too small for their state.
bool TilesGranted() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

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

bool CpuHasAmxInt8() {
  constexpr unsigned kTileAndInt8 = 1u << 24 | 1u << 25;
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return CpuHasAvx512Vnni() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
           (edx & kTileAndInt8) == kTileAndInt8 && TilesGranted();
  }();
  return has;
}

std::vector<std::string> IsaChoices() { return {"auto", "reference", "avx2", "avx512", "amx"}; }

std::vector<std::string> SupportedIsaNames() {
  std::vector<std::string> names;
  if (CpuHasAmxInt8()) names.emplace_back("amx");
  if (CpuHasAvx512()) names.emplace_back("avx512");
  if (CpuHasAvx2()) names.insert(names.end(), {"avx2", "reference"});
  return names;
}

}  // namespace flotilla
