#include "router/handoff.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd_message.h"
#include "common/base/listen.h"
#include "common/base/log.h"

namespace flotilla {
namespace {

constexpr std::string_view kGreeting = "flotilla-handoff 1 ";
constexpr std::string_view kServing = "serving";
constexpr std::string_view kLeft = "left";
constexpr size_t kMaxHandoffBytes = 1024;
constexpr int kAnswerMs = 5000;  // of a predecessor that hangs

bool SameUser(int connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == geteuid() || peer.uid == 0);
}

StatusOr<FdMessage> Await(int connection) {
  const int64_t end_ns = RealClock::Now() + kAnswerMs * kNsPerMs;
  pollfd wait{connection, POLLIN, 0};
  int ready = 0;
  do {
    const int64_t left_ms = (end_ns - RealClock::Now()) / kNsPerMs;
    ready = poll(&wait, 1, left_ms > 0 ? static_cast<int>(left_ms) : 0);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return absl::DeadlineExceededError("the router that serves does not answer");
  std::optional<FdMessage> message = ReceiveFdMessage(connection, kMaxHandoffBytes);
  if (!message) return absl::UnavailableError("the router that served has ended");
  return *std::move(message);
}

Status CheckPort(const char* flag, int socket, uint16_t wanted) {
  const uint16_t port = ListeningPort(socket);
  if (port != 0 && (wanted == 0 || wanted == port)) return OkStatus();
  return absl::FailedPreconditionError(StrCat(flag, "=", wanted,
                                              ": the router at --handoff-socket listens on ", port,
                                              "; a successor gets its ports"));
}

Status CheckPlaces(const ListeningSockets& sockets, const std::string& host,
                   const ListeningPlaces& places) {
  if (host != places.host) {
    return absl::FailedPreconditionError(StrCat("--host=", places.host,
                                                ": the router at --handoff-socket listens on ",
                                                host, "; a successor gets its addresses"));
  }
  RETURN_IF_ERROR(CheckPort("--port", sockets.http.get(), places.http_port));
  RETURN_IF_ERROR(CheckPort("--grpc-port", sockets.grpc.get(), places.grpc_port));
  if (places.metrics_port && sockets.metrics.valid())
    return CheckPort("--metrics-port", sockets.metrics.get(), *places.metrics_port);
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Predecessor>> Predecessor::Meet(const std::string& path,
                                                         const ListeningPlaces& places) {
  ASSIGN_OR_RETURN(UniqueFd connection, ConnectUnix(path, SOCK_SEQPACKET));
  ASSIGN_OR_RETURN(FdMessage greeting, Await(connection.get()));
  std::string_view host = greeting.bytes;
  if (!host.starts_with(kGreeting) || greeting.fds.size() < 2)
    return absl::DataLossError(StrCat("what listens on ", path, " hands no sockets over"));
  host.remove_prefix(kGreeting.size());
  ListeningSockets sockets{std::move(greeting.fds[0]), std::move(greeting.fds[1]), {}};
  if (greeting.fds.size() > 2) sockets.metrics = std::move(greeting.fds[2]);
  RETURN_IF_ERROR(CheckPlaces(sockets, std::string(host), places));
  return std::unique_ptr<Predecessor>(new Predecessor(std::move(connection), std::move(sockets)));
}

bool Predecessor::alive() const {
  pollfd hangup{connection_.get(), 0, 0};
  return poll(&hangup, 1, 0) <= 0 || (hangup.revents & POLLHUP) == 0;
}

void Predecessor::Relieve() {
  if (SendFdMessage(connection_.get(), kServing, {})) {
    const StatusOr<FdMessage> answer = Await(connection_.get());
    if (answer.ok() && answer->bytes == kLeft) return;
  }
  Log().warn("the predecessor did not say that it left");
}

StatusOr<std::unique_ptr<HandoffServer>> HandoffServer::Start(Options options) {
  ASSIGN_OR_RETURN(UnixListener listener, UnixListener::Listen(options.path, SOCK_SEQPACKET));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return absl::UnavailableError("no descriptor is left");
  return std::unique_ptr<HandoffServer>(
      new HandoffServer(std::move(options), std::move(listener), std::move(stop)));
}

HandoffServer::HandoffServer(Options options, UnixListener listener, UniqueFd stop)
    : options_(std::move(options)), listener_(std::move(listener)), stop_(std::move(stop)) {
  thread_ = std::thread([this] { Run(); });
}

HandoffServer::~HandoffServer() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

// False: to stop.
bool HandoffServer::WaitReadable(int fd) const {
  pollfd waits[] = {{fd, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (poll(waits, std::size(waits), -1) < 0 && errno == EINTR) continue;
  return waits[1].revents == 0;
}

void HandoffServer::Run() {
  while (WaitReadable(listener_.fd())) {
    const UniqueFd connection(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection.valid()) {
      if (!OutlastAcceptError(errno)) return;
      continue;
    }
    if (SameUser(connection.get()) && Serve(connection.get())) return;
  }
}

// True: a successor serves.
bool HandoffServer::Serve(int connection) {
  std::vector<int> fds = {options_.http, options_.grpc};
  if (options_.metrics >= 0) fds.push_back(options_.metrics);
  if (!SendFdMessage(connection, StrCat(kGreeting, options_.host), fds)) return false;
  if (!WaitReadable(connection)) return false;
  const std::optional<FdMessage> answer = ReceiveFdMessage(connection, kMaxHandoffBytes);
  pollfd hangup{connection, 0, 0};
  const bool alive = poll(&hangup, 1, 0) == 0;
  if (!answer || answer->bytes != kServing || !alive) {
    Log().warn("a successor ended before it served");
    ListenAgain();
    return false;
  }
  listener_.Close();
  options_.on_relieved();
  SendFdMessage(connection, kLeft, {});
  return true;
}

// The successor may have put its own socket at the path.
void HandoffServer::ListenAgain() {
  if (listener_.reachable()) return;
  StatusOr<UnixListener> listener = UnixListener::Listen(options_.path, SOCK_SEQPACKET);
  if (listener.ok()) {
    listener_ = *std::move(listener);
  } else {
    Log().error("--handoff-socket {}", Kv("reason", std::string(listener.status().message())));
  }
}

}  // namespace flotilla
