#include "worker_proc/cuda/emulation/emulated_device.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "shm/segment.h"
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

// Memory as a rank of this process, or of another of this host, reaches it.
struct SharedPlace {
  ProcessPointer in_process;
  pid_t pid = 0;
  int fd = -1;
  uint64_t bytes = 0;
};

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(const EmulatedLinks& links, const KernelTable& kernels)
      : links_(links), kernels_(kernels) {}

  const char* name() const override { return "cuda-emulated"; }
  const KernelTable& kernels() const override { return kernels_; }
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
  void Download(const void* from, uint64_t bytes, void* to) override {
    CHECK_OK(graphs_.CopyToHost(static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                                bytes, DeviceStream::kCompute));
  }
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
    const Segment* const segment = graphs_.SegmentOf(buffer.data());
    const SharedPlace place = {{ThisProcess(), buffer.data()},
                               getpid(),
                               segment == nullptr ? -1 : segment->fd(),
                               buffer.bytes()};
    IpcHandle handle = {};
    static_assert(sizeof(place) <= sizeof(handle));
    std::memcpy(handle.data(), &place, sizeof(place));
    return handle;
  }
  StatusOr<std::byte*> Import(const IpcHandle& handle) override {
    SharedPlace place;
    std::memcpy(&place, handle.data(), sizeof(place));
    if (!links_.share_memory) return absl::UnimplementedError("emulated devices without links");
    if (place.in_process.process == ThisProcess()) return place.in_process.pointer;
    const std::string path = StrCat("/proc/", place.pid, "/fd/", place.fd);
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd.valid()) return absl::UnimplementedError(StrCat(path, ": ", strerror(errno)));
    ASSIGN_OR_RETURN(Segment segment, Segment::Map(std::move(fd), place.bytes));
    auto* const memory = static_cast<std::byte*>(segment.data());
    imported_.emplace(memory, std::move(segment));
    return memory;
  }
  void Unimport(std::byte* memory) override { imported_.erase(memory); }
  StatusOr<CommunicatorId> NewCommunicatorId() override {
    if (!links_.have_communicator) return absl::UnimplementedError("emulated devices have none");
    return NewEmulatedId();
  }
  StatusOr<std::unique_ptr<Communicator>> Join(const CommunicatorId& id, uint32_t rank,
                                               uint32_t ranks, GiveUp give_up) override {
    const bool fails = rank == links_.fails_on_rank;
    return JoinEmulated(id, {rank, ranks, links_.patience_ns, fails}, give_up, &queue_);
  }

 private:
  void Free(void* data) override { graphs_.FreeDevice(static_cast<std::byte*>(data)); }

  const EmulatedLinks links_;
  const KernelTable& kernels_;
  mutable emulation::LaunchQueue queue_;
  EmulatedGraphs graphs_{&queue_};
  std::unordered_map<std::byte*, Segment> imported_;
};

}  // namespace

std::unique_ptr<Device> MakeEmulatedDevice(const EmulatedLinks& links, const KernelTable& kernels) {
  return std::make_unique<EmulatedDevice>(links, kernels);
}

}  // namespace flotilla::cuda
