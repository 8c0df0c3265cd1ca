#include "common/base/metrics_http.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "common/base/listen.h"

namespace flotilla {
namespace {

constexpr size_t kMaxRequestBytes = 8192;

int PollMs(int64_t until_ns) {
  if (until_ns == INT64_MAX) return -1;
  const int64_t left_ms = (until_ns - RealClock::Now() + kNsPerMs - 1) / kNsPerMs;
  return static_cast<int>(std::clamp<int64_t>(left_ms, 0, 60'000));
}

bool WaitToSend(int fd, int64_t deadline_ns) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, PollMs(deadline_ns)) > 0;
}

void SendAll(int fd, std::string_view bytes) {
  const int64_t deadline = RealClock::Now() + kMetricsClientTimeoutNs;
  while (!bytes.empty() && WaitToSend(fd, deadline)) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return;
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
  }
}

// Of a HEAD only the header is sent: what follows is, to the client, no part of the answer.
std::string HttpResponse(std::string_view method, const char* status, const std::string& body,
                         const char* type = "text/plain; charset=utf-8") {
  return StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type,
                "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n",
                method == "HEAD" ? "" : body);
}

}  // namespace

std::optional<MetricsPage> HealthPage(const std::string& target, const std::function<bool()>& live,
                                      bool ready) {
  if (target != "/health/live" && target != "/health/ready") return std::nullopt;
  if (!live()) return MetricsPage{"its loop hangs\n", false};
  if (target == "/health/live") return MetricsPage{"alive\n"};
  return MetricsPage{ready ? "ready\n" : "not ready\n", ready};
}

StatusOr<std::unique_ptr<MetricsHttpServer>> MetricsHttpServer::Start(Options options,
                                                                      UniqueFd adopted) {
  UniqueFd listener = std::move(adopted);
  if (!listener.valid()) {
    ASSIGN_OR_RETURN(listener, ListenTcp(options.host, options.port, &options.port));
  }
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid() || fcntl(listener.get(), F_SETFL, O_NONBLOCK) != 0)
    return absl::UnavailableError("no descriptor for the metrics' port");
  return std::unique_ptr<MetricsHttpServer>(
      new MetricsHttpServer(std::move(listener), std::move(stop), std::move(options)));
}

MetricsHttpServer::MetricsHttpServer(UniqueFd listener, UniqueFd stop, Options options)
    : listener_(std::move(listener)),
      port_(ListeningPort(listener_.get())),
      options_(std::move(options)),
      stop_(std::move(stop)) {
  thread_ = std::thread([this] { Run(); });
}

MetricsHttpServer::~MetricsHttpServer() {
  eventfd_write(stop_.get(), 1);  // no shutdown of a socket that may be another's as well
  thread_.join();
}

void MetricsHttpServer::Run() {
  std::vector<pollfd> waits;
  for (;;) {
    waits.assign({{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    for (const Client& client : clients_) waits.push_back({client.fd.get(), POLLIN, 0});
    const int64_t until_ns = clients_.empty() ? INT64_MAX : clients_.front().deadline_ns;
    if (poll(waits.data(), waits.size(), PollMs(until_ns)) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) return;
    size_t i = 2;  // those who send are served in the order in which they came
    std::erase_if(clients_, [&](Client& client) {
      return waits[i++].revents != 0 ? Serve(&client) : RealClock::Now() >= client.deadline_ns;
    });
    if (waits[1].revents != 0 && !Accept()) return;
  }
}

bool MetricsHttpServer::Accept() {
  UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!client.valid()) return errno == EAGAIN || OutlastAcceptError(errno);
  if (clients_.size() == kMetricsClients) clients_.pop_front();
  clients_.push_back({std::move(client), RealClock::Now() + kMetricsClientTimeoutNs});
  return true;
}

// True: nothing more is due to it.
bool MetricsHttpServer::Serve(Client* client) const {
  std::array<char, kMaxRequestBytes> buffer;
  const ssize_t n = recv(client->fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0 || client->request.size() + static_cast<size_t>(n) > kMaxRequestBytes) return true;
  client->request.append(buffer.data(), static_cast<size_t>(n));
  if (client->request.find("\r\n\r\n") == std::string::npos) return false;
  SendAll(client->fd.get(), Respond(client->request));
  return true;
}

std::string MetricsHttpServer::Respond(const std::string& request) const {
  const std::string method = request.substr(0, request.find_first_of(" \r\n"));
  if (method != "GET" && method != "HEAD")
    return HttpResponse(method, "405 Method Not Allowed\r\nAllow: GET, HEAD",
                        "GET and HEAD only\n");
  const size_t begin = method.size() + 1;
  const std::string target = request.substr(begin, request.find_first_of(" \r\n", begin) - begin);
  const std::optional<MetricsPage> page = options_.page(target);
  if (!page) return HttpResponse(method, "404 Not Found", options_.hint);
  return HttpResponse(method, page->ok ? "200 OK" : "503 Service Unavailable", page->text,
                      "text/plain; version=0.0.4; charset=utf-8");
}

}  // namespace flotilla
