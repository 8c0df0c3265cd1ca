#include "worker_proc/cuda/peer_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

constexpr size_t kWordBytes = 256;
// CUDA shares whole pieces of so many bytes with other processes, and what else lies there.
constexpr uint64_t kSharedUnit = 2 << 20;
constexpr uint64_t kMostFewRowsBytes = 1 << 20;
constexpr uint32_t kBarrierBytes = 16;  // of each rank, which nobody reads

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

StatusOr<std::vector<uint64_t>> OfAllRanks(Collective& collective, uint64_t mine) {
  std::vector<uint64_t> all(collective.size());
  RETURN_IF_ERROR(collective.AllGather(std::as_bytes(std::span(&mine, 1)),
                                       std::vector<size_t>(all.size(), sizeof(mine)),
                                       std::as_writable_bytes(std::span(all))));
  return all;
}

StatusOr<bool> AllRanks(Collective& collective, bool mine) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> all, OfAllRanks(collective, mine));
  return std::find(all.begin(), all.end(), 0) == all.end();
}

PeerMemory::~PeerMemory() {
  Disconnect();
  if (words_ != nullptr) device_.graphs()->FreePinned(words_);
}

Status PeerMemory::Reserve(uint64_t bytes) {
  slot_bytes_ = RoundUp(bytes, kGatherSlotsAt);
  few_rows_ = {kFewRowsBlocks, 0, kGatherSlotsAt, std::min(slot_bytes_, kMostFewRowsBytes)};
  many_rows_ = {kManyRowsBlocks, kFewRowsBlocks,
                kGatherSlotsAt + kGatherSlots * few_rows_.slot_bytes, slot_bytes_};
  const uint64_t arena_bytes = many_rows_.slots_at + kGatherSlots * slot_bytes_;
  ASSIGN_OR_RETURN(arena_, device_.Allocate(RoundUp(arena_bytes, kSharedUnit)));
  ASSIGN_OR_RETURN(counters_, device_.Allocate((kGatherBlocks + 1) * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(table_, device_.Allocate(kMaxGatherRanks * sizeof(std::byte*)));
  ASSIGN_OR_RETURN(words_, device_.graphs()->AllocatePinned(kWordBytes));
  return OkStatus();
}

void PeerMemory::Disconnect() {
  for (std::byte* memory : imported_) device_.Unimport(memory);
  imported_.clear();
  connected_ = false;
}

// No operation has begun. The handle's first byte says whether there is one.
Status PeerMemory::Export(std::span<std::byte> handle) {
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

Status PeerMemory::Import(std::span<const std::byte> handles, uint32_t rank) {
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

StatusOr<bool> PeerMemory::Connect(Collective& collective, bool shares, std::string* why) {
  Disconnect();
  const uint32_t ranks = collective.size();
  if (ranks > kMaxGatherRanks) {
    *why = StrCat("there are more than ", kMaxGatherRanks, " ranks");
    return false;
  }
  rank_ = collective.rank();
  std::array<std::byte, 1 + sizeof(IpcHandle)> own = {};
  if (shares) RETURN_IF_ERROR(Export(own));
  std::vector<std::byte> handles(ranks * own.size());
  RETURN_IF_ERROR(collective.AllGather(own, std::vector<size_t>(ranks, own.size()), handles));
  const Status imported = Import(handles, rank_);
  *why = std::string(imported.message());
  ASSIGN_OR_RETURN(connected_, AllRanks(collective, imported.ok()));
  if (connected_) {
    device_.UploadAll(arenas_, table_);
  } else {
    Disconnect();
  }
  return connected_;
}

GatherArgs PeerMemory::ArgsOf(std::span<const uint32_t> cols, Tensor local,
                              uint64_t timeout_ns) const {
  GatherArgs args;
  args.arenas = table_.as<std::byte* const>();
  args.counters = counters_.as<uint32_t>();
  args.stopped = args.counters + kGatherBlocks;
  args.rank = rank_;
  args.ranks = static_cast<uint32_t>(cols.size());
  args.local = Data(local);
  args.rows = local.rows;
  uint64_t whole = 0;
  for (uint32_t r = 0; r < args.ranks; ++r) {
    args.bytes[r] = cols[r] * ElementBytes(TypeOf(local));
    whole += args.bytes[r];
  }
  whole *= local.rows;
  CHECK(whole <= slot_bytes_);
  const bool few = local.rows <= few_rows_.blocks && whole <= few_rows_.slot_bytes;
  args.channel = few ? few_rows_ : many_rows_;
  args.timeout_ns = timeout_ns;
  args.abort = word(kAbort);
  args.failed = word(kFailed);
  return args;
}

// Who has come has done what was queued before: nobody reads from an arena any more.
void PeerMemory::Barrier(uint64_t timeout_ns) const {
  static_assert(kBarrierBytes <= kMaxGatherRanks * sizeof(std::byte*));
  CudaTensor any{table_.data(), Element::kFloat32};
  constexpr uint32_t kCols = kBarrierBytes / sizeof(float);
  std::array<uint32_t, kMaxGatherRanks> cols;
  cols.fill(kCols);
  const GatherArgs args =
      ArgsOf(std::span(cols).first(arenas_.size()), {&any, 1, kCols}, timeout_ns);
  device_.kernels().gather_columns(args, device_.stream());
}

void PeerMemory::Abort() {
  std::atomic_ref<uint32_t>(*word(kAbort)).store(1, std::memory_order_release);
}

bool PeerMemory::failed() const {
  return std::atomic_ref<uint32_t>(*word(kFailed)).load(std::memory_order_acquire) != 0;
}

Status PeerMemory::TakeError() const {
  if (!failed()) return OkStatus();
  if (*word(kAbort) != 0) return absl::AbortedError("the epoch is over");
  return absl::DeadlineExceededError("a rank did not come to an exchange of columns");
}

}  // namespace flotilla::cuda
