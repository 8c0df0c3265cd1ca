// What the CUDA backend needs of a device beside our own kernels: memory, copies, matrix products.
// emulation/ has one on the CPU, gpu/ one with cuBLASLt; which of them a program has is decided
// when it is linked (OpenDevice).
//
// Everything but Allocate and Synchronize is queued on one stream, in order. Units: bytes,
// elements. Threads: one. Ownership: a DeviceBuffer frees its memory and must not outlive its
// device. Errors: OpenDevice: NotFound: there is no such device; Unimplemented: this program has
// none. Allocate: ResourceExhausted. Whatever goes wrong on the stream is Synchronize's to say, the
// first error, for ever: the process must end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker_proc/cuda/communicator.h"
#include "worker_proc/cuda/graph/graph_api.h"
#include "worker_proc/cuda/kernels/kernel_table.h"

namespace flotilla::cuda {

class Device;

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device* device, void* data, uint64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// y[i] = W x[i] (+ bias) for `rows` rows: as GemvArgs, with x [rows, in_features] and y [rows,
// out_features], dense. Sums in float.
struct GemmArgs {
  GemvArgs matrix;
  uint32_t rows = 0;
  bool batch_invariant = true;  // a row's bits do not depend on how many there are
};

// Of memory that other ranks' devices reach too: bytes to be sent to them as they are.
using IpcHandle = std::array<std::byte, 96>;

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;  // "cuda": equal names, equal bits
  virtual const KernelTable& kernels() const = 0;
  virtual Stream stream() const = 0;
  // Blocks that run side by side: attention shares a long sequence's keys until it has as many.
  virtual uint32_t parallel_blocks() const = 0;
  // Streams and graphs beside it; kCompute is stream(). What is captured may be kernels and
  // products.
  virtual GraphApi* graphs() = 0;
  // None if the device can't say.
  DeviceMemoryInfo memory() {
    const StatusOr<DeviceMemoryInfo> info = graphs()->Memory();
    return info.ok() ? *info : DeviceMemoryInfo();
  }

  virtual StatusOr<DeviceBuffer> Allocate(uint64_t bytes) = 0;
  // `from` is the caller's again when this returns.
  virtual void Upload(const void* from, uint64_t bytes, void* to) = 0;
  // To the beginning of a buffer that has room for them.
  template <typename T>
  void UploadAll(const std::vector<T>& entries, const DeviceBuffer& to) {
    const uint64_t bytes = entries.size() * sizeof(T);
    CHECK(bytes <= to.bytes());
    if (bytes > 0) Upload(entries.data(), bytes, to.data());
  }
  // Done after the next Synchronize.
  virtual void Download(const void* from, uint64_t bytes, void* to) = 0;
  virtual void Gemm(const GemmArgs& args) = 0;
  virtual Status Synchronize() = 0;
  virtual Status Error() = 0;  // Synchronize's, as far as it is known without waiting
  // Everything that was queued is done.
  virtual bool Idle() = 0;

  // Of a buffer of this device's / another rank's, in this process or another of this host. What
  // was imported is valid until Unimport, while the other rank keeps the buffer. Unimplemented:
  // that other rank's memory can't be reached.
  virtual StatusOr<IpcHandle> Export(const DeviceBuffer& buffer) = 0;
  virtual StatusOr<std::byte*> Import(const IpcHandle& handle) = 0;
  virtual void Unimport(std::byte* memory) = 0;

  // Unimplemented: there is no such library here. Join: all ranks, with one id; Aborted: it gave up
  // waiting for them.
  virtual StatusOr<CommunicatorId> NewCommunicatorId() = 0;
  virtual StatusOr<std::unique_ptr<Communicator>> Join(const CommunicatorId& id, uint32_t rank,
                                                       uint32_t ranks, GiveUp give_up) = 0;

 private:
  friend class DeviceBuffer;
  virtual void Free(void* data) = 0;
};

inline DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) device_->Free(data_);
}

// ordinal: among those that this process may see.
// cache_dir: where it keeps what it finds out about itself from start to start; empty: nowhere.
StatusOr<std::unique_ptr<Device>> OpenDevice(uint32_t ordinal, const std::string& cache_dir = "");

}  // namespace flotilla::cuda
