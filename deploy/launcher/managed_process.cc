#include "deploy/launcher/managed_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "common/base/log.h"

namespace flotilla {
namespace {

// Of 16 KiB at a time: a process that never stops talking must not keep us from the others.
constexpr int kMaxPieces = 64;

}  // namespace

std::string ProcessExit::Describe() const {
  if (exited) return absl::StrCat("exited with status ", code);
  if (by_us) return "was killed by the launcher";
  return absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
}

ManagedProcess::ManagedProcess(std::string name, Wiring wiring)
    : name_(std::move(name)), wiring_(wiring) {}

ManagedProcess::~ManagedProcess() { CloseOutput(); }

Status ManagedProcess::Start(const ChildSpec& spec, int64_t now_ns) {
  if (started_) {
    ++restarts_count_;
    wiring_.restarts->Increment();
  }
  started_ = true;
  policy_.OnStart();
  StatusOr<Child> child = SpawnChild(spec);
  if (!child.ok()) {
    restart_ns_ = policy_.OnExit(now_ns);
    return Annotate(child.status(), name_);
  }
  lines_ = LineBuffer();
  killed_ = false;
  child_ = *std::move(child);
  wiring_.up(true);
  wiring_.loop->Add(child_->output.get(), [this] { PumpOutput(); });
  Log().debug("started {} {}", Kv("name", name_), Kv("pid", child_->pid));
  return OkStatus();
}

ProcessExit ManagedProcess::OnExit(int wait_status, int64_t now_ns) {
  PumpOutput();
  CloseOutput();
  child_.reset();
  wiring_.up(false);
  ProcessExit exit;
  exit.exited = WIFEXITED(wait_status);
  exit.code = exit.exited ? WEXITSTATUS(wait_status) : 0;
  exit.signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  exit.by_us = killed_ && exit.signal == SIGKILL;
  restart_ns_ = exit.PeerLost() ? policy_.OnPeerLost(now_ns) : policy_.OnExit(now_ns);
  return exit;
}

void ManagedProcess::Signal(int signal) {
  if (!child_) return;
  killed_ |= signal == SIGKILL;
  SignalGroup(child_->pid, signal);
}

void ManagedProcess::PumpOutput() {
  if (!child_ || !child_->output.valid()) return;
  auto print = [this](std::string_view line) { wiring_.logs->Write(name_, line); };
  std::array<char, 16384> buffer;
  for (int pieces = 0; pieces < kMaxPieces; ++pieces) {
    const ssize_t n = read(child_->output.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      lines_.Flush(print);
      CloseOutput();
      return;
    }
    lines_.Append(std::string_view(buffer.data(), static_cast<size_t>(n)), print);
  }
}

void ManagedProcess::CloseOutput() {
  if (!child_ || !child_->output.valid()) return;
  wiring_.loop->Remove(child_->output.get());
  child_->output.reset();
}

}  // namespace flotilla
