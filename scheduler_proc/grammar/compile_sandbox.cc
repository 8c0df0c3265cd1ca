#include "scheduler_proc/grammar/compile_sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/write_all.h"

extern char** environ;

namespace flotilla {
namespace {

constexpr int kControlFd = 3;  // in the sandbox
// The child ends itself; this long after that its socket must have closed.
constexpr int64_t kSlackMs = 200;
// A process that dies closes its sockets one after another, the job's perhaps before the control
// socket's: so long after a job that just ended the sandbox may turn out to be gone.
constexpr int kDyingMs = 100;
// A sandbox that has not begun with a job after so long hangs.
constexpr uint32_t kHangMs = 1000;

struct SocketPair {
  UniqueFd ours, theirs;
};

StatusOr<SocketPair> MakeSocketPair(int type) {
  int fds[2];
  if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) != 0)
    return absl::UnavailableError(StrCat("socketpair: ", std::strerror(errno)));
  return SocketPair{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

StatusOr<UniqueFd> MemfdOf(std::string_view bytes) {
  UniqueFd fd(memfd_create("flotilla-vocabulary", MFD_CLOEXEC));
  if (!fd.valid() ||
      pwrite(fd.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return absl::UnavailableError(StrCat("memfd: ", std::strerror(errno)));
  return fd;
}

}  // namespace

StatusOr<std::unique_ptr<CompileSandbox>> CompileSandbox::Start(const Options& options,
                                                                const VocabularyTokens& tokens) {
  std::unique_ptr<CompileSandbox> sandbox(new CompileSandbox(options));
  ASSIGN_OR_RETURN(sandbox->vocabulary_, MemfdOf(BuildVocabulary(tokens)));
  std::lock_guard lock(sandbox->mutex_);
  RETURN_IF_ERROR(sandbox->SpawnLocked());
  return sandbox;
}

CompileSandbox::~CompileSandbox() {
  std::lock_guard lock(mutex_);
  StopLocked();
}

int CompileSandbox::pid() const {
  std::lock_guard lock(mutex_);
  return pid_;
}

Status CompileSandbox::SpawnLocked() {
  StopLocked();
  ++spawns_;
  ASSIGN_OR_RETURN(SocketPair sockets, MakeSocketPair(SOCK_SEQPACKET));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, sockets.theirs.get(), kControlFd);
  // The rings and sockets of the scheduler are no business of whoever compiles.
  posix_spawn_file_actions_addclosefrom_np(&actions, kControlFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const std::string fd = StrCat("--control-fd=", kControlFd);
  char* argv[] = {const_cast<char*>(options_.program.c_str()), const_cast<char*>(fd.c_str()),
                  nullptr};
  const int error =
      posix_spawn(&pid_, options_.program.c_str(), &actions, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    pid_ = -1;
    return absl::UnavailableError(
        StrCat("can't start ", options_.program, ": ", std::strerror(error)));
  }
  control_ = std::move(sockets.ours);
  fcntl(control_.get(), F_SETFL, O_NONBLOCK);  // a sandbox that takes nothing more is none
  if (!SendWithFd(control_.get(), SandboxMessage::kVocabulary, vocabulary_.get()))
    return absl::UnavailableError(StrCat(options_.program, " is gone"));
  return OkStatus();
}

void CompileSandbox::StopLocked() {
  control_.reset();
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

StatusOr<uint64_t> CompileSandbox::SendJob(int fd) {
  std::lock_guard lock(mutex_);
  if (control_.valid() && SendWithFd(control_.get(), SandboxMessage::kCompile, fd)) return spawns_;
  Log().warn("starting the grammar sandbox again");
  RETURN_IF_ERROR(SpawnLocked());
  if (SendWithFd(control_.get(), SandboxMessage::kCompile, fd)) return spawns_;
  return absl::UnavailableError("the grammar sandbox is gone");
}

// It hangs: whoever asks next starts another.
void CompileSandbox::StopIfStill(uint64_t process) {
  std::lock_guard lock(mutex_);
  if (process == spawns_) StopLocked();
}

bool CompileSandbox::Gone(uint64_t process) {
  UniqueFd control;
  {
    std::lock_guard lock(mutex_);
    if (process != spawns_ || !control_.valid()) return true;
    control = UniqueFd(fcntl(control_.get(), F_DUPFD_CLOEXEC, 0));
  }
  pollfd hangup{control.get(), 0, 0};
  return control.valid() && poll(&hangup, 1, kDyingMs) > 0 && (hangup.revents & POLLHUP) != 0;
}

StatusOr<std::string> CompileSandbox::Compile(const GrammarSpec& spec, uint32_t time_ms) {
  const int64_t begin_ns = RealClock::Now();
  StatusOr<std::string> compiled = CompileOnce(spec, time_ms);
  if (!absl::IsUnavailable(compiled.status())) return compiled;
  // Ended from outside, with whatever it was compiling.
  const int64_t left_ms = time_ms - (RealClock::Now() - begin_ns) / kNsPerMs;
  return left_ms > 0 ? CompileOnce(spec, static_cast<uint32_t>(left_ms)) : compiled;
}

StatusOr<std::string> CompileSandbox::CompileOnce(const GrammarSpec& spec, uint32_t time_ms) {
  const int64_t begin_ns = RealClock::Now();
  ASSIGN_OR_RETURN(SocketPair job, MakeSocketPair(SOCK_STREAM));
  ASSIGN_OR_RETURN(const uint64_t process, SendJob(job.theirs.get()));
  job.theirs.reset();
  // A long text does not fit into the socket, and a sandbox that hangs takes nothing out of it.
  const timeval patience = {time_ms / 1000, static_cast<suseconds_t>(time_ms % 1000) * 1000};
  setsockopt(job.ours.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  WriteAll(job.ours.get(),
           BuildCompileRequest({spec, time_ms, options_.memory_bytes, options_.compiled_bytes}));
  shutdown(job.ours.get(), SHUT_WR);
  const int64_t deadline_ns = begin_ns + (int64_t{time_ms} + kSlackMs) * kNsPerMs;
  if (absl::IsDeadlineExceeded(AwaitBytes(job.ours.get(), deadline_ns)) && time_ms >= kHangMs) {
    StopIfStill(process);
    return absl::UnavailableError("the grammar sandbox did not begin with it");
  }
  StatusOr<std::string> frame =
      ReadToEnd(job.ours.get(), options_.compiled_bytes + 4096, deadline_ns);
  if (frame.ok() && frame->starts_with(kCompileBegins)) frame->erase(0, 1);
  const StatusOr<CompileReply> reply = frame.ok() ? ParseCompileReply(*frame) : frame.status();
  if (reply.ok() && reply->status.ok()) return reply->compiled;
  if (reply.ok()) return reply->status;
  if (RealClock::Now() - begin_ns >= int64_t{time_ms} * kNsPerMs)
    return absl::DeadlineExceededError("compiling it takes too long");
  if (Gone(process)) return absl::UnavailableError("the grammar sandbox is gone");
  return absl::ResourceExhaustedError("compiling it takes too much memory or nesting");
}

}  // namespace flotilla
