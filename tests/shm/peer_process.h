// A forked peer that stops or kills itself at the n-th point between shared writes (shm/points.h).
// For tests linked with shm_points. The test process must have no other thread when it forks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>

namespace flotilla {

struct PointPlan {
  uint32_t point = 0;  // the n-th from the call to ArmPoint on; 0: none
  int signal = 0;      // SIGKILL or SIGSTOP
};

// In the peer: from here on count points, and raise the plan's signal at its point.
void ArmPoint(const PointPlan& plan);

class PeerProcess {
 public:
  // Runs body() in a child; its result is the exit code. The child dies with the test.
  explicit PeerProcess(const std::function<int()>& body);
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess& operator=(PeerProcess&&) = delete;
  ~PeerProcess();  // kills it if it still runs

  enum class State { kRunning, kStopped, kKilled, kExited };
  State Poll();  // never blocks
  // Blocks until it is in another state than kRunning (ctest's timeout ends a hang).
  State WaitWhileRunning();
  // Waits for the end, at most `seconds`. False: it still runs (a hang).
  bool WaitForEnd(int seconds);
  int exit_code() const { return exit_code_; }
  void Continue();

 private:
  State Look(int options);  // waitpid's

  pid_t pid_;
  State state_ = State::kRunning;
  int exit_code_ = -1;
};

}  // namespace flotilla
