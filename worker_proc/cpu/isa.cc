#include "worker_proc/cpu/isa.h"

#include <cpuid.h>

#include <array>

#include "absl/strings/str_join.h"

namespace flotilla::cpu {
namespace {

struct Level {
  const char* name;
  bool (*supported)();
  const KernelTable& (*kernels)();
  const QuantKernelTable& (*quant_kernels)();
  const SamplerKernels& (*sampler_kernels)();
};

// The compiler's cpuid helper also asks xgetbv whether the system saves the registers.
bool HasAvx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // clang's helper does not know f16c
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const QuantKernelTable& VnniOrAvx2QuantKernels() {
  return __builtin_cpu_supports("avx512vnni") ? Avx512QuantKernels() : Avx2QuantKernels();
}

// Best first. The reference too is compiled for AVX2 (as plain loops).
constexpr std::array<Level, 3> kLevels = {
    {{"avx512", HasAvx512, Avx512Kernels, VnniOrAvx2QuantKernels, Avx512SamplerKernels},
     {"avx2", HasAvx2, Avx2Kernels, Avx2QuantKernels, Avx2SamplerKernels},
     {"reference", HasAvx2, ReferenceKernels, ReferenceQuantKernels, ReferenceSamplerKernels}}};

StatusOr<const Level*> SelectLevel(std::string_view name) {
  const std::vector<std::string> supported = SupportedIsas();
  if (supported.empty()) {
    return absl::InvalidArgumentError(
        "this CPU lacks AVX2, FMA or F16C; the CPU backend needs at least x86-64-v3 (Haswell, "
        "Zen)");
  }
  const std::string wanted = name == "auto" ? supported.front() : std::string(name);
  for (const Level& level : kLevels) {
    if (wanted == level.name && level.supported()) return &level;
  }
  return absl::InvalidArgumentError(
      StrCat("--isa ", wanted, " can't run here; use auto, ", absl::StrJoin(supported, ", ")));
}

}  // namespace

std::vector<std::string> SupportedIsas() {
  std::vector<std::string> names;
  for (const Level& level : kLevels) {
    if (level.supported()) names.emplace_back(level.name);
  }
  return names;
}

StatusOr<const KernelTable*> SelectKernels(std::string_view name) {
  ASSIGN_OR_RETURN(const Level* level, SelectLevel(name));
  return &level->kernels();
}

StatusOr<const QuantKernelTable*> SelectQuantKernels(std::string_view name) {
  ASSIGN_OR_RETURN(const Level* level, SelectLevel(name));
  return &level->quant_kernels();
}

StatusOr<const SamplerKernels*> SelectSamplerKernels(std::string_view name) {
  ASSIGN_OR_RETURN(const Level* level, SelectLevel(name));
  return &level->sampler_kernels();
}

}  // namespace flotilla::cpu
