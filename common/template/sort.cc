#include "common/template/sort.h"

#include <algorithm>
#include <numeric>

#include "common/template/compare.h"

namespace flotilla::jinja {
namespace {

class MergeSort {
 public:
  MergeSort(Runtime& rt, const std::vector<Value>& keys, bool reverse)
      : rt_(rt), keys_(keys), reverse_(reverse), order_(keys.size()), merged_(keys.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
  }

  StatusOr<std::vector<size_t>> Run() {
    for (size_t width = 1; width < order_.size(); width *= 2) {
      for (size_t begin = 0; begin < order_.size(); begin += 2 * width) {
        const size_t middle = std::min(begin + width, order_.size());
        RETURN_IF_ERROR(Merge(begin, middle, std::min(middle + width, order_.size())));
      }
      order_.swap(merged_);
    }
    return std::move(order_);
  }

 private:
  Status Merge(size_t begin, size_t middle, size_t end) {
    size_t left = begin;
    size_t right = middle;
    for (size_t out = begin; out < end; ++out) {
      bool take_right = left == middle;
      if (!take_right && right < end) {
        // Only if it must: the left one came first.
        const Value& a = keys_[order_[left]];
        const Value& b = keys_[order_[right]];
        ASSIGN_OR_RETURN(take_right, reverse_ ? Less(rt_, a, b) : Less(rt_, b, a));
      }
      merged_[out] = order_[take_right ? right++ : left++];
    }
    return OkStatus();
  }

  Runtime& rt_;
  const std::vector<Value>& keys_;
  const bool reverse_;
  std::vector<size_t> order_;
  std::vector<size_t> merged_;
};

}  // namespace

StatusOr<std::vector<size_t>> SortedOrder(Runtime& rt, const std::vector<Value>& keys,
                                          bool reverse) {
  RETURN_IF_ERROR(rt.Step(static_cast<int64_t>(keys.size())));
  return MergeSort(rt, keys, reverse).Run();
}

}  // namespace flotilla::jinja
