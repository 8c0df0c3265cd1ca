// Starts one process such that it can't outlive us: it gets SIGKILL when the thread that forked it
// ends (PR_SET_PDEATHSIG; the launcher forks from its main thread only), has a process group of its
// own (Ctrl-C reaches the launcher alone, and a signal to the group reaches all it may start), no
// descriptor of ours but those named, and stdout and stderr on one pipe.
//
// Threads: the main thread. Ownership: Child owns the pipe; the process is reaped by whoever calls
// waitpid (Supervisor). A pid can't be reused before that, so Signal() never hits a stranger.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace flotilla {

struct ChildSpec {
  std::vector<std::string> argv;  // argv[0] is the binary's path
  std::vector<int> inherit_fds;   // kept open over exec, with the same numbers
};

struct Child {
  pid_t pid = -1;
  UniqueFd output;  // read end, non-blocking
};

// A binary that can't be run makes a child that says so and exits with status 2.
StatusOr<Child> SpawnChild(const ChildSpec& spec);

// To the child's process group.
void SignalGroup(pid_t pid, int signal);

}  // namespace flotilla
