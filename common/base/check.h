// CHECK: a broken invariant of our own ends the process (the supervisor restarts it).
//
// For bad input use Status. DCHECK is CHECK in debug and sanitizer builds, nothing otherwise.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace flotilla::internal {
[[noreturn]] inline void CheckFailed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, what);
  std::fflush(stderr);
  std::abort();
}
}  // namespace flotilla::internal

#define CHECK(cond) \
  ((cond) ? (void)0 : ::flotilla::internal::CheckFailed(__FILE__, __LINE__, #cond))
#define CHECK_OK(expr)                                                                           \
  do {                                                                                           \
    const auto& flotilla_check_ = (expr);                                                        \
    if (!flotilla_check_.ok())                                                                   \
      ::flotilla::internal::CheckFailed(__FILE__, __LINE__, flotilla_check_.ToString().c_str()); \
  } while (false)

#ifdef NDEBUG
#define DCHECK(cond) ((void)sizeof(cond))
#else
#define DCHECK(cond) CHECK(cond)
#endif
