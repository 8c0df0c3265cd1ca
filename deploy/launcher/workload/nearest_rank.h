// Percentiles by nearest rank: each is a value that was measured. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace flotilla {

// The smallest value that at least `share` of all reach; 0 of none.
int64_t NearestRank(std::vector<int64_t> values, double share);

}  // namespace flotilla
