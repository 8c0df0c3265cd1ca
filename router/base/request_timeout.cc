#include "router/base/request_timeout.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace flotilla {

std::optional<ApiError> ReadRequestTimeout(const std::optional<std::string>& header,
                                           int64_t most_ms, int64_t* ms) {
  if (!header.has_value()) return std::nullopt;
  const bool digits =
      std::all_of(header->begin(), header->end(), [](char c) { return c >= '0' && c <= '9'; });
  if (digits && absl::SimpleAtoi(*header, ms) && *ms >= 1 && *ms <= most_ms) return std::nullopt;
  return InvalidField(
      kRequestTimeoutHeader,
      absl::StrCat("The header '", kRequestTimeoutHeader,
                   "' must be a whole number of milliseconds from 1 to ", most_ms, "."));
}

}  // namespace flotilla
