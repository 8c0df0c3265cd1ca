#include "router/discovery/dns_watch.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"

namespace flotilla {
namespace {

std::string AddressText(const sockaddr* address) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const socklen_t bytes =
      address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (getnameinfo(address, bytes, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "";
  return address->sa_family == AF_INET ? StrCat(host, ":", port) : StrCat("[", host, "]:", port);
}

}  // namespace

StatusOr<DnsName> ParseDnsName(std::string_view text) {
  const size_t colon = text.rfind(':');
  DnsName name;
  uint32_t port = 0;
  if (colon == std::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(absl::string_view(text.data() + colon + 1, text.size() - colon - 1),
                        &port) ||
      port == 0 || port > UINT16_MAX)
    return absl::InvalidArgumentError(
        StrCat("'", text, "' is no NAME:PORT with a port from 1 to 65535"));
  name.host = std::string(text.substr(0, colon));
  name.port = static_cast<uint16_t>(port);
  return name;
}

FoundReplicas ResolveBySystem(const DnsName& name) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(name.host.c_str(), std::to_string(name.port).c_str(), &hints, &found);
  if (error == EAI_NONAME || error == EAI_NODATA)
    return absl::NotFoundError(StrCat(name.host, " has no address"));
  if (error != 0) return absl::UnavailableError(StrCat(name.host, ": ", gai_strerror(error)));
  std::set<std::string> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family == AF_INET || each->ai_family == AF_INET6)
      addresses.insert(AddressText(each->ai_addr));
  }
  freeaddrinfo(found);
  addresses.erase("");
  if (addresses.empty()) return absl::NotFoundError(StrCat(name.host, " has no address"));
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

DnsWatch::DnsWatch(Options options, OnResult on_result)
    : state_(std::make_shared<State>(std::move(options), std::move(on_result))),
      thread_([state = state_] { Run(state); }) {}

void DnsWatch::Run(const std::shared_ptr<State>& state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  while (state->on_result) {
    state->resolving = true;
    lock.unlock();
    FoundReplicas addresses = state->options.resolve(state->options.name);
    lock.lock();
    state->resolving = false;
    if (!state->on_result) return;
    state->on_result(std::move(addresses));
    state->changed.wait_for(lock, std::chrono::milliseconds(state->options.interval_ms),
                            [&] { return !state->on_result; });
  }
}

void DnsWatch::Stop() {
  if (!thread_.joinable()) return;
  bool resolving = false;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->on_result = nullptr;
    resolving = state_->resolving;
    state_->changed.notify_all();
  }
  if (resolving)
    thread_.detach();
  else
    thread_.join();
}

}  // namespace flotilla
