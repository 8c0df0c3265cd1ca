// Error handling: absl::Status and StatusOr under our namespace, and two macros to pass errors on.
//
// Fallible calls return Status or StatusOr<T>; exceptions of third-party libraries stop at their
// wrapper. A broken invariant of our own is a CHECK (check.h), never a Status.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace flotilla {

using absl::OkStatus;
using absl::Status;
using absl::StatusOr;

namespace internal {
template <typename T>
decltype(auto) AbslArg(const T& arg) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return absl::string_view(arg.data(), arg.size());
  } else {
    return (arg);
  }
}
}  // namespace internal

// absl::StrCat and StrAppend that also take std::string_view, which Debian's absl (built as C++14,
// with a string_view of its own) does not.
template <typename... Args>
std::string StrCat(const Args&... args) {
  return absl::StrCat(internal::AbslArg(args)...);
}
template <typename... Args>
void StrAppend(std::string* out, const Args&... args) {
  absl::StrAppend(out, internal::AbslArg(args)...);
}

// "<context>: <message>", same code. For adding what was being done to an error from below.
inline Status Annotate(const Status& status, std::string_view context) {
  return status.ok() ? status : Status(status.code(), StrCat(context, ": ", status.message()));
}

}  // namespace flotilla

#define FLOTILLA_CONCAT_INNER(a, b) a##b
#define FLOTILLA_CONCAT(a, b) FLOTILLA_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expr)                            \
  do {                                                   \
    ::flotilla::Status flotilla_status_ = (expr);        \
    if (!flotilla_status_.ok()) return flotilla_status_; \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): names and declarations can't stand in parentheses
#define FLOTILLA_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) return tmp.status();                  \
  lhs = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)

// ASSIGN_OR_RETURN(auto file, OpenFile(path));
#define ASSIGN_OR_RETURN(lhs, expr) \
  FLOTILLA_ASSIGN_OR_RETURN_IMPL(FLOTILLA_CONCAT(flotilla_statusor_, __LINE__), lhs, expr)
