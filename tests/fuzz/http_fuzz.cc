// libFuzzer: any bytes on a connection of the router's HTTP server, in pieces. Each answer is
// whole, no request is answered twice, and the session is gone once the client is.
//
// The first byte says how the client behaves (Behaviour), the second how long its pieces are; the
// rest are its bytes, of which kLarge makes many of some. The session reads from a socket pair; the
// service behind it answers by the request's path.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "router/http/http_server.h"
#include "router/http/http_session.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

namespace http = boost::beast::http;
using boost::asio::ip::tcp;

enum Behaviour : uint8_t {
  kLate = 1,      // every deadline of the server is over at once
  kDeaf = 2,      // reads nothing
  kVanishes = 4,  // closes instead of ending its half
  kDrain = 8,     // the server drains after the first piece
  kLarge = 16,    // bodies may be large: of the first bytes 0xFF, each stands for kLargeBytes
  kBeside = 32,   // another client has announced a body that takes most of the room, and sends none
  kPatient = 64,  // that body is not dropped yet
};

constexpr size_t kLargeBytes = 16 << 10, kMostLarge = 24;

HttpOptions Options(uint8_t behaviour) {
  HttpOptions options;
  options.max_header_bytes = 512;
  options.max_body_bytes = (behaviour & kLarge) ? 512 << 10 : 1024;
  options.max_buffered_body_bytes = (behaviour & kLarge) ? 256 << 10 : 900;
  options.max_body_bytes_per_s = uint64_t{1} << 60;  // paced, but for no time
  options.max_stream_buffer_bytes = 2048;
  options.cors_allow_origin = {"http://a"};
  if (!(behaviour & kPatient)) options.least_wait_ms = 0;
  if (behaviour & kLate) {
    options.header_timeout_ms = options.body_timeout_ms = options.idle_timeout_ms = 0;
    options.write_timeout_ms = 0;
  }
  return options;
}

class Service final : public HttpService {
 public:
  explicit Service(const HttpOptions& options)
      : max_body_bytes_(options.max_body_bytes),
        // Alone, a body may be larger than the room for all.
        max_held_bytes_(std::max(options.max_body_bytes, options.max_buffered_body_bytes)) {}

  std::optional<ApiError> CheckHead(const HttpHead& head) override {
    if (head.path == "/none") return HttpError(404, "There is nothing at this path.");
    if (head.method == "POST" && !head.has_length)
      return HttpError(411, "The request needs a Content-Length.");
    return std::nullopt;
  }
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    CHECK(request.body.size() <= max_body_bytes_);
    ++handled_;
    exchange->set_on_disconnect([this] { ++gone_; });
    if (request.head.path == "/held") {
      held_ = std::move(exchange);  // answered before the next piece, if one comes
    } else if (request.head.path == "/endless") {
      exchange->StartStream();
      endless_ = std::move(exchange);  // goes on before each piece
    } else if (request.head.path == "/stream") {
      exchange->StartStream();
      const std::string data(request.body.size(), 'x');
      for (int i = 0; i < 3; ++i) exchange->Write("data: " + data + "\n\n");
      exchange->Write("");
      exchange->EndStream(200);
      exchange->Write("too late");
    } else if (request.head.path == "/error") {
      exchange->ReplyError(Unavailable("No replica is ready.", 1500));
    } else {
      exchange->Reply(200, "application/json", "{}");
      exchange->Reply(200, "application/json", "{\"twice\":true}");
    }
  }
  void OnAnswered(const std::string&, int status, double seconds) override {
    CHECK(status >= 200 && status < 600 && seconds >= 0);
    ++answered_;
  }
  void OnRefused(const char* reason) override {
    CHECK(reason != nullptr);
    ++refused_;
  }

  void OnBodyBytes(int64_t delta) override {
    body_bytes_ += delta;
    CHECK(body_bytes_ >= 0 && static_cast<uint64_t>(body_bytes_) <= max_held_bytes_);
  }
  void OnUnsent(int64_t delta_bytes) override {
    unsent_ += delta_bytes;
    CHECK(unsent_ >= 0);
  }

  void GoOn() {
    if (held_ != nullptr) std::exchange(held_, nullptr)->Reply(200, "text/plain", "late");
    if (endless_ != nullptr) endless_->Write(std::string(1500, 'x'));
  }
  // The handlers are done with their requests.
  void Forget() {
    held_ = nullptr;
    endless_ = nullptr;
  }
  // The connections are gone, and so is what they held.
  void Check() const {
    CHECK(gone_ <= handled_ && refused_ <= answered_);
    CHECK(body_bytes_ == 0 && unsent_ == 0);
  }
  size_t answered() const { return answered_; }

 private:
  const uint64_t max_body_bytes_;
  const uint64_t max_held_bytes_;
  std::shared_ptr<HttpExchange> held_;
  std::shared_ptr<HttpExchange> endless_;
  size_t handled_ = 0;
  size_t answered_ = 0;
  size_t refused_ = 0;
  size_t gone_ = 0;
  int64_t body_bytes_ = 0;
  int64_t unsent_ = 0;
};

bool IsStatusLine(std::string_view bytes) {
  return bytes.starts_with("HTTP/1.1 ") && bytes.size() > 9 && bytes[9] >= '1' && bytes[9] <= '5';
}

// What a client has read must be answers, the last of them perhaps cut short. How many are whole.
size_t CountAnswers(std::string_view bytes) {
  CHECK(bytes.find("twice") == bytes.npos && bytes.find("too late") == bytes.npos);
  size_t answers = 0;
  while (!bytes.empty()) {
    http::response_parser<http::string_body> parser;
    parser.skip(true);  // bodies are looked at below: an answer to HEAD has none
    boost::system::error_code error;
    const size_t used = parser.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
    if (error == http::error::need_more) break;
    CHECK(!error && parser.is_header_done());
    bytes.remove_prefix(used);
    while (!bytes.empty() && !IsStatusLine(bytes)) bytes.remove_prefix(1);
    if (parser.get().result_int() != 100) ++answers;
  }
  return answers;
}

class Client {
 public:
  // `first` is there before the server looks.
  Client(boost::asio::io_context* io, HttpServer* server, uint8_t behaviour, std::string_view first)
      : io_(io), behaviour_(behaviour) {
    int ends[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    socket_ = UniqueFd(ends[0]);
    // Small, so that a client that does not read holds the server up.
    const int bytes = 1;
    CHECK(::setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) == 0);
    const auto session =
        std::make_shared<HttpSession>(server, tcp::socket(*io, tcp::v4(), ends[1]));
    session_ = session;
    (void)::send(socket_.get(), first.data(), first.size(), MSG_NOSIGNAL);
    session->Start();
    Poll();
  }

  void Send(std::string_view bytes) {
    (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    Poll();
  }
  // With each 0xFF grown.
  void SendLarge(std::string_view bytes) {
    static const std::string large(kLargeBytes, 'x');
    for (;;) {
      const size_t at = large_ < kMostLarge ? bytes.find('\xff') : bytes.npos;
      Send(bytes.substr(0, at));
      if (at == bytes.npos) return;
      Send(large);
      ++large_;
      bytes.remove_prefix(at + 1);
    }
  }
  void End() {
    if (behaviour_ & kVanishes)
      socket_ = UniqueFd();
    else
      (void)::shutdown(socket_.get(), SHUT_WR);
    Poll();
  }
  // What the server does to sessions that it has accepted itself.
  void Drain(HttpServer* server) {
    server->BeginDrain();
    if (const auto session = session_.lock()) session->CloseIfIdle();
    Poll();
  }
  // Nobody else closes the session.
  void Leave() {
    socket_ = UniqueFd();
    Poll();
    CHECK(session_.expired());
  }
  const std::string& answers() const { return answers_; }

  void Poll() {
    do {
      io_->restart();
      io_->poll();
    } while (ReadAnswers());
  }

 private:
  bool ReadAnswers() {
    if ((behaviour_ & kDeaf) || !socket_.valid()) return false;
    std::array<char, 4096> buffer;
    const ssize_t size = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (size <= 0) return false;
    answers_.append(buffer.data(), static_cast<size_t>(size));
    return true;
  }

  boost::asio::io_context* const io_;
  const uint8_t behaviour_;
  UniqueFd socket_;
  std::weak_ptr<HttpSession> session_;
  std::string answers_;
  size_t large_ = 0;
};

constexpr std::string_view kStalledBody =
    "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n";

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  static auto* const io = new boost::asio::io_context(1);
  fuzz::FuzzInput input(data, size);
  const uint8_t behaviour = input.Get<uint8_t>();
  const size_t piece = input.Get<uint8_t>() * size_t{8};
  const fuzz::Piece rest = input.Rest();
  const HttpOptions options = Options(behaviour);
  Service service(options);
  HttpServer server(options, &service);
  std::string_view bytes = rest.view();
  const auto next = [&] {
    const std::string_view part = bytes.substr(0, piece == 0 ? bytes.size() : piece);
    bytes.remove_prefix(part.size());
    return part;
  };
  std::optional<Client> beside;
  if (behaviour & kBeside) beside.emplace(io, &server, 0, kStalledBody);
  Client client(io, &server, behaviour, (behaviour & kLarge) ? std::string_view() : next());
  while (!bytes.empty()) {
    service.GoOn();
    client.Poll();
    if (behaviour & kDrain) client.Drain(&server);
    if (behaviour & kLarge)
      client.SendLarge(next());
    else
      client.Send(next());
  }
  client.End();
  const size_t answers =
      CountAnswers(client.answers()) + (beside ? CountAnswers(beside->answers()) : 0);
  CHECK(answers <= service.answered() + 1);  // a stream begins before it is answered
  service.Forget();
  client.Leave();
  if (beside) beside->Leave();
  service.Check();
  return 0;
}
