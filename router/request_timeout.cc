#include "router/request_timeout.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace flotilla {

std::optional<ApiError> CheckRequestTimeout(const std::optional<std::string>& header,
                                            int64_t most_ms) {
  if (!header.has_value()) return std::nullopt;
  const bool digits =
      std::all_of(header->begin(), header->end(), [](char c) { return c >= '0' && c <= '9'; });
  int64_t ms = 0;
  if (digits && absl::SimpleAtoi(*header, &ms) && ms >= 1 && ms <= most_ms) return std::nullopt;
  return InvalidField(
      kRequestTimeoutHeader,
      absl::StrCat("The header '", kRequestTimeoutHeader,
                   "' must be a whole number of milliseconds from 1 to ", most_ms, "."));
}

void SetRequestTimeout(const std::optional<std::string>& header, v1::GenerateRequest* request) {
  int64_t ms = 0;
  if (header.has_value() && absl::SimpleAtoi(*header, &ms)) request->set_deadline_ms(ms);
}

}  // namespace flotilla
