#include "worker_proc/runner/open_backend.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/default_model.h"
#include "common/base/log.h"
#include "common/base/memory_info.h"
#include "worker_proc/cpu/cpu_backend.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/cuda/cuda_backend.h"
#include "worker_proc/cuda/plan/graph_mode.h"

namespace flotilla {
namespace {

StatusOr<OpenedBackend> OpenCpu(const CpuFlags& flags, const RankPlace& place) {
  ASSIGN_OR_RETURN(CpuBackendOptions options,
                   ResolveCpuOptions(flags, *place.checkpoint, AllowedCores()));
  options.heartbeat = place.heartbeat;
  cpu::PackCacheOptions& pack_cache = options.pack_cache;
  pack_cache.model_path = place.model_path;
  if (pack_cache.dir != "off") {
    pack_cache.model_identity = cpu::ModelIdentity(place.model_path, *place.checkpoint);
  }
  pack_cache.rank = place.rank;
  pack_cache.ranks = place.ranks;
  OpenedBackend opened;
  opened.backend = MakeCpuBackend(options);
  opened.spin_ns = options.threads.spin_ns;
  opened.available_memory = [] { return AvailableMemoryBytes(); };
  Log().info("backend {} {} {} {} {}", Kv("name", opened.backend->name()),
             Kv("isa", options.kernels->name), Kv("integers", options.quant_kernels->name),
             Kv("threads", options.threads.threads),
             Kv("spin_us", options.threads.spin_ns / kNsPerUs));
  return opened;
}

StatusOr<cuda::Element> ElementOf(const char* flag, const std::string& name,
                                  cuda::Element automatic) {
  if (name == "auto") return automatic;
  for (const cuda::Element element :
       {cuda::Element::kBFloat16, cuda::Element::kFloat16, cuda::Element::kFloat32}) {
    if (name == cuda::ElementName(element)) return element;
  }
  return absl::InvalidArgumentError(
      StrCat(flag, " ", name, ": --device cuda has auto, bfloat16, float16 and float32"));
}

// Expanded matrices are multiplied faster by many rows; packed ones leave room for more of them, or
// for the model at all.
StatusOr<bool> KeepPacked(const GpuFlags& flags, cuda::Element dtype, const RankPlace& place,
                          uint64_t device_bytes) {
  if (flags.gpu_weights == "expanded") return false;
  const bool may = dtype != cuda::Element::kFloat32;
  if (flags.gpu_weights == "packed") {
    if (may) return true;
    return absl::InvalidArgumentError(
        "--gpu-weights packed: needs --dtype bfloat16 or float16; float32 has them expanded");
  }
  uint64_t expanded = 0;
  for (const TensorView& view : place.checkpoint->tensors()) {
    expanded += view.rows * view.cols * ElementBytes(dtype);
  }
  const double room = flags.gpu_memory_utilization * static_cast<double>(device_bytes);
  return may && device_bytes > 0 && 2.0 * static_cast<double>(expanded / place.ranks) > room;
}

// As for packed weights; what a device keeps belongs to no model.
std::string DeviceCacheDir(const std::string& pack_cache_dir) {
  if (pack_cache_dir == "off") return "";
  if (pack_cache_dir != "auto") return pack_cache_dir;
  const StatusOr<std::string> user = UserCacheDir();
  return user.ok() ? *user : "";
}

StatusOr<OpenedBackend> OpenCuda(const DeviceFlags& flags, const RankPlace& place) {
  cuda::CudaBackendOptions options;
  ASSIGN_OR_RETURN(options.dtype, ElementOf("--dtype", flags.cpu.dtype, options.dtype));
  ASSIGN_OR_RETURN(options.kv_cache_dtype,
                   ElementOf("--kv-cache-dtype", flags.cpu.kv_cache_dtype, options.dtype));
  ASSIGN_OR_RETURN(options.graph_mode, cuda::ParseGraphMode(flags.gpu_flags.graph_mode));
  options.cuda_graph_sizes = flags.gpu_flags.cuda_graph_sizes;
  options.cuda_graph_max_size = flags.gpu_flags.cuda_graph_max_size;
  options.batch_invariant = !flags.gpu_flags.disable_batch_invariance;
  options.exchange.reach_memory = !flags.gpu_flags.disable_custom_all_reduce;
  options.heartbeat = place.heartbeat;
  options.epoch = place.epoch;
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Device> owned,
                   cuda::OpenDevice(flags.gpu, DeviceCacheDir(flags.cpu.pack_cache_dir)));
  cuda::Device* const device = owned.get();
  const uint64_t free_at_start = device->memory().free;
  ASSIGN_OR_RETURN(options.keep_packed,
                   KeepPacked(flags.gpu_flags, options.dtype, place, device->memory().total));
  OpenedBackend opened;
  opened.backend = cuda::MakeCudaBackend(std::move(owned), options);
  opened.available_memory = [device] { return device->memory().free; };
  // What ops took for the largest step is taken still.
  opened.device_memory = [device, free_at_start, share = flags.gpu_flags.gpu_memory_utilization] {
    const cuda::DeviceMemoryInfo bytes = device->memory();
    return MemoryAfterWarmup(bytes.total, bytes.free, free_at_start, share);
  };
  Log().info("backend {} {} {} {}", Kv("name", opened.backend->name()), Kv("gpu", flags.gpu),
             Kv("free", free_at_start), Kv("weights", options.keep_packed ? "packed" : "expanded"));
  if (options.keep_packed && place.checkpoint->config().num_experts > 0) {
    Log().warn(
        "experts are expanded: they can't stay packed on a GPU yet, and take 16 bits a weight");
  }
  return opened;
}

}  // namespace

StatusOr<OpenedBackend> OpenBackend(const DeviceFlags& flags, const RankPlace& place) {
  ASSIGN_OR_RETURN(const SamplerKernels* kernels, cpu::SelectSamplerKernels(flags.cpu.isa));
  StatusOr<OpenedBackend> opened =
      flags.device == "cuda" ? OpenCuda(flags, place) : OpenCpu(flags.cpu, place);
  if (opened.ok()) opened->sampler_kernels = kernels;
  return opened;
}

}  // namespace flotilla
