#include "scheduler_proc/flight/plan_hash.h"

#include <cstring>
#include <vector>

namespace flotilla {
namespace {

class Hasher {
 public:
  template <typename T>
  void Add(const std::vector<T>& values) {
    AddBytes(values.data(), values.size() * sizeof(T));
    Mix(values.size());
  }
  void Mix(uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9E3779B97F4A7C15ull;
    hash_ ^= hash_ >> 29;
  }
  uint64_t hash() const { return hash_; }

 private:
  void AddBytes(const void* data, size_t bytes) {
    const auto* words = static_cast<const char*>(data);
    for (; bytes >= sizeof(uint64_t); words += sizeof(uint64_t), bytes -= sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, words, sizeof(word));
      Mix(word);
    }
    uint64_t rest = 0;
    if (bytes > 0) std::memcpy(&rest, words, bytes);
    Mix(rest);
  }

  uint64_t hash_ = 1;
};

}  // namespace

uint64_t PlanHash(const StepPlan& plan) {
  Hasher hasher;
  hasher.Mix(plan.step_id);
  hasher.Mix(plan.epoch);
  hasher.Add(plan.opens);
  hasher.Add(plan.rows);
  hasher.Add(plan.input_ids);
  hasher.Add(plan.new_pages);
  hasher.Add(plan.closes);
  hasher.Add(plan.logit_bias);
  hasher.Add(plan.history);
  hasher.Add(plan.stop_ids);
  return hasher.hash();
}

}  // namespace flotilla
