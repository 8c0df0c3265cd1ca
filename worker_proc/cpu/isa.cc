#include "worker_proc/cpu/isa.h"

#include <array>

#include "absl/strings/str_join.h"
#include "common/base/cpu_features.h"

namespace flotilla::cpu {
namespace {

struct Level {
  const char* name;
  bool (*supported)();
  const KernelTable& (*kernels)();
  const QuantKernelTable& (*quant_kernels)();
  const SamplerKernels& (*sampler_kernels)();
};

const QuantKernelTable& VnniOrAvx2QuantKernels() {
  return CpuHasAvx512Vnni() ? Avx512QuantKernels() : Avx2QuantKernels();
}

// Best first. AMX multiplies integers only; the rest is AVX-512's. The reference too is compiled
// for AVX2 (as plain loops).
constexpr std::array<Level, 4> kLevels = {
    {{"amx", CpuHasAmxInt8, Avx512Kernels, AmxQuantKernels, Avx512SamplerKernels},
     {"avx512", CpuHasAvx512, Avx512Kernels, VnniOrAvx2QuantKernels, Avx512SamplerKernels},
     {"avx2", CpuHasAvx2, Avx2Kernels, Avx2QuantKernels, Avx2SamplerKernels},
     {"reference", CpuHasAvx2, ReferenceKernels, ReferenceQuantKernels, ReferenceSamplerKernels}}};

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
