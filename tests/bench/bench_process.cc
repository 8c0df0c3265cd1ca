#include "tests/bench/bench_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "common/base/check.h"

namespace flotilla {
namespace {

// Best effort: an unpinned benchmark is a noisier one.
void Allow(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CHECK(sched_getaffinity(0, sizeof(set), &set) == 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

ScopedPin::ScopedPin(int core) : before_(AllowedCores()) {
  if (core != kNotPinned) Allow({core});
}

ScopedPin::~ScopedPin() { Allow(before_); }

BenchProcess::BenchProcess(int core, const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  CHECK(pid_ >= 0);
  if (pid_ > 0) {
    const std::string path = "/proc/" + std::to_string(pid_) + "/stat";
    stat_fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(stat_fd_ >= 0);
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  if (core != kNotPinned) Allow({core});
  body();
  std::fflush(nullptr);
  _exit(0);
}

BenchProcess::~BenchProcess() {
  if (stat_fd_ >= 0) close(stat_fd_);
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void BenchProcess::Join() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0) CHECK(errno == EINTR);
  pid_ = -1;
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

bool BenchProcess::Asleep() const {
  char text[512];
  const ssize_t bytes = pread(stat_fd_, text, sizeof(text) - 1, 0);
  if (bytes <= 0) return false;
  text[bytes] = '\0';
  const char* name_end = std::strrchr(text, ')');  // "pid (name) state …"
  return name_end != nullptr && name_end[1] == ' ' && name_end[2] == 'S';
}

void* MapShared(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

void UnmapShared(void* memory, size_t bytes) { CHECK(munmap(memory, bytes) == 0); }

}  // namespace flotilla
