#include "worker_proc/cuda/emulation/emulated_communicator.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker_proc/cuda/emulation/block.h"
#include "worker_proc/cuda/emulation/launch_queue.h"

namespace flotilla::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kLookEvery{200};

// Where the ranks of one id meet: a round is over when all of them have come.
class Meeting {
 public:
  explicit Meeting(uint32_t ranks) : from(ranks) {}

  uint64_t Come() {
    const std::lock_guard lock(mutex_);
    const uint64_t mine = round_;
    if (++arrived_ == from.size()) {
      arrived_ = 0;
      ++round_;
    }
    return mine;
  }
  bool AllCame(uint64_t round) const {
    const std::lock_guard lock(mutex_);
    return round_ != round;
  }
  // Nobody meets here any more.
  void End() { over_ = true; }
  bool over() const { return over_; }

  std::vector<const std::byte*> from;  // of each rank, between two rounds

 private:
  mutable std::mutex mutex_;
  uint32_t arrived_ = 0;
  uint64_t round_ = 0;
  std::atomic<bool> over_ = false;
};

class EmulatedCommunicator final : public Communicator {
 public:
  EmulatedCommunicator(std::shared_ptr<Meeting> meeting, const EmulatedMember& member,
                       emulation::LaunchQueue* queue)
      : meeting_(std::move(meeting)),
        rank_(member.rank),
        fails_(member.fails),
        patience_(member.patience_ns),
        queue_(*queue) {}

  const char* name() const override { return "emulated links"; }
  Status AllGather(const void* from, std::span<const size_t> bytes, std::byte* to) override {
    CHECK(bytes.size() == meeting_->from.size());
    if (fails_) return absl::InternalError("emulated links: no memory to connect with");
    const auto exchange = std::make_shared<Exchange>();
    exchange->from = static_cast<const std::byte*>(from);
    exchange->bytes.assign(bytes.begin(), bytes.end());
    exchange->to = to;
    emulation::Enqueue(
        [this, exchange] { queue_.AddGate([this, exchange] { return IsDone(exchange.get()); }); });
    return OkStatus();
  }
  Status Error() override {
    if (!meeting_->over()) return OkStatus();
    return absl::DeadlineExceededError("emulated links: a rank did not come");
  }
  void Abort() override { meeting_->End(); }

 private:
  struct Exchange {
    const std::byte* from = nullptr;
    std::vector<size_t> bytes;
    std::byte* to = nullptr;
    int meetings = 0;  // of two
    uint64_t round = 0;
    Clock::time_point begin;
  };
  // Or will never be.
  bool IsDone(Exchange* exchange) {
    if (exchange->meetings == 0) {
      exchange->begin = Clock::now();
      meeting_->from[rank_] = exchange->from;
      exchange->round = meeting_->Come();
      exchange->meetings = 1;
    }
    if (meeting_->over()) return true;
    if (!meeting_->AllCame(exchange->round)) {
      if (Clock::now() - exchange->begin > patience_) meeting_->End();
      return false;
    }
    if (exchange->meetings == 2) return true;
    std::byte* to = exchange->to;
    for (size_t r = 0; r < exchange->bytes.size(); ++r) {
      std::memcpy(to, meeting_->from[r], exchange->bytes[r]);
      to += exchange->bytes[r];
    }
    // Nobody overwrites what another still reads.
    exchange->round = meeting_->Come();
    exchange->meetings = 2;
    return false;
  }

  const std::shared_ptr<Meeting> meeting_;
  const uint32_t rank_;
  const bool fails_;
  const std::chrono::nanoseconds patience_;
  emulation::LaunchQueue& queue_;
};

}  // namespace

CommunicatorId NewEmulatedId() {
  static std::atomic<uint64_t> next{1};
  const uint64_t number = next.fetch_add(1);
  CommunicatorId id = {};
  std::memcpy(id.data(), &number, sizeof(number));
  return id;
}

StatusOr<std::unique_ptr<Communicator>> JoinEmulated(const CommunicatorId& id,
                                                     const EmulatedMember& member,
                                                     const GiveUp& give_up,
                                                     emulation::LaunchQueue* queue) {
  static std::mutex mutex;
  static std::map<CommunicatorId, std::weak_ptr<Meeting>> meetings;
  std::shared_ptr<Meeting> meeting;
  {
    const std::lock_guard lock(mutex);
    std::erase_if(meetings, [](const auto& entry) { return entry.second.expired(); });
    meeting = meetings[id].lock();
    if (meeting == nullptr) {
      meeting = std::make_shared<Meeting>(member.ranks);
      meetings[id] = meeting;
    }
  }
  const uint64_t round = meeting->Come();
  while (!meeting->AllCame(round)) {
    if (give_up()) meeting->End();
    if (meeting->over()) return absl::AbortedError("emulated links: a rank did not join");
    std::this_thread::sleep_for(kLookEvery);
  }
  return std::make_unique<EmulatedCommunicator>(std::move(meeting), member, queue);
}

}  // namespace flotilla::cuda
