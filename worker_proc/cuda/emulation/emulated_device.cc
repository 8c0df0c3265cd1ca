#include "worker_proc/cuda/emulation/emulated_device.h"

#include <cstring>
#include <new>

#include "common/base/memory_info.h"
#include "worker_proc/cuda/emulation/plain_gemm.h"

namespace flotilla::cuda {
namespace {

constexpr std::align_val_t kAlignment{256};  // as cudaMalloc's

class EmulatedDevice final : public Device {
 public:
  const char* name() const override { return "cuda-emulated"; }
  const KernelTable& kernels() const override { return emulated::Kernels(); }
  Stream stream() const override { return nullptr; }
  uint32_t parallel_blocks() const override { return 32; }  // some, so that keys are shared at all
  uint64_t AvailableBytes() const override { return AvailableMemoryBytes(); }

  StatusOr<DeviceBuffer> Allocate(uint64_t bytes) override {
    void* const data = ::operator new(bytes, kAlignment, std::nothrow);
    if (data == nullptr)
      return absl::ResourceExhaustedError(StrCat("no memory for ", bytes, " bytes"));
    return DeviceBuffer(this, data, bytes);
  }
  void Upload(const void* from, uint64_t bytes, void* to) override { std::memcpy(to, from, bytes); }
  void Download(const void* from, uint64_t bytes, void* to) override {
    std::memcpy(to, from, bytes);
  }
  void Gemm(const GemmArgs& args) override { emulated::PlainGemm(args); }
  Status Synchronize() override { return OkStatus(); }

 private:
  void Free(void* data) override { ::operator delete(data, kAlignment); }
};

}  // namespace

std::unique_ptr<Device> MakeEmulatedDevice() { return std::make_unique<EmulatedDevice>(); }

}  // namespace flotilla::cuda
