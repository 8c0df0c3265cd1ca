#include "router/grpc/grpc_connections.h"

#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/clock.h"
#include "common/base/log.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;
namespace json = boost::json;
using asio::ip::tcp;

constexpr std::chrono::milliseconds kLookTime{50};
constexpr uint32_t kLooksPerSecond = 20;
constexpr int64_t kRecentNs = 1'000 * kNsPerMs;
constexpr intptr_t kSocketsPerPage = 256;

// What channelz says, an object of JSON; nothing: it is gone.
json::value Channelz(char* text) {
  const std::unique_ptr<char, decltype(&gpr_free)> owned(text, &gpr_free);
  boost::system::error_code error;
  json::value value = text == nullptr ? json::value() : json::parse(text, error);
  return error ? json::value() : value;
}

const json::value* Find(const json::value& value, const char* pointer) {
  boost::system::error_code error;
  const json::value* found = value.find_pointer(pointer, error);
  return error ? nullptr : found;
}

// channelz writes numbers of 64 bits as strings, and leaves out zeros.
uint64_t NumberAt(const json::value& value, const char* pointer) {
  const json::value* found = Find(value, pointer);
  return found != nullptr && found->is_string()
             ? std::strtoull(std::string(found->as_string()).c_str(), nullptr, 10)
             : 0;
}

const json::array& ArrayAt(const json::value& value, const char* pointer) {
  static const json::array kNone;
  const json::value* found = Find(value, pointer);
  return found != nullptr && found->is_array() ? found->as_array() : kNone;
}

// As channelz names it: without the IPv6 that an IPv4 address may be wrapped in.
tcp::endpoint Unwrapped(const tcp::endpoint& peer) {
  if (!peer.address().is_v6() || !peer.address().to_v6().is_v4_mapped()) return peer;
  return {asio::ip::make_address_v4(asio::ip::v4_mapped, peer.address().to_v6()), peer.port()};
}

std::optional<tcp::endpoint> RemoteOf(const json::value& socket) {
  const json::value* base64 = Find(socket, "/socket/remote/tcpip_address/ip_address");
  const json::value* port = Find(socket, "/socket/remote/tcpip_address/port");
  std::string bytes;
  if (base64 == nullptr || !base64->is_string() || port == nullptr || !port->is_int64() ||
      !absl::Base64Unescape(std::string(base64->as_string()), &bytes))
    return std::nullopt;
  const auto number = static_cast<uint16_t>(port->as_int64());
  if (asio::ip::address_v4::bytes_type v4; bytes.size() == v4.size()) {
    std::copy(bytes.begin(), bytes.end(), v4.begin());
    return tcp::endpoint(asio::ip::address_v4(v4), number);
  }
  if (asio::ip::address_v6::bytes_type v6; bytes.size() == v6.size()) {
    std::copy(bytes.begin(), bytes.end(), v6.begin());
    return tcp::endpoint(asio::ip::address_v6(v6), number);
  }
  return std::nullopt;
}

// Numbers of this process' servers.
std::vector<intptr_t> ServerIds(const json::value& servers) {
  std::vector<intptr_t> ids;
  for (const json::value& server : ArrayAt(servers, "/server"))
    ids.push_back(static_cast<intptr_t>(NumberAt(server, "/ref/serverId")));
  return ids;
}

bool IsOpen(int fd) {
  tcp_info info = {};
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  return info.tcpi_state == TCP_ESTABLISHED || info.tcpi_state == TCP_CLOSE_WAIT;
}

}  // namespace

void GrpcConnections::Take(tcp::socket socket) {
  boost::system::error_code error;
  const tcp::endpoint peer = Unwrapped(socket.remote_endpoint(error));
  if (error) return;  // it has gone
  const auto barred = barred_until_ns_.find(peer.address());
  if (barred != barred_until_ns_.end() && RealClock::Now() < barred->second) {
    metrics_.Rejection("reset_flood");
    return;
  }
  if (connections_.size() >= limits_.max_grpc_connections) Forget();
  if (connections_.size() >= limits_.max_grpc_connections) {
    metrics_.Rejection("max_connections");
    return;
  }
  Connection connection;
  connection.begin_ns = RealClock::Now();
  connection.copy = UniqueFd(fcntl(socket.native_handle(), F_DUPFD_CLOEXEC, 0));
  socket.native_non_blocking(true, error);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  if (!error && connection.copy.valid()) parameters.fd = socket.release(error);
  if (error || !connection.copy.valid()) return;
  connections_.insert_or_assign(peer, std::move(connection));
  acceptor_->HandleNewConnection(&parameters);
  if (!looking_) LookLater();
}

void GrpcConnections::Stop() {
  timer_.cancel();
  looking_ = false;
  connections_.clear();
}

void GrpcConnections::LookLater() {
  looking_ = true;
  timer_.expires_after(kLookTime);
  timer_.async_wait([this](const auto& error) {
    if (error) return;
    looking_ = false;
    if (connections_.empty()) return;
    Look();
    LookLater();
  });
}

void GrpcConnections::Look() {
  if (++looks_ % kLooksPerSecond == 0) Forget();
  Counts all;
  const json::value servers = Channelz(grpc_channelz_get_servers(0));
  for (const json::value& server : ArrayAt(servers, "/server")) {
    all.started += NumberAt(server, "/data/callsStarted");
    all.succeeded += NumberAt(server, "/data/callsSucceeded");
    all.failed += NumberAt(server, "/data/callsFailed");
  }
  const uint64_t failed = all.failed - std::exchange(failed_seen_, all.failed);
  if (all.open() > limits_.max_grpc_calls ||
      failed > limits_.max_grpc_resets_per_s / kLooksPerSecond)
    BreakOffFloods(ServerIds(servers));
}

void GrpcConnections::Forget() {
  std::erase_if(connections_, [](const auto& entry) { return !IsOpen(entry.second.copy.get()); });
  const int64_t now_ns = RealClock::Now();
  std::erase_if(barred_until_ns_, [now_ns](const auto& entry) { return entry.second <= now_ns; });
}

std::vector<std::pair<GrpcConnections::Endpoint, GrpcConnections::Counts>>
GrpcConnections::CountsOfConnections(const std::vector<intptr_t>& servers) const {
  std::vector<std::pair<Endpoint, Counts>> all;
  for (const intptr_t server : servers) {
    bool end = false;
    for (intptr_t next = 0; !end;) {
      const json::value page =
          Channelz(grpc_channelz_get_server_sockets(server, next, kSocketsPerPage));
      const json::array& refs = ArrayAt(page, "/socketRef");
      end = refs.empty() || Find(page, "/end") != nullptr;
      for (const json::value& ref : refs) {
        const auto id = static_cast<intptr_t>(NumberAt(ref, "/socketId"));
        next = id + 1;
        const json::value socket = Channelz(grpc_channelz_get_socket(id));
        const std::optional<Endpoint> peer = RemoteOf(socket);
        if (!peer || !connections_.contains(*peer)) continue;
        all.emplace_back(*peer, Counts{NumberAt(socket, "/socket/data/streamsStarted"),
                                       NumberAt(socket, "/socket/data/streamsSucceeded"),
                                       NumberAt(socket, "/socket/data/streamsFailed")});
      }
    }
  }
  return all;
}

void GrpcConnections::BreakOffFloods(const std::vector<intptr_t>& servers) {
  std::vector<std::pair<Endpoint, Counts>> all = CountsOfConnections(servers);
  uint64_t open = 0;
  std::erase_if(all, [&](const auto& entry) {
    const auto& [peer, counts] = entry;
    const auto found = connections_.find(peer);
    if (found == connections_.end()) return true;  // gRPC has one more of before, which is ending
    Connection& connection = found->second;
    if (Floods(connection, counts)) {
      BreakOff(peer);
      return true;
    }
    connection.seen = counts;
    connection.seen_ns = RealClock::Now();
    open += counts.open();
    return false;
  });
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.second.open() > b.second.open(); });
  for (const auto& [peer, counts] : all) {
    if (open <= limits_.max_grpc_calls) return;
    open -= counts.open();
    BreakOff(peer);
  }
}

bool GrpcConnections::Floods(const Connection& connection, const Counts& now) const {
  if (now.open() > limits_.max_grpc_streams) return true;  // most of them are reset, but not ended
  // What it did since it was looked at, or began, if that is not long ago.
  const int64_t since_ns = std::max(connection.begin_ns, connection.seen_ns);
  const int64_t ns = RealClock::Now() - since_ns;
  if (ns > kRecentNs) return false;
  const auto allowed = static_cast<uint64_t>(static_cast<double>(limits_.max_grpc_resets_per_s) *
                                             static_cast<double>(ns) * 1e-9);
  const uint64_t started = now.started - connection.seen.started;
  const uint64_t failed = now.failed - connection.seen.failed;
  return std::min(started, failed) > allowed && 2 * failed > started;
}

// Connected to nobody again, a socket has nothing left to read, and gRPC's next read of it fails.
void GrpcConnections::BreakOff(const Endpoint& peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  const bool again = barred_until_ns_.contains(peer.address());
  barred_until_ns_[peer.address()] = RealClock::Now() + kBarMs * kNsPerMs;
  if (!again)
    Log().warn("a gRPC client floods with calls; it is shut out for a while {} {}",
               Kv("address", peer.address().to_string()), Kv("seconds", kBarMs / 1000));
  const sockaddr nobody = {.sa_family = AF_UNSPEC, .sa_data = {}};
  if (connect(found->second.copy.get(), &nobody, sizeof(nobody)) != 0)
    Log().error("a flooding connection can't be broken off {}", Kv("error", std::strerror(errno)));
  connections_.erase(found);
  metrics_.Rejection("reset_flood");  // who sees it, sees the connection ended
}

}  // namespace flotilla
