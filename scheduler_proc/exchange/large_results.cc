#include "scheduler_proc/exchange/large_results.h"

#include <algorithm>
#include <utility>

#include "scheduler_proc/exchange/random_id.h"

namespace flotilla {
namespace {

constexpr int64_t kKeepNs = 60 * kNsPerSecond;

size_t Bytes(const std::vector<v1::TokenLogprobs>& entries) {
  size_t bytes = 0;
  for (const v1::TokenLogprobs& entry : entries) bytes += entry.ByteSizeLong();
  return bytes;
}

}  // namespace

uint64_t LargeResults::Put(std::vector<v1::TokenLogprobs> entries) {
  Entry entry;
  entry.bytes = Bytes(entries);
  entry.entries = std::move(entries);
  entry.expires_ns = clock_->NowNs() + kKeepNs;
  std::lock_guard lock(mutex_);
  if (entry.bytes > max_bytes_) return 0;
  DropLocked(entry.bytes);
  uint64_t id = 0;
  while (id == 0 || results_.count(id) != 0) id = RandomU64();
  bytes_ += entry.bytes;
  results_.emplace(id, std::move(entry));
  return id;
}

std::optional<std::vector<v1::TokenLogprobs>> LargeResults::Take(uint64_t id) {
  std::lock_guard lock(mutex_);
  DropLocked(0);
  auto it = results_.find(id);
  if (it == results_.end()) return std::nullopt;
  std::vector<v1::TokenLogprobs> entries = std::move(it->second.entries);
  bytes_ -= it->second.bytes;
  results_.erase(it);
  return entries;
}

// The expired ones, then the oldest until `needed` bytes fit.
void LargeResults::DropLocked(size_t needed) {
  const int64_t now = clock_->NowNs();
  for (auto it = results_.begin(); it != results_.end();) {
    if (it->second.expires_ns > now) {
      ++it;
      continue;
    }
    bytes_ -= it->second.bytes;
    it = results_.erase(it);
  }
  while (bytes_ + needed > max_bytes_ && !results_.empty()) {
    auto oldest = std::min_element(results_.begin(), results_.end(), [](auto& a, auto& b) {
      return a.second.expires_ns < b.second.expires_ns;
    });
    bytes_ -= oldest->second.bytes;
    results_.erase(oldest);
  }
}

size_t LargeResults::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

void TakePiece(std::vector<v1::TokenLogprobs>* entries, size_t* begin,
               v1::GenerateResponse* response) {
  size_t bytes = 0;
  while (*begin < entries->size() && bytes < kLargeResultBytes) {
    v1::TokenLogprobs& entry = (*entries)[(*begin)++];
    bytes += entry.ByteSizeLong();
    *response->add_prompt_logprobs() = std::move(entry);
  }
}

}  // namespace flotilla
