#include "tests/fakes/fake_kube_api.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/json.hpp>
#include <type_traits>

#include "common/base/listen.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
namespace json = boost::json;
using Tls = asio::ssl::stream<asio::ip::tcp::socket>;

json::object SliceObject(const FakeSlice& slice, int version) {
  json::array endpoints;
  for (const bool leaving : {false, true}) {
    for (const std::string& address : leaving ? slice.leaving : slice.ready)
      endpoints.push_back(
          {{"addresses", {address}},
           {"conditions", {{"ready", !leaving}, {"serving", true}, {"terminating", leaving}}}});
  }
  return {{"apiVersion", "discovery.k8s.io/v1"},
          {"kind", "EndpointSlice"},
          {"metadata", {{"name", slice.name}, {"resourceVersion", std::to_string(version)}}},
          {"addressType", slice.type},
          {"ports", json::array{json::object{{"name", "grpc"}, {"port", slice.port}}}},
          {"endpoints", endpoints}};
}

}  // namespace

std::string SliceListJson(const std::vector<FakeSlice>& slices, int version) {
  json::array items;
  for (const FakeSlice& slice : slices) items.push_back(SliceObject(slice, version));
  return json::serialize(json::object{{"kind", "EndpointSliceList"},
                                      {"metadata", {{"resourceVersion", std::to_string(version)}}},
                                      {"items", items}});
}

std::string SliceEventJson(const std::string& type, const FakeSlice& slice, int version) {
  return json::serialize(json::object{{"type", type}, {"object", SliceObject(slice, version)}});
}

FakeKubeApi::FakeKubeApi(std::optional<TestPair> tls)
    : tls_(std::move(tls)),
      listener_(ListenTcp("127.0.0.1", 0, &port_).value()),
      list_(SliceListJson({}, 1)),
      thread_([this] { Accept(); }) {}

FakeKubeApi::~FakeKubeApi() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
  }
  changed_.notify_all();
  shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
  for (std::thread& each : serving_) each.join();
}

std::string FakeKubeApi::url() const {
  return StrCat(tls_ ? "https" : "http", "://127.0.0.1:", port_);
}

void FakeKubeApi::Set(const std::vector<FakeSlice>& slices, int version) {
  const std::lock_guard lock(mutex_);
  list_ = SliceListJson(slices, version);
  version_ = version;
  events_.clear();
}

void FakeKubeApi::Push(const std::string& event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event + "\n");
  changed_.notify_all();
}

void FakeKubeApi::EndWatches() {
  const std::lock_guard lock(mutex_);
  ++watch_round_;
  changed_.notify_all();
}

void FakeKubeApi::Refuse(unsigned status) {
  const std::lock_guard lock(mutex_);
  refuse_ = status;
}

std::vector<FakeKubeApi::Request> FakeKubeApi::requests() {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::vector<FakeKubeApi::Request> FakeKubeApi::WaitForRequests(const std::string& part,
                                                               size_t count) {
  std::unique_lock lock(mutex_);
  const auto found = [&] {
    std::vector<Request> out;
    for (const Request& each : requests_)
      if (each.target.find(part) != std::string::npos) out.push_back(each);
    return out;
  };
  changed_.wait_for(lock, kPatience, [&] { return found().size() >= count; });
  return found();
}

void FakeKubeApi::Accept() {
  for (;;) {
    const int client = accept(listener_.get(), nullptr, nullptr);
    if (client < 0) return;
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      close(client);
      return;
    }
    sockets_.push_back(client);
    serving_.emplace_back([this, client] {
      asio::io_context io;
      asio::ip::tcp::socket socket(io, asio::ip::tcp::v4(), client);
      boost::system::error_code error;
      if (tls_) {
        asio::ssl::context context(asio::ssl::context::tls_server);
        context.use_certificate_chain(asio::buffer(tls_->cert_pem));
        context.use_private_key(asio::buffer(tls_->key_pem), asio::ssl::context::pem);
        Tls stream(std::move(socket), context);
        stream.handshake(asio::ssl::stream_base::server, error);
        if (!error) Serve(&stream);
        const std::lock_guard done(mutex_);
        sockets_.remove(client);
        stream.next_layer().close(error);
      } else {
        Serve(&socket);
        const std::lock_guard done(mutex_);
        sockets_.remove(client);
        socket.close(error);
      }
    });
  }
}

template <typename Stream>
void FakeKubeApi::Serve(Stream* stream) {
  boost::system::error_code error;
  boost::beast::flat_buffer buffer;
  http::request<http::empty_body> request;
  http::read(*stream, buffer, request, error);
  if (error) return;
  const std::string target(request.target());
  std::string body;
  unsigned refuse = 0;
  int round = 0;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back({target, std::string(request[http::field::authorization])});
    body = list_;
    refuse = refuse_;
    round = watch_round_;
    changed_.notify_all();
  }
  if (refuse == 0 && target.find("watch=true") != std::string::npos)
    return ServeWatch(stream, target, round);
  http::response<http::string_body> answer(
      http::int_to_status(refuse == 0 ? 200 : refuse), 11,
      refuse == 0 ? body : R"({"kind":"Status","status":"Failure"})");
  answer.set(http::field::connection, "close");
  answer.prepare_payload();
  http::write(*stream, answer, error);
}

template <typename Stream>
void FakeKubeApi::ServeWatch(Stream* stream, const std::string& target, int round) {
  constexpr std::string_view kFrom = "resourceVersion=";
  const int from = std::stoi(target.substr(target.find(kFrom) + kFrom.size()));
  boost::system::error_code error;
  asio::write(*stream,
              asio::buffer(std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
                                       "Connection: close\r\n\r\n")),
              error);
  std::unique_lock lock(mutex_);
  if (from < version_) {
    const std::string expired =
        R"({"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}})"
        "\n";
    asio::write(*stream, http::make_chunk(asio::buffer(expired)), error);
    round = -1;  // and ends
  }
  for (size_t sent = 0; !error && !stopping_;) {
    changed_.wait(lock,
                  [&] { return stopping_ || watch_round_ != round || (sent < events_.size()); });
    if (stopping_) return;
    if (watch_round_ != round) break;
    // Cut in two: a line need not come in one piece.
    const std::string event = events_[sent++];
    lock.unlock();
    const size_t half = event.size() / 2;
    for (const std::string& piece : {event.substr(0, half), event.substr(half)}) {
      if (piece.empty()) continue;
      asio::write(*stream, http::make_chunk(asio::buffer(piece)), error);
    }
    lock.lock();
  }
  lock.unlock();
  asio::write(*stream, http::make_chunk_last(), error);
}

}  // namespace flotilla
