// What another process has cost so far.
//
// Threads: any. Errors: a test's failure; 0 then.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <time.h>

namespace flotilla {

// Seconds on a core, of all its threads, exactly (/proc/PID/stat counts in hundredths).
inline double CpuSeconds(pid_t pid) {
  clockid_t clock{};
  timespec used{};
  EXPECT_EQ(clock_getcpuclockid(pid, &clock), 0);
  EXPECT_EQ(clock_gettime(clock, &used), 0);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

}  // namespace flotilla
