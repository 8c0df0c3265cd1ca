#include "deploy/launcher/metrics_http.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "deploy/launcher/listen.h"
#include "deploy/launcher/metrics_vllm.h"

namespace flotilla {
namespace {

constexpr size_t kMaxRequestBytes = 8192;
constexpr size_t kMaxPageBytes = 16 << 20;
constexpr int64_t kClientTimeoutNs = 2 * kNsPerSecond;

UniqueFd ConnectUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return UniqueFd();
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) fd.reset();
  return fd;
}

int MsLeft(int64_t deadline_ns) {
  const int64_t left = deadline_ns - RealClock::Now();
  return static_cast<int>(std::clamp<int64_t>((left + kNsPerMs - 1) / kNsPerMs, 0, 60'000));
}

// Reads what there is. False at the end of the stream, on an error, or beyond `limit`.
bool ReadSome(int fd, size_t limit, std::string* out) {
  std::array<char, 65536> buffer;
  const ssize_t n = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0 || out->size() + static_cast<size_t>(n) > limit) return false;
  out->append(buffer.data(), static_cast<size_t>(n));
  return true;
}

bool WaitFor(int fd, int16_t events, int64_t deadline_ns) {
  pollfd entry{fd, events, 0};
  return poll(&entry, 1, MsLeft(deadline_ns)) > 0;
}

std::string ReadRequest(int fd) {
  const int64_t deadline = RealClock::Now() + kClientTimeoutNs;
  std::string request;
  while (request.find("\r\n\r\n") == std::string::npos) {
    if (!WaitFor(fd, POLLIN, deadline) || !ReadSome(fd, kMaxRequestBytes, &request)) return {};
  }
  return request;
}

void SendAll(int fd, std::string_view bytes) {
  const int64_t deadline = RealClock::Now() + kClientTimeoutNs;
  while (!bytes.empty() && WaitFor(fd, POLLOUT, deadline)) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return;
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
  }
}

std::string HttpResponse(const char* status, const std::string& type, const std::string& body) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type,
                      "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n", body);
}

enum class Names { kNative, kVllm };

// Which names a target asks for; nothing if there is no such page. Other parameters are ignored.
std::optional<Names> NamesOf(absl::string_view target) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(target, absl::MaxSplits('?', 1));
  if (parts.first == "/metrics/vllm") return Names::kVllm;
  if (parts.first != "/metrics") return std::nullopt;
  for (absl::string_view parameter : absl::StrSplit(parts.second, '&')) {
    if (!absl::ConsumePrefix(&parameter, "names=")) continue;
    if (parameter != "vllm") return std::nullopt;
    return Names::kVllm;
  }
  return Names::kNative;
}

}  // namespace

std::vector<std::string> GatherPages(const std::vector<MetricsSource>& sources,
                                     int64_t timeout_ns) {
  const int64_t deadline = RealClock::Now() + timeout_ns;
  std::vector<std::string> pages(sources.size());
  std::vector<UniqueFd> fds;
  fds.reserve(sources.size());
  std::vector<bool> whole(sources.size(), false);
  for (const MetricsSource& source : sources) fds.push_back(ConnectUnix(source.socket));
  for (;;) {
    std::vector<pollfd> waiting;
    std::vector<size_t> index;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (!fds[i].valid()) continue;
      waiting.push_back({fds[i].get(), POLLIN, 0});
      index.push_back(i);
    }
    if (waiting.empty()) break;
    if (poll(waiting.data(), waiting.size(), MsLeft(deadline)) <= 0) break;
    for (size_t k = 0; k < waiting.size(); ++k) {
      const size_t i = index[k];
      if (waiting[k].revents == 0 || ReadSome(fds[i].get(), kMaxPageBytes, &pages[i])) continue;
      whole[i] = true;
      fds[i].reset();
    }
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    if (!whole[i]) pages[i].clear();  // half a page would be a wrong one
  }
  return pages;
}

StatusOr<std::unique_ptr<MetricsHttpServer>> MetricsHttpServer::Start(
    const std::string& host, uint16_t port, const ProcessMetrics* metrics) {
  uint16_t bound = 0;
  ASSIGN_OR_RETURN(UniqueFd listener, ListenTcp(host, port, &bound));
  return std::unique_ptr<MetricsHttpServer>(
      new MetricsHttpServer(std::move(listener), bound, metrics));
}

MetricsHttpServer::MetricsHttpServer(UniqueFd listener, uint16_t port,
                                     const ProcessMetrics* metrics)
    : listener_(std::move(listener)), port_(port), metrics_(metrics) {
  thread_ = std::thread([this] { Run(); });
}

MetricsHttpServer::~MetricsHttpServer() {
  stop_.store(true);
  shutdown(listener_.get(), SHUT_RDWR);  // wakes accept
  thread_.join();
}

void MetricsHttpServer::Run() {
  while (!stop_.load()) {
    const UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) {
      if (errno == EINVAL || errno == EBADF) return;  // shut down
      if (errno == EMFILE || errno == ENFILE) WaitFor(-1, 0, RealClock::Now() + 100 * kNsPerMs);
      continue;
    }
    const std::string request = ReadRequest(client.get());
    if (!request.empty()) SendAll(client.get(), Respond(request));
  }
}

std::string MetricsHttpServer::Respond(const std::string& request) const {
  const std::string text = "text/plain; charset=utf-8";
  if (!request.starts_with("GET "))
    return HttpResponse("405 Method Not Allowed", text, "GET only\n");
  const std::string target = request.substr(4, request.find_first_of(" \r\n", 4) - 4);
  const std::optional<Names> names = NamesOf(target);
  if (!names)
    return HttpResponse("404 Not Found", text,
                        "here are /metrics, /metrics/vllm and /metrics?names=vllm\n");
  const std::vector<std::string> pages = GatherPages(metrics_->sources(), kSourceTimeoutNs);
  MetricsMerger merger;
  for (size_t i = 0; i < pages.size(); ++i) merger.Add(pages[i], metrics_->sources()[i].labels);
  const std::string page = merger.Render();
  return HttpResponse("200 OK", "text/plain; version=0.0.4; charset=utf-8",
                      *names == Names::kVllm ? RenderVllmNames(page) : page);
}

}  // namespace flotilla
