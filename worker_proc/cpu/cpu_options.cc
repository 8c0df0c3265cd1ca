#include "worker_proc/cpu/cpu_options.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/cpu/quant_pack.h"
#include "worker_proc/cpu/quantize_weights.h"

namespace flotilla {
namespace {

using cpu::ComputeType;
using cpu::KvType;

bool HasQuantisedMatrices(const Checkpoint& checkpoint) {
  const std::vector<TensorView>& tensors = checkpoint.tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorView& view) {
    return view.rows > 1 && cpu::QuantFormatOf(view.dtype).has_value();
  });
}

bool HasMatricesOfBlocks(const Checkpoint& checkpoint) {
  const std::vector<TensorView>& tensors = checkpoint.tensors();
  return std::any_of(tensors.begin(), tensors.end(), cpu::CanBecomeQ8_0);
}

StatusOr<ComputeType> ResolveDtype(const std::string& dtype, const Checkpoint& checkpoint) {
  const bool quantised = HasQuantisedMatrices(checkpoint);
  if (dtype == "auto") return quantised ? ComputeType::kInt8 : ComputeType::kFloat32;
  if (dtype == "float32") return ComputeType::kFloat32;
  if (dtype != "int8") {
    return absl::InvalidArgumentError(
        StrCat("--dtype ", dtype, ": --device cpu has auto, int8 and float32"));
  }
  if (quantised) return ComputeType::kInt8;
  if (HasMatricesOfBlocks(checkpoint)) return ComputeType::kInt8OfFloats;
  return absl::InvalidArgumentError(
      StrCat("--dtype int8: the model has no matrix whose width is a multiple of ",
             cpu::kQuantBlock, "; use auto or float32"));
}

StatusOr<KvType> ResolveKvType(const std::string& dtype, ComputeType compute) {
  if (dtype == "auto") {
    return compute == ComputeType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
  }
  if (dtype == "float32") return KvType::kFloat32;
  if (dtype == "bfloat16") return KvType::kBFloat16;
  if (dtype == "int8") return KvType::kInt8;
  return absl::InvalidArgumentError(
      StrCat("--kv-cache-dtype ", dtype, ": --device cpu has auto, float32, bfloat16 and int8"));
}

}  // namespace

StatusOr<CpuBackendOptions> ResolveCpuOptions(const CpuFlags& flags, const Checkpoint& checkpoint,
                                              uint32_t cores) {
  CpuBackendOptions options;
  ASSIGN_OR_RETURN(options.kernels, cpu::SelectKernels(flags.isa));
  ASSIGN_OR_RETURN(options.quant_kernels, cpu::SelectQuantKernels(flags.isa));
  ASSIGN_OR_RETURN(options.dtype, ResolveDtype(flags.dtype, checkpoint));
  ASSIGN_OR_RETURN(options.kv_cache_dtype, ResolveKvType(flags.kv_cache_dtype, options.dtype));
  options.pack_cache.dir = flags.pack_cache_dir;
  uint32_t threads = flags.threads == 0 ? std::max(1u, cores / flags.ranks) : flags.threads;
  if (!flags.cpus.empty() && flags.cpus.size() != threads) {
    return absl::InvalidArgumentError(
        StrCat("--cpus has ", flags.cpus.size(), " CPUs for ", threads, " threads"));
  }
  options.threads.cpus = flags.cpus;
  // As after a container's limit was lowered under a launcher that has planned with more.
  if (threads > cores) {
    Log().warn("fewer threads than asked for {} {}", Kv("threads", threads), Kv("cores", cores));
    threads = cores;
    if (!flags.cpus.empty()) options.threads.cpus.resize(threads);
  }
  options.threads.threads = threads;
  const bool fit = uint64_t{threads} * flags.ranks <= cores;
  options.threads.spin_ns = fit ? flags.spin_us * kNsPerUs : 0;
  return options;
}

}  // namespace flotilla
