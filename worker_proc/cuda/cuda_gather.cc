#include "worker_proc/cuda/cuda_gather.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "common/base/check.h"
#include "common/base/log.h"
#include "worker_proc/runner/scratch.h"

namespace flotilla::cuda {
namespace {

constexpr size_t kWordBytes = 256;
constexpr useconds_t kLookEveryUs = 20;

}  // namespace

StatusOr<bool> AllRanks(Collective& collective, bool mine) {
  const std::byte own{mine};
  std::vector<std::byte> all(collective.size());
  RETURN_IF_ERROR(
      collective.AllGather(std::span(&own, 1), std::vector<size_t>(all.size(), 1), all));
  return std::find(all.begin(), all.end(), std::byte{0}) == all.end();
}

CudaGather::~CudaGather() {
  Forget();
  if (words_ != nullptr) device_.graphs()->FreePinned(words_);
}

Status CudaGather::Reserve(uint64_t bytes) {
  MakeRoom(bytes, &local_);
  MakeRoom(bytes, &received_);
  MakeRoom(bytes, &whole_);
  if (bytes == 0) return OkStatus();  // one rank
  slot_bytes_ = (bytes + kGatherSlotsAt - 1) / kGatherSlotsAt * kGatherSlotsAt;
  ASSIGN_OR_RETURN(arena_, device_.Allocate(kGatherSlotsAt + kGatherSlots * slot_bytes_));
  ASSIGN_OR_RETURN(counters_, device_.Allocate((kGatherBlocks + 1) * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(table_, device_.Allocate(kMaxGatherRanks * sizeof(std::byte*)));
  ASSIGN_OR_RETURN(words_, device_.graphs()->AllocatePinned(kWordBytes));
  return OkStatus();
}

void CudaGather::Forget() {
  for (std::byte* memory : imported_) device_.Unimport(memory);
  imported_.clear();
  connected_ = false;
}

// No operation has begun. The handle's first byte says whether there is one.
Status CudaGather::Export(std::span<std::byte> handle) {
  const std::array<uint32_t, kGatherBlocks + 1> zeros = {};
  static_assert(sizeof(zeros) <= kGatherSlotsAt);
  device_.Upload(zeros.data(), sizeof(zeros), arena_.data());
  device_.Upload(zeros.data(), sizeof(zeros), counters_.data());
  std::memset(words_, 0, kWordBytes);
  RETURN_IF_ERROR(device_.Synchronize());
  std::fill(handle.begin(), handle.end(), std::byte{0});
  const StatusOr<IpcHandle> exported = device_.Export(arena_);
  if (!exported.ok()) return OkStatus();
  handle[0] = std::byte{1};
  std::copy(exported->begin(), exported->end(), handle.begin() + 1);
  return OkStatus();
}

Status CudaGather::Import(std::span<const std::byte> handles, uint32_t rank) {
  arenas_.clear();
  constexpr size_t kBytes = 1 + sizeof(IpcHandle);
  for (uint32_t r = 0; r < handles.size() / kBytes; ++r) {
    const std::span<const std::byte> handle = handles.subspan(r * kBytes, kBytes);
    if (handle[0] == std::byte{0}) {
      return absl::UnimplementedError(StrCat("the device of rank ", r, " shares no memory"));
    }
    if (r == rank) {
      arenas_.push_back(arena_.data());
      continue;
    }
    IpcHandle ipc;
    std::copy(handle.begin() + 1, handle.end(), ipc.begin());
    ASSIGN_OR_RETURN(std::byte* const memory, device_.Import(ipc));
    imported_.push_back(memory);
    arenas_.push_back(memory);
  }
  return OkStatus();
}

Status CudaGather::Connect(Collective& collective) {
  Forget();
  epoch_of_connect_ = epoch_ == nullptr ? 0 : epoch_->load();
  const uint32_t ranks = collective.size();
  if (ranks == 1 || ranks > kMaxGatherRanks) return OkStatus();
  CHECK(slot_bytes_ > 0);
  std::array<std::byte, 1 + sizeof(IpcHandle)> own;
  RETURN_IF_ERROR(Export(own));
  std::vector<std::byte> handles(ranks * own.size());
  RETURN_IF_ERROR(collective.AllGather(own, std::vector<size_t>(ranks, own.size()), handles));
  const Status imported = Import(handles, collective.rank());
  ASSIGN_OR_RETURN(const bool all, AllRanks(collective, imported.ok()));
  Log().info("ranks exchange {} {}", Kv("by", all ? "device memory" : "host memory"),
             Kv("because", imported.ok() ? "" : std::string(imported.message())));
  if (!all) {
    Forget();
    return OkStatus();
  }
  device_.UploadAll(arenas_, table_);
  connected_ = true;
  return device_.Synchronize();
}

Status CudaGather::Run(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       uint32_t root, Tensor out) {
  if (!connected_) return OnHost(collective, cols, local, root, out);
  return OnDevice(collective, cols, local, root == kAllRanks || root == collective.rank(), out);
}

Status CudaGather::OnDevice(const Collective& collective, std::span<const uint32_t> cols,
                            Tensor local, bool receives, Tensor out) {
  GatherArgs args;
  args.arenas = table_.as<std::byte* const>();
  args.slot_bytes = slot_bytes_;
  args.counters = counters_.as<uint32_t>();
  args.stopped = args.counters + kGatherBlocks;
  args.rank = collective.rank();
  args.ranks = collective.size();
  args.local = Data(local);
  args.out = receives ? Data(out) : nullptr;
  args.rows = local.rows;
  uint64_t whole = 0;
  for (uint32_t r = 0; r < args.ranks; ++r) {
    args.bytes[r] = cols[r] * ElementBytes(TypeOf(local));
    whole += args.bytes[r];
  }
  CHECK(whole * local.rows <= slot_bytes_);
  args.timeout_ns = timeout_ns_;
  args.abort = word(kAbort);
  args.failed = word(kFailed);
  device_.kernels().gather_columns(args, device_.stream());
  return OkStatus();
}

void CudaGather::Wait() {
  if (!connected_ || epoch_ == nullptr) return;
  while (!device_.Idle()) {
    if (epoch_->load(std::memory_order_relaxed) != epoch_of_connect_) {
      std::atomic_ref<uint32_t>(*word(kAbort)).store(1, std::memory_order_release);
    }
    heartbeat_.Beat();
    usleep(kLookEveryUs);
  }
}

Status CudaGather::TakeError() {
  if (!connected_) return OkStatus();
  if (std::atomic_ref<uint32_t>(*word(kFailed)).load(std::memory_order_acquire) == 0) {
    return OkStatus();
  }
  if (*word(kAbort) != 0) return absl::AbortedError("the epoch is over");
  return absl::DeadlineExceededError("a rank did not come to an exchange of columns");
}

// The collective puts rank after rank; columns of a token must lie side by side.
Status CudaGather::OnHost(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                          uint32_t root, Tensor out) {
  const size_t rows = local.rows;
  const uint32_t element = ElementBytes(TypeOf(local));
  counts_.clear();
  for (const uint32_t c : cols) counts_.push_back(rows * c * element);
  const bool receives = root == kAllRanks || root == collective.rank();
  local_.resize(counts_[collective.rank()]);
  whole_.resize(receives ? rows * RowBytes(out) : 0);
  received_.resize(whole_.size());
  device_.Download(Data(local), local_.size(), local_.data());
  RETURN_IF_ERROR(device_.Synchronize());
  RETURN_IF_ERROR(root == kAllRanks ? collective.AllGather(local_, counts_, received_)
                                    : collective.Gather(local_, counts_, received_, root));
  if (!receives) return OkStatus();
  const std::byte* from = received_.data();
  size_t column = 0;  // in bytes
  for (const uint32_t c : cols) {
    const size_t width = size_t{c} * element;
    for (size_t t = 0; t < rows; ++t, from += width) {
      std::memcpy(whole_.data() + t * RowBytes(out) + column, from, width);
    }
    column += width;
  }
  device_.Upload(whole_.data(), whole_.size(), Data(out));
  return OkStatus();
}

}  // namespace flotilla::cuda
