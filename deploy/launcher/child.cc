#include "deploy/launcher/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/check.h"

namespace flotilla {
namespace {

void WriteText(const char* text) {
  // Nothing can be done if even this fails: the exit status says it too.
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// Between fork and exec: async-signal-safe calls only, since other threads may have held locks.
[[noreturn]] void RunChild(pid_t parent, int output, const ChildSpec& spec,
                           const std::vector<char*>& argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the launcher died before prctl
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  if (null > STDERR_FILENO) close(null);
  for (const int fd : spec.inherit_fds) fcntl(fd, F_SETFD, 0);
  execv(argv[0], argv.data());
  WriteText("can't run ");
  WriteText(argv[0]);
  WriteText(errno == ENOENT ? ": no such file\n" : ": not executable here\n");
  _exit(2);
}

}  // namespace

StatusOr<Child> SpawnChild(const ChildSpec& spec) {
  CHECK(gettid() == getpid());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno)));
  UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);

  std::vector<char*> argv;
  for (const std::string& arg : spec.argv) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) RunChild(parent, write_end.get(), spec, argv);
  setpgid(pid, pid);  // also here: Signal() may come before the child has run
  return Child{pid, std::move(read_end)};
}

void SignalGroup(pid_t pid, int signal) {
  if (kill(-pid, signal) != 0) kill(pid, signal);
}

}  // namespace flotilla
