#include "deploy/launcher/workload/nearest_rank.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace flotilla {

int64_t NearestRank(std::vector<int64_t> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace flotilla
