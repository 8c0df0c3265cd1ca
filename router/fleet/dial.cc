#include "router/fleet/dial.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "common/base/listen.h"
#include "common/base/tcp_address.h"
#include "router/discovery/dns_watch.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto kConnectTime = std::chrono::seconds(1);
constexpr std::string_view kUnix = "unix:";

}  // namespace

// What the thread of a lookup has of us.
struct Dial::Lookup {
  std::mutex mutex;
  std::function<void(FoundReplicas)> on_found;  // guarded by mutex; empty: nobody waits
};

Dial::Dial(std::string address, asio::any_io_executor executor, Handler handler)
    : address_(std::move(address)),
      executor_(std::move(executor)),
      handler_(std::move(handler)),
      socket_(executor_),
      timer_(executor_) {}

std::shared_ptr<Dial> Dial::Start(const std::string& address, asio::any_io_executor executor,
                                  Handler handler) {
  std::shared_ptr<Dial> dial(new Dial(address, std::move(executor), std::move(handler)));
  asio::post(dial->executor_, [dial] { dial->LookUp(); });
  return dial;
}

void Dial::Cancel() {
  handler_ = nullptr;
  timer_.cancel();
  boost::system::error_code ignored;
  socket_.close(ignored);
  if (lookup_ == nullptr) return;
  const std::lock_guard lock(lookup_->mutex);
  lookup_->on_found = nullptr;
}

void Dial::LookUp() {
  if (handler_ == nullptr) return;
  if (IsUnixAddress(address_)) {
    const std::string path = address_.substr(kUnix.size());
    if (path.size() > asio::local::stream_protocol::endpoint().capacity() - 3)
      return OnEndpoints(absl::InvalidArgumentError("its path is too long for a socket"));
    return OnEndpoints(std::vector<Endpoint>{asio::local::stream_protocol::endpoint(path)});
  }
  const StatusOr<TcpAddress> parsed = ParseTcpAddress(address_);
  if (!parsed.ok()) return OnEndpoints(parsed.status());
  boost::system::error_code is_name;
  const asio::ip::address ip = asio::ip::make_address(parsed->host, is_name);
  if (!is_name) return OnEndpoints(std::vector<Endpoint>{tcp::endpoint(ip, parsed->port)});
  lookup_ = std::make_shared<Lookup>();
  // Moved on, so that the thread is not the last to hold it.
  lookup_->on_found = [self = shared_from_this()](FoundReplicas found) mutable {
    const asio::any_io_executor executor = self->executor_;
    asio::post(executor, [self = std::move(self), found = std::move(found)] {
      if (!found.ok()) return self->OnEndpoints(found.status());
      std::vector<Endpoint> endpoints;
      for (const std::string& each : *found) {
        const StatusOr<TcpAddress> address = ParseTcpAddress(each);
        if (address.ok())
          endpoints.push_back(tcp::endpoint(asio::ip::make_address(address->host), address->port));
      }
      self->OnEndpoints(std::move(endpoints));
    });
  };
  std::thread([lookup = lookup_, name = DnsName{parsed->host, parsed->port}] {
    FoundReplicas found = ResolveBySystem(name);
    const std::lock_guard lock(lookup->mutex);
    if (lookup->on_found) std::exchange(lookup->on_found, nullptr)(std::move(found));
  }).detach();
}

void Dial::OnEndpoints(Endpoints endpoints) {
  if (handler_ == nullptr) return;
  if (!endpoints.ok()) return Finish(endpoints.status());
  endpoints_ = std::move(*endpoints);
  ConnectNext();
}

void Dial::ConnectNext() {
  if (handler_ == nullptr) return;
  if (next_ == endpoints_.size()) return Finish(absl::UnavailableError(failure_));
  boost::system::error_code ignored;
  socket_.close(ignored);
  socket_.async_connect(
      endpoints_[next_++], [self = shared_from_this()](boost::system::error_code error) {
        if (self->handler_ == nullptr) return;
        self->timer_.cancel();
        if (!error) return self->Finish(std::move(self->socket_));
        self->failure_ =
            error == asio::error::operation_aborted ? "no answer within a second" : error.message();
        self->ConnectNext();
      });
  timer_.expires_after(kConnectTime);
  timer_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
    boost::system::error_code failed;
    if (!cancelled && self->handler_ != nullptr) self->socket_.cancel(failed);
  });
}

void Dial::Finish(StatusOr<Socket> result) {
  if (result.ok() && !IsUnixAddress(address_)) {
    boost::system::error_code ignored;
    result->set_option(tcp::no_delay(true), ignored);
  }
  if (!result.ok())
    result = absl::UnavailableError(
        StrCat("can't connect to ", address_, ": ", std::string(result.status().message())));
  std::exchange(handler_, nullptr)(std::move(result));
}

}  // namespace flotilla
