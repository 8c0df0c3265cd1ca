#include "shm/collective.h"

#include <cstring>
#include <new>
#include <numeric>

#include "shm/collective_layout.h"

namespace flotilla {
namespace {

constexpr size_t kStagingAlign = 4096;

size_t Stride(size_t buffer_bytes) {
  return (buffer_bytes + kStagingAlign - 1) / kStagingAlign * kStagingAlign;
}

// A collective of one rank: nobody to wait for.
class SingleRankCollective final : public Collective {
 public:
  uint32_t rank() const override { return 0; }
  uint32_t size() const override { return 1; }
  Status AllReduceSum(std::span<float>) override { return OkStatus(); }
  Status AllGather(std::span<const std::byte> in, std::span<const size_t> counts,
                   std::span<std::byte> out) override {
    if (counts.size() != 1 || counts[0] != in.size() || out.size() != in.size())
      return absl::InvalidArgumentError("collective: counts do not match the buffers");
    if (!in.empty()) std::memmove(out.data(), in.data(), in.size());
    return OkStatus();
  }
  Status Gather(std::span<const std::byte> in, std::span<const size_t> counts,
                std::span<std::byte> out, uint32_t root) override {
    RETURN_IF_ERROR(CheckRoot(root));
    return AllGather(in, counts, out);
  }
  Status Broadcast(std::span<std::byte>, uint32_t root) override { return CheckRoot(root); }
  Status Barrier() override { return OkStatus(); }
  Status Reset(uint32_t) override { return OkStatus(); }

 private:
  static Status CheckRoot(uint32_t root) {
    return root == 0 ? OkStatus() : absl::InvalidArgumentError("collective: no such root");
  }
};

}  // namespace

size_t CollectiveSegmentBytes(uint32_t ranks, size_t buffer_bytes) {
  return kStagingOffset + ranks * Stride(buffer_bytes);
}

Status InitCollective(const Segment& segment, uint32_t ranks, size_t buffer_bytes) {
  if (ranks == 0 || ranks > kMaxRanks)
    return absl::InvalidArgumentError(
        absl::StrCat("collective: ranks must be 1 to ", kMaxRanks, ", not ", ranks));
  if (buffer_bytes < kMinStagingBytes || buffer_bytes > segment.size() ||
      segment.size() < CollectiveSegmentBytes(ranks, buffer_bytes))
    return absl::InvalidArgumentError("collective: segment and staging sizes do not match");
  auto* header = new (segment.data()) CollectiveHeader{};
  header->version = kCollectiveVersion;
  header->ranks = ranks;
  header->buffer_bytes = buffer_bytes;
  header->magic = kCollectiveMagic;
  return OkStatus();
}

StatusOr<CollectiveView> CheckCollective(const Segment& segment) {
  auto* header = static_cast<CollectiveHeader*>(segment.data());
  if (segment.size() < sizeof(CollectiveHeader) || header->magic != kCollectiveMagic ||
      header->version != kCollectiveVersion)
    return absl::FailedPreconditionError("collective: wrong magic or version");
  const uint32_t ranks = header->ranks;
  const uint64_t buffer_bytes = header->buffer_bytes;
  if (ranks == 0 || ranks > kMaxRanks || buffer_bytes < kMinStagingBytes ||
      buffer_bytes > segment.size() || segment.size() < CollectiveSegmentBytes(ranks, buffer_bytes))
    return absl::FailedPreconditionError("collective: corrupt sizes");
  return CollectiveView{header, ranks, buffer_bytes / 2 / 64 * 64, Stride(buffer_bytes)};
}

void AbortCollective(const Segment& segment, uint32_t epoch) {
  StatusOr<CollectiveView> view = CheckCollective(segment);
  if (!view.ok()) return;
  std::atomic<uint32_t>& aborted = view->header->abort_epoch;
  uint32_t seen = aborted.load();
  while (seen < epoch && !aborted.compare_exchange_weak(seen, epoch)) {
  }
  for (uint32_t r = 0; r < view->ranks; ++r) {
    RankLine& line = view->header->lines[r];
    line.bell.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(&line.bell);
  }
}

std::unique_ptr<Collective> MakeSingleRankCollective() {
  return std::make_unique<SingleRankCollective>();
}

}  // namespace flotilla
