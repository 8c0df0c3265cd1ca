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

constexpr int kLookMs = 200;  // between two looks at *stop

}  // namespace

std::string FieldOfReadyLine(const std::string& line, const std::string& field) {
  if (!line.starts_with("ready ")) return {};
  const size_t at = line.find(" " + field + "=");
  if (at == std::string::npos) return {};
  const size_t begin = at + field.size() + 2;
  return line.substr(begin, line.find(' ', begin) - begin);
}

StatusOr<PrivateCluster> PrivateCluster::Start(const std::string& launcher,
                                               const std::vector<std::string>& args,
                                               const std::atomic<bool>* stop) {
  ChildSpec spec;
  spec.argv = {launcher};
  spec.argv.insert(spec.argv.end(), args.begin(), args.end());
  spec.argv.insert(spec.argv.end(), {"--grpc-port=0", "--metrics-port=0", "--config=none"});
  ASSIGN_OR_RETURN(Child child, SpawnChild(spec));
  PrivateCluster cluster(std::move(child));
  LineBuffer lines;
  std::string error;
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd entry{cluster.child_.output.get(), POLLIN, 0};
    // A signal that comes just before poll is seen soon, too.
    if (poll(&entry, 1, stop == nullptr ? -1 : kLookMs) < 0 && errno != EINTR) break;
    if (stop != nullptr && stop->load()) return absl::CancelledError("stopped");
    const ssize_t n = read(cluster.child_.output.get(), buffer.data(), buffer.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) break;
    lines.Append(std::string_view(buffer.data(), static_cast<size_t>(n)),
                 [&](const std::string& line) {
                   if (!cluster.grpc_.empty()) return;
                   if (line.starts_with(kErrorPrefix)) error = line.substr(kErrorPrefix.size());
                   cluster.url_ = FieldOfReadyLine(line, "http");
                   cluster.grpc_ = FieldOfReadyLine(line, "grpc");
                 });
    if (cluster.grpc_.empty()) continue;
    cluster.child_.output
        .reset();  // what it still logs is of no interest, and must not fill a pipe
    return cluster;
  }
  if (error.empty()) error = lines.last();
  return absl::UnavailableError(error.empty() ? "the cluster did not start" : error);
}

PrivateCluster::PrivateCluster(PrivateCluster&& other) noexcept
    : child_{std::exchange(other.child_.pid, -1), std::move(other.child_.output)},
      url_(std::move(other.url_)),
      grpc_(std::move(other.grpc_)) {}

PrivateCluster::~PrivateCluster() {
  if (child_.pid < 0) return;
  SignalGroup(child_.pid, SIGTERM);
  while (waitpid(child_.pid, nullptr, 0) < 0 && errno == EINTR) continue;
}

}  // namespace flotilla
