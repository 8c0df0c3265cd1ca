#include "shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

#include "common/base/check.h"
#include "common/base/clock.h"

namespace flotilla {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The kernel takes the address of a plain word; std::atomic<uint32_t> is one (asserted above).
// Never FUTEX_PRIVATE_FLAG: the word lives in memory shared by processes.
uint32_t* Word(const std::atomic<uint32_t>* word) {
  return reinterpret_cast<uint32_t*>(const_cast<std::atomic<uint32_t>*>(word));
}

}  // namespace

bool FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_ns) {
  timespec deadline;
  timespec* timeout = nullptr;
  if (deadline_ns != INT64_MAX) {
    if (deadline_ns < 0) deadline_ns = 0;
    deadline.tv_sec = deadline_ns / kNsPerSecond;
    deadline.tv_nsec = deadline_ns % kNsPerSecond;
    timeout = &deadline;
  }
  // FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time, so signals do not lengthen the wait.
  const long rc = syscall(SYS_futex, Word(word), FUTEX_WAIT_BITSET, expected, timeout, nullptr,
                          FUTEX_BITSET_MATCH_ANY);
  if (rc == 0 || errno == EAGAIN || errno == EINTR) return true;
  CHECK(errno == ETIMEDOUT);  // EFAULT, EINVAL: a bad address, our own bug
  return false;
}

void FutexWake(std::atomic<uint32_t>* word, int count) {
  syscall(SYS_futex, Word(word), FUTEX_WAKE, count, nullptr, nullptr, 0);
}

}  // namespace flotilla
