// OpenDevice of a program that was built with CUDA: one GPU, one stream, our kernels as nvcc
// compiled them, cuBLASLt.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "worker_proc/cuda/device.h"
#include "worker_proc/cuda/gpu/cuda_graph_api.h"
#include "worker_proc/cuda/gpu/cuda_status.h"
#include "worker_proc/cuda/gpu/gemm.h"
#include "worker_proc/cuda/gpu/nccl_communicator.h"
#include "worker_proc/cuda/gpu/staging.h"
#include "worker_proc/cuda/same_process.h"

namespace flotilla::cuda {
namespace {

// Blocks of attention that a multiprocessor runs at once, about.
constexpr uint32_t kBlocksAProcessor = 3;
constexpr uint64_t kLeastBytes = 256;

class GpuDevice final : public Device {
 public:
  GpuDevice() = default;
  ~GpuDevice() override {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  }
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  Status Open(uint32_t ordinal, const std::string& cache_dir) {
    int count = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
      return absl::NotFoundError(StrCat("--device cuda: ", cudaGetErrorString(error),
                                        "; flotilla doctor says what this machine has"));
    }
    if (ordinal >= static_cast<uint32_t>(count)) {
      return absl::NotFoundError(StrCat("--device cuda: there is no GPU ", ordinal, ", only ",
                                        count,
                                        "; a worker needs one: fewer of them (--tp), or --gpus"));
    }
    const int device = static_cast<int>(ordinal);
    ASSIGN_OR_RETURN(api_, CudaGraphApi::Create(device));
    stream_ = static_cast<cudaStream_t>(api_->stream(DeviceStream::kCompute));
    cudaDeviceProp properties = {};
    RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, device), "properties"));
    name_ = StrCat("cuda-sm", properties.major, properties.minor);
    parallel_blocks_ = static_cast<uint32_t>(properties.multiProcessorCount) * kBlocksAProcessor;
    RETURN_IF_ERROR(staging_.Open());
    return gemm_.Open({static_cast<uint64_t>(properties.l2CacheSize), properties.name, cache_dir});
  }

  const char* name() const override { return name_.c_str(); }
  const KernelTable& kernels() const override { return gpu::Kernels(); }
  Stream stream() const override { return stream_; }
  uint32_t parallel_blocks() const override { return parallel_blocks_; }
  GraphApi* graphs() override { return api_.get(); }

  StatusOr<DeviceBuffer> Allocate(uint64_t bytes) override {
    void* data = nullptr;
    RETURN_IF_ERROR(ToStatus(cudaMalloc(&data, std::max(bytes, kLeastBytes)),
                             StrCat("memory of the GPU, ", bytes, " bytes")));
    return DeviceBuffer(this, data, bytes);
  }
  void Upload(const void* from, uint64_t bytes, void* to) override {
    Note(staging_.Copy(from, bytes, to, stream_));
  }
  void Download(const void* from, uint64_t bytes, void* to) override {
    Note(ToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_),
                  "copy to the host"));
  }
  void Gemm(const GemmArgs& args) override { Note(gemm_.Run(args, stream_)); }
  Status Synchronize() override {
    Note(LaunchStatus());
    Note(ToStatus(cudaStreamSynchronize(stream_), "the GPU"));
    return error_;
  }
  Status Error() override {
    Note(LaunchStatus());
    return error_;
  }
  bool Idle() override {
    Note(LaunchStatus());  // a query's own answer would take the place of theirs
    return cudaStreamQuery(stream_) != cudaErrorNotReady;
  }

  StatusOr<IpcHandle> Export(const DeviceBuffer& buffer) override {
    Exported exported;
    exported.place = {ThisProcess(), buffer.data()};
    if (const cudaError_t error = cudaIpcGetMemHandle(&exported.handle, buffer.data());
        error != cudaSuccess) {
      cudaGetLastError();  // it is no kernel's
      return absl::UnimplementedError(StrCat("cudaIpcGetMemHandle: ", cudaGetErrorString(error)));
    }
    IpcHandle handle = {};
    static_assert(sizeof(exported) <= sizeof(handle));
    std::memcpy(handle.data(), &exported, sizeof(exported));
    return handle;
  }
  StatusOr<std::byte*> Import(const IpcHandle& handle) override {
    Exported exported;
    std::memcpy(&exported, handle.data(), sizeof(exported));
    if (exported.place.process == ThisProcess()) return exported.place.pointer;
    void* memory = nullptr;
    const cudaError_t error =
        cudaIpcOpenMemHandle(&memory, exported.handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
      cudaGetLastError();  // it is no kernel's
      return absl::UnimplementedError(StrCat("cudaIpcOpenMemHandle: ", cudaGetErrorString(error)));
    }
    opened_.insert(memory);
    return static_cast<std::byte*>(memory);
  }
  void Unimport(std::byte* memory) override {
    if (opened_.erase(memory) != 1) return;
    // That its process was killed is no kernel's error.
    if (cudaIpcCloseMemHandle(memory) != cudaSuccess) cudaGetLastError();
  }

  StatusOr<CommunicatorId> NewCommunicatorId() override { return NewNcclId(); }
  StatusOr<std::unique_ptr<Communicator>> Join(const CommunicatorId& id, uint32_t rank,
                                               uint32_t ranks, GiveUp give_up) override {
    return JoinNccl(id, rank, ranks, std::move(give_up), stream_);
  }

 private:
  struct Exported {
    ProcessPointer place;
    cudaIpcMemHandle_t handle;
  };
  void Free(void* data) override { cudaFree(data); }
  // The first error stays.
  void Note(Status status) {
    if (error_.ok()) error_ = std::move(status);
  }

  std::string name_;
  uint32_t parallel_blocks_ = 0;
  std::unique_ptr<CudaGraphApi> api_;
  cudaStream_t stream_ = nullptr;  // the api's
  Staging staging_;
  LtGemm gemm_;
  std::set<void*> opened_;  // of other processes
  Status error_ = OkStatus();
};

}  // namespace

StatusOr<std::unique_ptr<Device>> OpenDevice(uint32_t ordinal, const std::string& cache_dir) {
  auto device = std::make_unique<GpuDevice>();
  RETURN_IF_ERROR(device->Open(ordinal, cache_dir));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace flotilla::cuda
