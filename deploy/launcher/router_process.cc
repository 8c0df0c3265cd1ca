#include "deploy/launcher/router_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

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

RouterProcess::RouterProcess(const ResolvedOptions* resolved, EventLoop* loop,
                             ManagedProcess::Wiring wiring, std::vector<std::string> replicas)
    : resolved_(resolved),
      loop_(loop),
      process_("router", wiring),
      replicas_(std::move(replicas)),
      ports_{resolved->options.port, resolved->options.grpc_port} {}

RouterProcess::~RouterProcess() { CloseNotify(); }

Status RouterProcess::Start(int64_t now_ns) {
  CloseNotify();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno)));
  notify_.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  fcntl(notify_.get(), F_SETFL, O_NONBLOCK);
  RouterWiring wiring{ports_.http, ports_.grpc, replicas_, write_end.get()};
  RETURN_IF_ERROR(process_.Start({RouterArgv(*resolved_, wiring), {write_end.get()}}, now_ns));
  notify_lines_ = LineBuffer();
  loop_->Add(notify_.get(), [this] { ReadNotify(); });
  return OkStatus();
}

Status RouterProcess::Tick(int64_t now_ns) {
  if (ready_) process_.OnReady(now_ns);
  return process_.Due(now_ns) ? Start(now_ns) : OkStatus();
}

std::optional<ProcessExit> RouterProcess::OnExit(pid_t pid, int wait_status, int64_t now_ns) {
  if (process_.pid() != pid) return std::nullopt;
  CloseNotify();
  ready_ = false;
  return process_.OnExit(wait_status, now_ns);
}

void RouterProcess::ReadNotify() {
  std::array<char, 256> buffer;
  const ssize_t n = read(notify_.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    CloseNotify();
    return;
  }
  notify_lines_.Append(std::string_view(buffer.data(), static_cast<size_t>(n)),
                       [this](const std::string& line) {
                         if (const auto ports = ParseRouterReady(line)) {
                           ports_ = *ports;
                           ready_ = true;
                         } else {
                           Log().error("the router's ready line is wrong {}", Kv("line", line));
                         }
                       });
}

void RouterProcess::CloseNotify() {
  if (!notify_.valid()) return;
  loop_->Remove(notify_.get());
  notify_.reset();
}

}  // namespace flotilla
