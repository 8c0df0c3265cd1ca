#include "worker_proc/cuda/emulation/emulated_device.h"

#include <cstring>

#include "common/base/check.h"
#include "worker_proc/cuda/emulation/block.h"
#include "worker_proc/cuda/emulation/emulated_communicator.h"
#include "worker_proc/cuda/emulation/emulated_graphs.h"
#include "worker_proc/cuda/emulation/launch_queue.h"
#include "worker_proc/cuda/emulation/plain_gemm.h"
#include "worker_proc/cuda/same_process.h"

namespace flotilla::cuda {
namespace {

// Products of few rows are a kernel, as on a GPU, behind which others begin early; it gives the
// plain loop's bits. Large ones would take it too long.
constexpr uint64_t kMostForKernel = 64 << 10;

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(const EmulatedLinks& links) : links_(links) {}

  const char* name() const override { return "cuda-emulated"; }
  const KernelTable& kernels() const override { return emulated::Kernels(); }
  Stream stream() const override { return &queue_; }
  uint32_t parallel_blocks() const override { return 32; }  // some, so that keys are shared at all
  GraphApi* graphs() override { return &graphs_; }

  StatusOr<DeviceBuffer> Allocate(uint64_t bytes) override {
    ASSIGN_OR_RETURN(std::byte* const data, graphs_.AllocateDevice(bytes));
    return DeviceBuffer(this, data, bytes);
  }
  void Upload(const void* from, uint64_t bytes, void* to) override {
    CHECK_OK(graphs_.CopyToDevice(static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                                  bytes, DeviceStream::kCompute));
  }
  void Download(const void* from, uint64_t bytes, void* to) override { Upload(from, bytes, to); }
  void Gemm(const GemmArgs& args) override {
    const SkinnyGemmArgs few = {args.matrix, args.rows};
    const uint64_t size = uint64_t{args.matrix.out_features} * args.matrix.in_features * args.rows;
    if (args.rows <= kSkinnyRows && HasSkinnyGemm(args.matrix) && size <= kMostForKernel) {
      return kernels().skinny_gemm(few, &queue_);
    }
    emulation::Enqueue([this, args] { queue_.Run([args] { emulated::PlainGemm(args); }); });
  }
  Status Synchronize() override { return graphs_.Synchronize(DeviceStream::kCompute); }
  Status Error() override { return OkStatus(); }
  bool Idle() override { return queue_.TryDrain(); }

  StatusOr<IpcHandle> Export(const DeviceBuffer& buffer) override {
    const ProcessPointer place = {ThisProcess(), buffer.data()};
    IpcHandle handle = {};
    std::memcpy(handle.data(), &place, sizeof(place));
    return handle;
  }
  StatusOr<std::byte*> Import(const IpcHandle& handle) override {
    ProcessPointer place;
    std::memcpy(&place, handle.data(), sizeof(place));
    if (links_.share_memory && place.process == ThisProcess()) return place.pointer;
    return absl::UnimplementedError("an emulated device's memory is its process's");
  }
  void Unimport(std::byte* /*memory*/) override {}
  StatusOr<CommunicatorId> NewCommunicatorId() override {
    if (!links_.have_communicator) return absl::UnimplementedError("emulated devices have none");
    return NewEmulatedId();
  }
  StatusOr<std::unique_ptr<Communicator>> Join(const CommunicatorId& id, uint32_t rank,
                                               uint32_t ranks, GiveUp give_up) override {
    return JoinEmulated(id, rank, ranks, give_up, links_.patience_ns, &queue_);
  }

 private:
  void Free(void* data) override { graphs_.FreeDevice(static_cast<std::byte*>(data)); }

  const EmulatedLinks links_;
  mutable emulation::LaunchQueue queue_;
  EmulatedGraphs graphs_{&queue_};
};

}  // namespace

std::unique_ptr<Device> MakeEmulatedDevice(const EmulatedLinks& links) {
  return std::make_unique<EmulatedDevice>(links);
}

}  // namespace flotilla::cuda
