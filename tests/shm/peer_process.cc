#include "tests/shm/peer_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/base/clock.h"
#include "shm/points.h"

namespace flotilla {
namespace {

PointPlan g_plan;
uint32_t g_reached = 0;

void ReachPoint() {
  if (++g_reached == g_plan.point) kill(getpid(), g_plan.signal);
}

}  // namespace

void ArmPoint(const PointPlan& plan) {
  g_plan = plan;
  g_reached = 0;
  g_shm_point_hook = plan.point > 0 ? ReachPoint : nullptr;
}

PeerProcess::PeerProcess(const std::function<int()>& body) {
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) {
    std::perror("fork");
    std::abort();
  }
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(99);
  const int code = body();
  std::fflush(nullptr);
  _exit(code);
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), state_(other.state_), exit_code_(other.exit_code_) {}

PeerProcess::~PeerProcess() {
  if (pid_ < 0 || state_ == State::kKilled || state_ == State::kExited) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

PeerProcess::State PeerProcess::Poll() { return Look(WNOHANG); }

PeerProcess::State PeerProcess::WaitWhileRunning() {
  while (state_ == State::kRunning) Look(0);
  return state_;
}

PeerProcess::State PeerProcess::Look(int options) {
  if (state_ == State::kKilled || state_ == State::kExited) return state_;
  int status = 0;
  if (waitpid(pid_, &status, options | WUNTRACED | WCONTINUED) != pid_) return state_;
  if (WIFEXITED(status)) {
    state_ = State::kExited;
    exit_code_ = WEXITSTATUS(status);
  } else if (WIFSIGNALED(status)) {
    state_ = State::kKilled;
  } else {
    state_ = WIFSTOPPED(status) ? State::kStopped : State::kRunning;
  }
  return state_;
}

bool PeerProcess::WaitForEnd(int seconds) {
  if (Poll() == State::kKilled || state_ == State::kExited) return true;
  const int64_t deadline_ns = RealClock::Now() + seconds * kNsPerSecond;
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (pidfd < 0) return false;
  for (;;) {
    const int64_t left_ms = (deadline_ns - RealClock::Now()) / kNsPerMs;
    pollfd ended{pidfd, POLLIN, 0};
    const int rc = left_ms > 0 ? poll(&ended, 1, static_cast<int>(left_ms)) : 0;
    if (rc < 0 && errno == EINTR) continue;
    close(pidfd);
    if (rc <= 0) return false;
    // A stop or continue may be reported first.
    while (Look(0) != State::kKilled && state_ != State::kExited) {
    }
    return true;
  }
}

void PeerProcess::Continue() { kill(pid_, SIGCONT); }

}  // namespace flotilla
