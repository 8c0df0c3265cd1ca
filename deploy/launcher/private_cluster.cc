#include "deploy/launcher/private_cluster.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "deploy/launcher/log_mux.h"

namespace flotilla {
namespace {

// "ready http=http://… …" → the URL; empty for other lines.
std::string UrlOfReadyLine(const std::string& line) {
  static const std::string kStart = "ready http=";
  if (!line.starts_with(kStart)) return {};
  return line.substr(kStart.size(), line.find(' ', kStart.size()) - kStart.size());
}

}  // namespace

StatusOr<PrivateCluster> PrivateCluster::Start(const std::string& model) {
  ChildSpec spec;
  spec.argv = {"/proc/self/exe",     "serve", "--port",      "0",    "--grpc-port", "0",
               "--metrics-port",     "0",     "--log-level", "warn", "--model",     model,
               "--shutdown-timeout", "2"};
  ASSIGN_OR_RETURN(Child child, SpawnChild(spec));
  PrivateCluster cluster(std::move(child));
  LineBuffer lines;
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd entry{cluster.child_.output.get(), POLLIN, 0};
    if (poll(&entry, 1, -1) < 0 && errno != EINTR) break;
    const ssize_t n = read(cluster.child_.output.get(), buffer.data(), buffer.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) break;
    lines.Append(std::string_view(buffer.data(), static_cast<size_t>(n)),
                 [&](const std::string& line) {
                   if (cluster.url_.empty()) cluster.url_ = UrlOfReadyLine(line);
                 });
    if (cluster.url_.empty()) continue;
    cluster.child_.output
        .reset();  // what it still logs is of no interest, and must not fill a pipe
    return cluster;
  }
  static const std::string kPrefix = "flotilla: error: ";
  const std::string& last = lines.last();
  if (last.empty()) return absl::UnavailableError("the cluster did not start");
  return absl::UnavailableError(last.starts_with(kPrefix) ? last.substr(kPrefix.size()) : last);
}

PrivateCluster::PrivateCluster(PrivateCluster&& other) noexcept
    : child_{std::exchange(other.child_.pid, -1), std::move(other.child_.output)},
      url_(std::move(other.url_)) {}

PrivateCluster::~PrivateCluster() {
  if (child_.pid < 0) return;
  SignalGroup(child_.pid, SIGTERM);
  while (waitpid(child_.pid, nullptr, 0) < 0 && errno == EINTR) continue;
}

}  // namespace flotilla
