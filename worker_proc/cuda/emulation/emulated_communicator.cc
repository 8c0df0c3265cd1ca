#include "worker_proc/cuda/emulation/emulated_communicator.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker_proc/cuda/emulation/block.h"

namespace flotilla::cuda {
namespace {

constexpr std::chrono::milliseconds kLookEvery{2};

// Where the ranks of one id meet: a round is over when all of them have come.
struct Meeting {
  explicit Meeting(uint32_t ranks) : from(ranks) {}

  // False: give_up says so; then nobody meets here any more.
  bool Meet(const GiveUp& give_up) {
    std::unique_lock lock(mutex);
    const uint64_t mine = round;
    if (++arrived == from.size()) {
      arrived = 0;
      ++round;
      all_here.notify_all();
    }
    while (round == mine && !over) {
      all_here.wait_for(lock, kLookEvery);
      if (round == mine && give_up()) over = true;
    }
    return !over;
  }

  std::mutex mutex;
  std::condition_variable all_here;
  uint32_t arrived = 0;
  uint64_t round = 0;
  bool over = false;
  std::vector<const std::byte*> from;  // of each rank, between two rounds
};

class EmulatedCommunicator final : public Communicator {
 public:
  EmulatedCommunicator(std::shared_ptr<Meeting> meeting, uint32_t rank, int64_t patience_ns,
                       emulation::LaunchQueue* queue)
      : meeting_(std::move(meeting)), rank_(rank), patience_(patience_ns), queue_(*queue) {}

  const char* name() const override { return "emulated links"; }
  Status AllGather(const void* from, std::span<const size_t> bytes, std::byte* to) override {
    CHECK(bytes.size() == meeting_->from.size());
    emulation::Enqueue([this, from, bytes = std::vector(bytes.begin(), bytes.end()), to] {
      queue_.Drain();
      Exchange(static_cast<const std::byte*>(from), bytes, to);
    });
    return OkStatus();
  }
  Status Error() override {
    if (!lost_) return OkStatus();
    return absl::DeadlineExceededError("emulated links: a rank did not come");
  }
  void Abort() override { lost_ = true; }

 private:
  void Exchange(const std::byte* from, const std::vector<size_t>& bytes, std::byte* to) {
    const auto begin = std::chrono::steady_clock::now();
    const auto give_up = [&] { return std::chrono::steady_clock::now() - begin > patience_; };
    if (lost_) return;
    meeting_->from[rank_] = from;
    lost_ = !meeting_->Meet(give_up);
    for (size_t r = 0; r < bytes.size() && !lost_; ++r) {
      std::memcpy(to, meeting_->from[r], bytes[r]);
      to += bytes[r];
    }
    // Nobody overwrites what another still reads.
    if (!lost_) lost_ = !meeting_->Meet(give_up);
  }

  const std::shared_ptr<Meeting> meeting_;
  const uint32_t rank_;
  const std::chrono::nanoseconds patience_;
  emulation::LaunchQueue& queue_;
  bool lost_ = false;
};

}  // namespace

CommunicatorId NewEmulatedId() {
  static std::atomic<uint64_t> next{1};
  const uint64_t number = next.fetch_add(1);
  CommunicatorId id = {};
  std::memcpy(id.data(), &number, sizeof(number));
  return id;
}

StatusOr<std::unique_ptr<Communicator>> JoinEmulated(const CommunicatorId& id, uint32_t rank,
                                                     uint32_t ranks, const GiveUp& give_up,
                                                     int64_t patience_ns,
                                                     emulation::LaunchQueue* queue) {
  static std::mutex mutex;
  static std::map<CommunicatorId, std::weak_ptr<Meeting>> meetings;
  std::shared_ptr<Meeting> meeting;
  {
    const std::lock_guard lock(mutex);
    std::erase_if(meetings, [](const auto& entry) { return entry.second.expired(); });
    meeting = meetings[id].lock();
    if (meeting == nullptr) {
      meeting = std::make_shared<Meeting>(ranks);
      meetings[id] = meeting;
    }
  }
  if (!meeting->Meet(give_up)) return absl::AbortedError("emulated links: a rank did not join");
  return std::make_unique<EmulatedCommunicator>(std::move(meeting), rank, patience_ns, queue);
}

}  // namespace flotilla::cuda
