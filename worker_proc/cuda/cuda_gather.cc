#include "worker_proc/cuda/cuda_gather.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker_proc/runner/scratch.h"

namespace flotilla::cuda {
namespace {

// A step ends within that, or there is time to sleep.
constexpr int64_t kSpinNs = 200'000;
constexpr useconds_t kLookEveryUs = 20;
// The device's queue has room for some thousand launches, half a dozen an exchange, and who waits
// for room there can't end the library's wait for a lost rank, which nothing else ends. So at most
// twice as many exchanges are queued.
constexpr uint64_t kAtOnce = 64;
constexpr size_t kTriedBytes = 4;  // of a rank

// Of a measurement.
constexpr int kRounds = 3;
constexpr int kExchanges = 4;
constexpr uint32_t kMeasuredCols = 1024;  // of a rank, as a model might have

uint64_t WholeBytes(std::span<const uint32_t> cols, Tensor local) {
  const auto whole = std::accumulate(cols.begin(), cols.end(), uint64_t{0});
  return local.rows * whole * ElementBytes(TypeOf(local));
}

}  // namespace

Status CudaGather::Reserve(uint64_t bytes) {
  MakeRoom(bytes, &local_);
  MakeRoom(bytes, &received_);
  MakeRoom(bytes, &whole_);
  if (bytes == 0) return OkStatus();  // one rank
  for (DeviceEvent& event : events_) {
    ASSIGN_OR_RETURN(event, device_.graphs()->NewEvent());
  }
  return memory_.Reserve(bytes);
}

CudaGather::~CudaGather() {
  for (const DeviceEvent event : events_) {
    if (event.handle != nullptr) device_.graphs()->DestroyEvent(event);
  }
}

void CudaGather::Forget() {
  memory_.Disconnect();
  communicator_.reset();
  failed_ = OkStatus();
  table_ = ExchangeTable();
  why_.clear();
}

const char* CudaGather::by() const {
  if (memory_.connected()) return "device memory";
  return communicator_ == nullptr ? "host memory" : communicator_->name();
}

Status CudaGather::Connect(Collective& collective, const Room& room) {
  Forget();
  epoch_of_connect_ = options_.epoch == nullptr ? 0 : options_.epoch->load();
  collective_ = &collective;
  if (collective.size() == 1) return OkStatus();
  CHECK(memory_.slot_bytes() > 0);
  const bool reaches = options_.exchange.reach_memory;
  RETURN_IF_ERROR(memory_.Connect(collective, reaches, &why_).status());
  if (!reaches) why_ = "of --disable-custom-all-reduce";
  RETURN_IF_ERROR(memory_.connected() ? CompareWithLibrary(collective, room)
                                      : JoinCommunicator(collective));
  Log().info("ranks exchange {} {}", Kv("by", by()), Kv("because", why_));
  if (table_.library_wins()) {
    Log().info("ranks exchange what is large {} {}", Kv("by", communicator_->name()),
               Kv("from_bytes", table_.least_by_library()));
  }
  return device_.Synchronize();
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
  waits_since_ns_ = RealClock::Now() - static_cast<int64_t>(options_.timeout_ns / 2);
  auto joined = device_.Join(id, collective.rank(), ranks, [this] {
    options_.heartbeat.Beat();
    return IsOver();
  });
  if (!joined.ok()) why_ += StrCat("; ", joined.status().message());
  ASSIGN_OR_RETURN(const bool all_joined, AllRanks(collective, joined.ok()));
  if (!all_joined) return OkStatus();
  communicator_ = std::move(*joined);
  const Status tried = TryCommunicator(ranks);
  if (!tried.ok()) why_ += StrCat("; ", tried.message());
  ASSIGN_OR_RETURN(const bool all_exchange, AllRanks(collective, tried.ok()));
  if (!all_exchange) communicator_.reset();
  return OkStatus();
}

Status CudaGather::TryCommunicator(uint32_t ranks) {
  static_assert(kTriedBytes * (InterleaveArgs::kMaxRanks + 1) <= kGatherSlotsAt);
  counts_.assign(ranks, kTriedBytes);
  std::byte* const whole = memory_.staging();  // as large as a slot; nothing is in it yet
  waits_since_ns_ = RealClock::Now() - static_cast<int64_t>(options_.timeout_ns / 2);
  Status status = communicator_->AllGather(whole + ranks * kTriedBytes, counts_, whole);
  while (status.ok() && !device_.Idle()) {
    status = communicator_->Error();
    if (status.ok() && IsOver()) status = absl::AbortedError("other ranks did not exchange");
    options_.heartbeat.Beat();
    usleep(kLookEveryUs);
  }
  status.Update(communicator_->Error());
  if (!status.ok()) communicator_->Abort();
  return status;
}

// A rank that is new does as those that have measured: joining takes seconds, which recovering from
// a lost rank must not.
Status CudaGather::CompareWithLibrary(Collective& collective, const Room& room) {
  const uint64_t mine = library_loses_
                            ? 0
                            : std::min({uint64_t{memory_.slot_bytes()}, uint64_t{room.whole.size()},
                                        room.local.size() * collective.size()});
  ASSIGN_OR_RETURN(const std::vector<uint64_t> all, OfAllRanks(collective, mine));
  const uint64_t most = *std::min_element(all.begin(), all.end());
  library_loses_ = most == 0;
  if (most < options_.exchange.least_by_library) return OkStatus();
  RETURN_IF_ERROR(JoinCommunicator(collective));
  library_loses_ = communicator_ == nullptr;
  if (library_loses_) {
    Log().info("exchanges are by memory of any size {}", Kv("because", std::exchange(why_, "")));
    return OkStatus();
  }
  const StatusOr<std::vector<ExchangeTime>> times = Measure(collective, room, most);
  if (!times.ok()) {
    library_loses_ = !EpochIsOver();  // or the next epoch would end as this one
    return times.status();
  }
  for (const ExchangeTime& time : *times) {
    Log().info("exchanges measured {} {} {} {}", Kv("bytes", time.bytes),
               Kv("memory_us", time.memory_ns / kNsPerUs), Kv("library", communicator_->name()),
               Kv("library_us", time.library_ns / kNsPerUs));
  }
  table_ = ExchangeTable(*times);
  library_loses_ = !table_.library_wins();
  if (library_loses_) communicator_.reset();
  return OkStatus();
}

StatusOr<int64_t> CudaGather::BestNs(const std::function<void()>& exchange) {
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t begin = RealClock::Now();
    for (int i = 0; i < kExchanges; ++i) exchange();
    Wait();
    RETURN_IF_ERROR(device_.Synchronize());
    RETURN_IF_ERROR(TakeError());
    best = std::min(best, (RealClock::Now() - begin) / kExchanges);
  }
  return best;
}

StatusOr<std::vector<ExchangeTime>> CudaGather::Measure(Collective& collective, const Room& room,
                                                        uint64_t most) {
  const uint32_t ranks = collective.size();
  CudaTensor local_tensor{room.local.data(), Element::kFloat32};
  CudaTensor whole_tensor{room.whole.data(), Element::kFloat32};
  const auto& given = options_.exchange.time_ns;
  std::vector<ExchangeTime> times;
  for (const uint64_t bytes : ExchangeTable::Sizes(options_.exchange.least_by_library, most)) {
    const uint64_t row_bytes = std::min<uint64_t>(bytes, ranks * kMeasuredCols * sizeof(float));
    // Packs of 16 bytes of each rank.
    const auto own = static_cast<uint32_t>(row_bytes / ranks / 16 * 16 / sizeof(float));
    const auto rows = static_cast<uint32_t>(bytes / row_bytes);
    const std::vector<uint32_t> cols(ranks, own);
    const Tensor local = {&local_tensor, rows, own};
    const Tensor whole = {&whole_tensor, rows, own * ranks};
    ExchangeTime& time = times.emplace_back(ExchangeTime{bytes});
    ASSIGN_OR_RETURN(time.memory_ns, BestNs([&] { ByMemory(cols, local, true, whole); }));
    ASSIGN_OR_RETURN(time.library_ns, BestNs([&] { ByCommunicator(cols, local, true, whole); }));
    if (given) time = {bytes, given(bytes, false), given(bytes, true)};
  }
  std::vector<ExchangeTime> of_all(times.size() * ranks);
  RETURN_IF_ERROR(collective.AllGather(std::as_bytes(std::span(times)),
                                       std::vector<size_t>(ranks, times.size() * sizeof(times[0])),
                                       std::as_writable_bytes(std::span(of_all))));
  for (size_t i = 0; i < of_all.size(); ++i) {
    ExchangeTime& slowest = times[i % times.size()];
    slowest.memory_ns = std::max(slowest.memory_ns, of_all[i].memory_ns);
    slowest.library_ns = std::max(slowest.library_ns, of_all[i].library_ns);
  }
  return times;
}

bool CudaGather::EpochIsOver() const {
  return options_.epoch != nullptr &&
         options_.epoch->load(std::memory_order_relaxed) != epoch_of_connect_;
}

bool CudaGather::IsOver() const {
  return EpochIsOver() ||
         RealClock::Now() - waits_since_ns_ > static_cast<int64_t>(options_.timeout_ns);
}

Status CudaGather::Run(Collective& collective, std::span<const uint32_t> cols, Tensor local,
                       uint32_t root, Tensor out) {
  if (trial_) return OkStatus();
  const bool receives = root == kAllRanks || root == collective.rank();
  if (!is_queued()) return OnHost(collective, cols, local, root, receives, out);
  Queue(cols, local, receives, out);
  return OkStatus();
}

void CudaGather::Broadcast(Tensor row) {
  if (collective_ == nullptr || collective_->size() == 1) return;
  CHECK(is_queued());
  broadcast_.assign(collective_->size(), 0);
  broadcast_[0] = row.cols;
  waits_since_ns_ = RealClock::Now();
  Queue(broadcast_, row, collective_->rank() != 0, row);
}

bool CudaGather::ByLibrary(std::span<const uint32_t> cols, Tensor local) const {
  if (!memory_.connected()) return true;
  if (communicator_ == nullptr || captured_) return false;
  // Others take the library several operations, which have not been measured.
  const bool equal =
      std::all_of(cols.begin(), cols.end(), [&](uint32_t c) { return c == cols[0]; });
  return equal && table_.ByLibrary(WholeBytes(cols, local));
}

void CudaGather::AwaitRoom() {
  if (communicator_ == nullptr || captured_ || ++exchanges_ % kAtOnce != 0) return;
  const DeviceEvent event = events_[exchanges_ / kAtOnce % events_.size()];
  device_.Error().IgnoreError();  // who waits for the step's end is told
  LookUntil([&] {
    const StatusOr<bool> done = device_.graphs()->Done(event);
    return !done.ok() || *done || !failed_.ok();  // an error is the device's to say
  });
  device_.graphs()->Record(event, DeviceStream::kCompute).IgnoreError();
}

void CudaGather::Queue(std::span<const uint32_t> cols, Tensor local, bool receives, Tensor out) {
  AwaitRoom();
  ByLibrary(cols, local) ? ByCommunicator(cols, local, receives, out)
                         : ByMemory(cols, local, receives, out);
}

void CudaGather::ByMemory(std::span<const uint32_t> cols, Tensor local, bool receives, Tensor out) {
  GatherArgs args = memory_.ArgsOf(cols, local, options_.timeout_ns);
  if (receives) args.out = Data(out);
  device_.kernels().gather_columns(args, device_.stream());
}

bool CudaGather::AddNorm(std::span<const uint32_t> cols, Tensor local, const RmsNormArgs& norm) {
  if (trial_ || ByLibrary(cols, local)) return false;
  const GatherArgs args = memory_.ArgsOf(cols, local, options_.timeout_ns);
  if (!HasGatherAddNorm(args)) return false;
  AwaitRoom();
  device_.kernels().gather_add_norm({args, norm}, device_.stream());
  return true;
}

// Those that want nothing gather all the same: they would have to send it anyway.
void CudaGather::ByCommunicator(std::span<const uint32_t> cols, Tensor local, bool receives,
                                Tensor out) {
  if (!failed_.ok()) return;  // TakeError says it
  InterleaveArgs args;
  args.from = memory_.staging();
  if (receives) args.out = Data(out);
  args.rows = local.rows;
  args.ranks = static_cast<uint32_t>(cols.size());
  counts_.clear();
  for (uint32_t r = 0; r < args.ranks; ++r) {
    args.bytes[r] = cols[r] * ElementBytes(TypeOf(local));
    counts_.push_back(size_t{local.rows} * args.bytes[r]);
  }
  CHECK(WholeBytes(cols, local) <= memory_.slot_bytes());
  waits_since_ns_ = RealClock::Now();
  if (memory_.connected()) memory_.Barrier(options_.timeout_ns);
  ++exchanges_by_library_;
  if (const Status queued = communicator_->AllGather(Data(local), counts_, memory_.staging());
      !queued.ok()) {
    return Fail(queued);
  }
  if (receives) device_.kernels().interleave_columns(args, device_.stream());
}

void CudaGather::Wait() {
  // The kernels of exchanges by memory know themselves how long to wait.
  if (communicator_ == nullptr && (!memory_.connected() || options_.epoch == nullptr)) return;
  LookUntil([this] { return device_.Idle(); });
}

void CudaGather::LookUntil(const std::function<bool()>& done) {
  const int64_t begin = RealClock::Now();
  waits_since_ns_ = begin;
  while (!done()) {
    Look();
    if (RealClock::Now() - begin > kSpinNs) usleep(kLookEveryUs);
  }
}

void CudaGather::Look() {
  if (!is_queued()) return;
  if (memory_.connected() && EpochIsOver()) memory_.Abort();
  if (communicator_ != nullptr && failed_.ok()) {
    if (const Status error = communicator_->Error(); !error.ok()) {
      Fail(error);
    } else if (IsOver() || (memory_.connected() && memory_.failed())) {
      Fail(OkStatus());
    }
  }
  if (!IsOver()) options_.heartbeat.Beat();  // or a device that hangs is never found
}

// All waits end; nothing is exchanged any more until the next Connect.
void CudaGather::Fail(const Status& status) {
  if (EpochIsOver()) {
    failed_ = absl::AbortedError("the epoch is over");
  } else {
    failed_ = absl::DeadlineExceededError(StrCat("a rank did not come to an exchange of columns",
                                                 status.ok() ? "" : ": ", status.message()));
  }
  if (memory_.connected()) memory_.Abort();
  communicator_->Abort();
}

Status CudaGather::TakeError() {
  if (communicator_ != nullptr) {
    if (failed_.ok()) {
      if (const Status error = communicator_->Error(); !error.ok()) Fail(error);
    }
    RETURN_IF_ERROR(failed_);
  }
  return memory_.connected() ? memory_.TakeError() : OkStatus();
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
