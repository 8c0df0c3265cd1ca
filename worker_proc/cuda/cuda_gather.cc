#include "worker_proc/cuda/cuda_gather.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker_proc/runner/scratch.h"

namespace flotilla::cuda {
namespace {

constexpr size_t kWordBytes = 256;
// CUDA shares whole pieces of so many bytes with other processes, and what else lies there.
constexpr uint64_t kSharedUnit = 2 << 20;
constexpr uint64_t kMostFewRowsBytes = 1 << 20;
// A step ends within that, or there is time to sleep.
constexpr int64_t kSpinNs = 200'000;
constexpr useconds_t kLookEveryUs = 20;

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

CudaGather::~CudaGather() {
  Forget();
  if (words_ != nullptr) device_.graphs()->FreePinned(words_);
}

Status CudaGather::Reserve(uint64_t bytes) {
  MakeRoom(bytes, &local_);
  MakeRoom(bytes, &received_);
  MakeRoom(bytes, &whole_);
  if (bytes == 0) return OkStatus();  // one rank
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

void CudaGather::Forget() {
  for (std::byte* memory : imported_) device_.Unimport(memory);
  imported_.clear();
  by_memory_ = false;
  communicator_.reset();
  failed_ = OkStatus();
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
  collective_ = &collective;
  if (collective.size() == 1) return OkStatus();
  CHECK(slot_bytes_ > 0);
  ASSIGN_OR_RETURN(by_memory_, ConnectMemory(collective));
  if (!by_memory_) RETURN_IF_ERROR(JoinCommunicator(collective));
  Log().info("ranks exchange {} {}", Kv("by", by()), Kv("because", why_));
  return device_.Synchronize();
}

StatusOr<bool> CudaGather::ConnectMemory(Collective& collective) {
  why_.clear();
  const uint32_t ranks = collective.size();
  if (ranks > kMaxGatherRanks) {
    why_ = StrCat("there are more than ", kMaxGatherRanks, " ranks");
    return false;
  }
  std::array<std::byte, 1 + sizeof(IpcHandle)> own;
  RETURN_IF_ERROR(Export(own));
  std::vector<std::byte> handles(ranks * own.size());
  RETURN_IF_ERROR(collective.AllGather(own, std::vector<size_t>(ranks, own.size()), handles));
  const Status imported = Import(handles, collective.rank());
  why_ = std::string(imported.message());
  ASSIGN_OR_RETURN(const bool all, AllRanks(collective, imported.ok()));
  if (all) {
    device_.UploadAll(arenas_, table_);
  } else {
    Forget();
  }
  return all;
}

Status CudaGather::JoinCommunicator(Collective& collective) {
  const uint32_t ranks = collective.size();
  if (ranks > InterleaveArgs::kMaxRanks) {
    why_ += StrCat("; more than ", InterleaveArgs::kMaxRanks, " ranks");
    return OkStatus();
  }
  // Every rank draws an id, whether it has the library; rank 0's is taken.
  const StatusOr<CommunicatorId> own = device_.NewCommunicatorId();
  if (!own.ok()) why_ += StrCat("; ", own.status().message());
  ASSIGN_OR_RETURN(const bool all_have_it, AllRanks(collective, own.ok()));
  if (!all_have_it) return OkStatus();
  CommunicatorId id = *own;
  RETURN_IF_ERROR(collective.Broadcast(id, 0));
  // Less patient than the collective, by which the ranks agree on what came of it.
  waits_since_ns_ = RealClock::Now() - static_cast<int64_t>(timeout_ns_ / 2);
  auto joined = device_.Join(id, collective.rank(), ranks, [this] {
    heartbeat_.Beat();
    return IsOver();
  });
  if (!joined.ok()) why_ += StrCat("; ", joined.status().message());
  ASSIGN_OR_RETURN(const bool all, AllRanks(collective, joined.ok()));
  if (all) communicator_ = std::move(*joined);
  return OkStatus();
}

bool CudaGather::EpochIsOver() const {
  return epoch_ != nullptr && epoch_->load(std::memory_order_relaxed) != epoch_of_connect_;
}

bool CudaGather::IsOver() const {
  return EpochIsOver() || RealClock::Now() - waits_since_ns_ > static_cast<int64_t>(timeout_ns_);
}

Status CudaGather::Run(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       uint32_t root, Tensor out) {
  if (trial_) return OkStatus();
  const bool receives = root == kAllRanks || root == collective.rank();
  if (!is_queued()) return OnHost(collective, cols, local, root, receives, out);
  Queue(collective, cols, local, receives, out);
  return OkStatus();
}

void CudaGather::Broadcast(Tensor row) {
  if (collective_ == nullptr || collective_->size() == 1) return;
  CHECK(is_queued());
  broadcast_.assign(collective_->size(), 0);
  broadcast_[0] = row.cols;
  waits_since_ns_ = RealClock::Now();
  Queue(*collective_, broadcast_, row, collective_->rank() != 0, row);
}

void CudaGather::Queue(const Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       bool receives, Tensor out) {
  if (!by_memory_) return ByCommunicator(collective, cols, local, receives, out);
  GatherArgs args = MemoryArgs(collective, cols, local);
  if (receives) args.out = Data(out);
  device_.kernels().gather_columns(args, device_.stream());
}

bool CudaGather::AddNorm(const Collective& collective, std::span<const uint32_t> cols, Tensor local,
                         const RmsNormArgs& norm) {
  if (!by_memory_ || trial_) return false;
  const GatherArgs args = MemoryArgs(collective, cols, local);
  if (!HasGatherAddNorm(args)) return false;
  device_.kernels().gather_add_norm({args, norm}, device_.stream());
  return true;
}

// Those that want nothing gather all the same: they would have to send it anyway.
void CudaGather::ByCommunicator(const Collective& collective, std::span<const uint32_t> cols,
                                Tensor local, bool receives, Tensor out) {
  if (!failed_.ok()) return;  // TakeError says it
  InterleaveArgs args;
  std::byte* const by_rank = arena_.data() + kGatherSlotsAt;
  args.from = by_rank;
  if (receives) args.out = Data(out);
  args.rows = local.rows;
  args.ranks = collective.size();
  uint64_t whole = 0;
  counts_.clear();
  for (uint32_t r = 0; r < args.ranks; ++r) {
    args.bytes[r] = cols[r] * ElementBytes(TypeOf(local));
    counts_.push_back(size_t{local.rows} * args.bytes[r]);
    whole += counts_[r];
  }
  CHECK(whole <= slot_bytes_);
  waits_since_ns_ = RealClock::Now();
  if (const Status queued = communicator_->AllGather(Data(local), counts_, by_rank); !queued.ok()) {
    return Fail(queued);
  }
  if (receives) device_.kernels().interleave_columns(args, device_.stream());
}

GatherArgs CudaGather::MemoryArgs(const Collective& collective, std::span<const uint32_t> cols,
                                  Tensor local) const {
  GatherArgs args;
  args.arenas = table_.as<std::byte* const>();
  args.counters = counters_.as<uint32_t>();
  args.stopped = args.counters + kGatherBlocks;
  args.rank = collective.rank();
  args.ranks = collective.size();
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
  args.timeout_ns = timeout_ns_;
  args.abort = word(kAbort);
  args.failed = word(kFailed);
  return args;
}

void CudaGather::Wait() {
  if (by_memory_ ? epoch_ == nullptr : communicator_ == nullptr) return;
  waits_since_ns_ = RealClock::Now();
  while (!device_.Idle()) {
    Look();
    if (RealClock::Now() - waits_since_ns_ > kSpinNs) usleep(kLookEveryUs);
  }
}

void CudaGather::Look() {
  if (!is_queued()) return;
  if (by_memory_) {
    // The kernels know themselves how long to wait.
    if (EpochIsOver()) {
      std::atomic_ref<uint32_t>(*word(kAbort)).store(1, std::memory_order_release);
    }
  } else if (failed_.ok()) {
    if (const Status error = communicator_->Error(); !error.ok()) Fail(error);
    if (failed_.ok() && IsOver()) Fail(OkStatus());
  }
  if (!IsOver()) heartbeat_.Beat();  // or a device that hangs is never found
}

// The library's wait ends; nothing is exchanged any more until the next Connect.
void CudaGather::Fail(const Status& status) {
  if (EpochIsOver()) {
    failed_ = absl::AbortedError("the epoch is over");
  } else {
    failed_ = absl::DeadlineExceededError(StrCat("a rank did not come to an exchange of columns",
                                                 status.ok() ? "" : ": ", status.message()));
  }
  communicator_->Abort();
}

Status CudaGather::TakeError() {
  if (communicator_ != nullptr) {
    if (failed_.ok()) {
      if (const Status error = communicator_->Error(); !error.ok()) Fail(error);
    }
    return failed_;
  }
  if (!by_memory_) return OkStatus();
  if (std::atomic_ref<uint32_t>(*word(kFailed)).load(std::memory_order_acquire) == 0) {
    return OkStatus();
  }
  if (*word(kAbort) != 0) return absl::AbortedError("the epoch is over");
  return absl::DeadlineExceededError("a rank did not come to an exchange of columns");
}

// The collective puts rank after rank; columns of a token must lie side by side.
Status CudaGather::OnHost(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                          uint32_t root, bool receives, Tensor out) {
  const size_t rows = local.rows;
  const uint32_t element = ElementBytes(TypeOf(local));
  counts_.clear();
  for (const uint32_t c : cols) counts_.push_back(rows * c * element);
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
