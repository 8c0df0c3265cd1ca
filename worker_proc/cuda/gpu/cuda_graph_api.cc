#include "worker_proc/cuda/gpu/cuda_graph_api.h"

#include <cuda_runtime_api.h>

#include <array>
#include <utility>

#include "worker_proc/cuda/gpu/cuda_status.h"

namespace flotilla::cuda {
namespace {

class Api final : public CudaGraphApi {
 public:
  Api() = default;
  ~Api() override {
    for (cudaStream_t stream : streams_) {
      if (stream != nullptr) cudaStreamDestroy(stream);
    }
  }
  Status Open(int device) {
    RETURN_IF_ERROR(ToStatus(cudaSetDevice(device), "cudaSetDevice"));
    for (cudaStream_t& stream : streams_) {
      RETURN_IF_ERROR(
          ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    }
    return OkStatus();
  }

  void* stream(DeviceStream stream) const override { return At(stream); }

  StatusOr<DeviceMemoryInfo> Memory() override {
    size_t free = 0;
    size_t total = 0;
    RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
    return DeviceMemoryInfo{free, total};
  }
  StatusOr<std::byte*> AllocateDevice(size_t bytes) override {
    void* memory = nullptr;
    RETURN_IF_ERROR(ToStatus(cudaMalloc(&memory, bytes), "cudaMalloc"));
    return static_cast<std::byte*>(memory);
  }
  StatusOr<std::byte*> AllocatePinned(size_t bytes) override {
    void* memory = nullptr;
    RETURN_IF_ERROR(ToStatus(cudaMallocHost(&memory, bytes), "cudaMallocHost"));
    return static_cast<std::byte*>(memory);
  }
  void FreeDevice(std::byte* memory) override { cudaFree(memory); }
  void FreePinned(std::byte* memory) override { cudaFreeHost(memory); }

  Status BeginCapture() override {
    return ToStatus(
        cudaStreamBeginCapture(At(DeviceStream::kCompute), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  }
  StatusOr<GraphExec> EndCapture() override {
    cudaGraph_t graph = nullptr;
    RETURN_IF_ERROR(
        ToStatus(cudaStreamEndCapture(At(DeviceStream::kCompute), &graph), "cudaStreamEndCapture"));
    cudaGraphExec_t exec = nullptr;
    const Status status = ToStatus(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(graph);
    RETURN_IF_ERROR(status);
    return GraphExec{exec};
  }
  Status Launch(GraphExec graph) override {
    return ToStatus(
        cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.handle), At(DeviceStream::kCompute)),
        "cudaGraphLaunch");
  }
  void DestroyGraph(GraphExec graph) override {
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.handle));
  }

  StatusOr<DeviceEvent> NewEvent() override {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(
        ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"));
    return DeviceEvent{event};
  }
  void DestroyEvent(DeviceEvent event) override {
    cudaEventDestroy(static_cast<cudaEvent_t>(event.handle));
  }
  Status Record(DeviceEvent event, DeviceStream stream) override {
    return ToStatus(cudaEventRecord(static_cast<cudaEvent_t>(event.handle), At(stream)),
                    "cudaEventRecord");
  }
  Status WaitFor(DeviceEvent event, DeviceStream stream) override {
    return ToStatus(cudaStreamWaitEvent(At(stream), static_cast<cudaEvent_t>(event.handle), 0),
                    "cudaStreamWaitEvent");
  }
  StatusOr<bool> Done(DeviceEvent event) override {
    RETURN_IF_ERROR(LaunchStatus());  // the query's own answer would take a launch's place
    const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event.handle));
    if (error == cudaErrorNotReady) return false;
    RETURN_IF_ERROR(ToStatus(error, "cudaEventQuery"));
    return true;
  }
  Status Synchronize(DeviceStream stream) override {
    return ToStatus(cudaStreamSynchronize(At(stream)), "cudaStreamSynchronize");
  }

  Status CopyToDevice(std::byte* to, const std::byte* from, size_t bytes,
                      DeviceStream stream) override {
    return ToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, At(stream)),
                    "copy to the device");
  }
  Status CopyToHost(std::byte* to, const std::byte* from, size_t bytes,
                    DeviceStream stream) override {
    return ToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, At(stream)),
                    "copy to the host");
  }

 private:
  cudaStream_t At(DeviceStream stream) const { return streams_[static_cast<size_t>(stream)]; }

  std::array<cudaStream_t, 2> streams_ = {};
};

}  // namespace

StatusOr<std::unique_ptr<CudaGraphApi>> CudaGraphApi::Create(int device) {
  auto api = std::make_unique<Api>();
  RETURN_IF_ERROR(api->Open(device));
  return std::unique_ptr<CudaGraphApi>(std::move(api));
}

}  // namespace flotilla::cuda
