#include "deploy/launcher/router_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"

namespace flotilla {

std::optional<RouterPorts> ParseRouterReady(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (words.size() < 3 || words[0] != "READY") return std::nullopt;
  RouterPorts ports;
  for (const std::string& word : words) {
    absl::string_view value = word;
    uint32_t port = 0;
    if (absl::ConsumePrefix(&value, "http=") && absl::SimpleAtoi(value, &port) && port <= 65535)
      ports.http = static_cast<uint16_t>(port);
    if (absl::ConsumePrefix(&value, "grpc=") && absl::SimpleAtoi(value, &port) && port <= 65535)
      ports.grpc = static_cast<uint16_t>(port);
  }
  if (ports.http == 0 || ports.grpc == 0) return std::nullopt;
  return ports;
}

Status CheckRouterFlags(const ResolvedOptions& resolved, const std::vector<std::string>& replicas) {
  constexpr absl::string_view kWayOut = "Run with --help";  // CLI11's, behind what is wrong
  const ServeOptions& o = resolved.options;
  ChildSpec spec{RouterArgv(resolved, {o.port, o.grpc_port, replicas, -1}), {}};
  spec.argv.push_back("--check");
  ASSIGN_OR_RETURN(const Child child, SpawnChild(spec));
  std::string said = "it does not say whether its flags are right";
  LineBuffer lines;
  const auto take = [&](const std::string& line) {
    if (!line.empty() && !absl::StartsWith(line, kWayOut)) said = line;
  };
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd entry{child.output.get(), POLLIN, 0};
    poll(&entry, 1, -1);
    const ssize_t n = read(child.output.get(), buffer.data(), buffer.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) break;
    lines.Append(std::string_view(buffer.data(), static_cast<size_t>(n)), take);
  }
  int wait_status = 0;
  while (waitpid(child.pid, &wait_status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return OkStatus();
  absl::string_view reason = said;
  absl::ConsumePrefix(&reason, "flotilla-router: ");
  return absl::InvalidArgumentError(absl::StrCat("router: ", reason));
}

RouterProcess::RouterProcess(const ResolvedOptions* resolved, EventLoop* loop,
                             ManagedProcess::Wiring wiring, std::vector<std::string> replicas)
    : resolved_(resolved),
      loop_(loop),
      wiring_(wiring),
      replicas_(std::move(replicas)),
      ports_{resolved->options.port, resolved->options.grpc_port},
      current_(std::make_unique<Run>(wiring)) {}

RouterProcess::~RouterProcess() {
  CloseNotify(current_.get());
  if (successor_ != nullptr) CloseNotify(successor_.get());
  for (const auto& run : leaving_) CloseNotify(run.get());
}

Status RouterProcess::Start(int64_t now_ns) { return StartRun(current_.get(), now_ns); }

Status RouterProcess::StartRun(Run* run, int64_t now_ns) {
  CloseNotify(run);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno)));
  run->notify.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  fcntl(run->notify.get(), F_SETFL, O_NONBLOCK);
  const RouterWiring wiring{ports_.http, ports_.grpc, replicas_, write_end.get()};
  RETURN_IF_ERROR(run->process.Start({RouterArgv(*resolved_, wiring), {write_end.get()}}, now_ns));
  run->notify_lines = LineBuffer();
  loop_->Add(run->notify.get(), [this, run] { ReadNotify(run); });
  return OkStatus();
}

Status RouterProcess::Tick(int64_t now_ns) {
  if (ready()) current_->process.OnReady(now_ns);
  return current_->process.Due(now_ns) ? Start(now_ns) : OkStatus();
}

Status RouterProcess::StartSuccessor(int64_t now_ns) {
  if (successor_ != nullptr) ReadNotify(successor_.get());  // it may have just said READY
  if (!ready()) return absl::FailedPreconditionError("the router is not ready");
  if (successor_ != nullptr) {
    successor_->process.Signal(SIGKILL);
    return absl::FailedPreconditionError("the one that was starting is ended; ask again");
  }
  successor_ = std::make_unique<Run>(wiring_);
  Status status = StartRun(successor_.get(), now_ns);
  if (!status.ok()) {
    CloseNotify(successor_.get());
    successor_.reset();
  }
  return status;
}

std::optional<RouterProcess::Exit> RouterProcess::OnExit(pid_t pid, int wait_status,
                                                         int64_t now_ns) {
  if (successor_ != nullptr && successor_->process.pid() == pid) ReadNotify(successor_.get());
  if (current_->process.pid() == pid) {
    CloseNotify(current_.get());
    current_->ready = false;
    const ProcessExit exit = current_->process.OnExit(wait_status, now_ns);
    if (successor_ == nullptr) return Exit{true, exit};
    // It has the sockets already, and goes on alone.
    Log().warn("{} {}", exit.Describe(), Kv("name", "router"));
    current_ = std::move(successor_);
    wiring_.up(true);
    return Exit{false, exit};
  }
  const auto end = [&](Run* run) {
    CloseNotify(run);
    const ProcessExit exit = run->process.OnExit(wait_status, now_ns);
    wiring_.up(current_->process.running());
    return Exit{false, exit};
  };
  if (successor_ != nullptr && successor_->process.pid() == pid) {
    const Exit ended = end(successor_.get());
    Log().error("the router's successor {}, the router stays {}", ended.exit.Describe(),
                Kv("reason", MessageOfLogLine(successor_->process.last_line())));
    successor_.reset();
    return ended;
  }
  const auto found = std::find_if(leaving_.begin(), leaving_.end(),
                                  [pid](const auto& run) { return run->process.pid() == pid; });
  if (found == leaving_.end()) return std::nullopt;
  const Exit ended = end(found->get());
  Log().info("the former router {}", ended.exit.Describe());
  leaving_.erase(found);
  return ended;
}

bool RouterProcess::AnyRunning() const {
  return current_->process.running() || successor_ != nullptr || !leaving_.empty();
}

void RouterProcess::Signal(int signal) {
  current_->process.Signal(signal);
  if (successor_ != nullptr) successor_->process.Signal(signal);
  for (const auto& run : leaving_) run->process.Signal(signal);
}

void RouterProcess::ReadNotify(Run* run) {
  if (!run->notify.valid()) return;
  std::array<char, 256> buffer;
  const ssize_t n = read(run->notify.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    CloseNotify(run);
    return;
  }
  run->notify_lines.Append(std::string_view(buffer.data(), static_cast<size_t>(n)),
                           [this, run](const std::string& line) { OnLine(run, line); });
}

void RouterProcess::OnLine(Run* run, const std::string& line) {
  if (const auto ports = ParseRouterReady(line)) {
    OnReady(run, *ports);
  } else if (line == "SERVING" || line == "NOT_SERVING") {
    run->serving = line == "SERVING";
  } else {
    Log().error("the router's ready line is wrong {}", Kv("line", line));
  }
}

void RouterProcess::OnReady(Run* run, const RouterPorts& ports) {
  ports_ = ports;
  run->ready = run->serving = true;
  if (run != successor_.get()) return;
  Log().info("the router has a successor {}", Kv("pid", run->process.pid()));
  leaving_.push_back(std::move(current_));
  current_ = std::move(successor_);
}

void RouterProcess::CloseNotify(Run* run) {
  if (!run->notify.valid()) return;
  loop_->Remove(run->notify.get());
  run->notify.reset();
}

}  // namespace flotilla
