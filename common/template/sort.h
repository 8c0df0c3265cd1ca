// Python's sorted(): stable, by `<` alone.
//
// Threads: one. Errors: TypeError if two keys have no order.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

// The positions of `keys` in sorted order. Equal ones keep their order, in reverse too.
StatusOr<std::vector<size_t>> SortedOrder(Runtime& rt, const std::vector<Value>& keys,
                                          bool reverse);

}  // namespace flotilla::jinja
