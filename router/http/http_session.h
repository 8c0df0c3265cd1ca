// One HTTP/1.1 connection, plain or TLS: reads a request, has it answered, reads the next.
//
// While a request is being answered the socket is read on (up to a bound), so that a client that
// goes away is noticed at once. Unsent bytes of a stream are bounded, and so is the time to take
// those of a whole answer: a client that reads too slowly is dropped. Pipelined requests are
// answered in order.
//
// Threads: the io thread. Ownership: kept alive by its pending operations and its exchange.
// Errors: what can't be read as a request gets a 4xx and the connection is closed, after reading
// on for a moment so that the client sees the answer instead of a reset.
#pragma once

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "common/tls/maybe_tls_stream.h"
#include "router/base/lazy_timer.h"
#include "router/http/http_message.h"
#include "router/http/http_types.h"

namespace flotilla {

class HttpServer;

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(HttpServer* server, MaybeTlsStream::Socket socket);
  ~HttpSession();

  void Start();
  void Close();
  void CloseIfIdle();
  // Among those that wait for their clients (HttpServer).
  struct Place {
    explicit Place(HttpSession* session) : unused{session}, at(unused.begin()) {}
    std::list<HttpSession*> unused;  // holds the list's node while it waits for nobody
    std::list<HttpSession*>::iterator at;
    bool waits = false;
    int64_t since_ns = 0;
  };
  Place& place() { return place_; }
  // Its client is the one who makes a body take long. DropBody gives its room back at once, and
  // answers that it did not come in time.
  bool BodyStalls(int64_t now_ns) const;
  void DropBody();
  // A request has come, and its answer has not been sent whole.
  bool answering() const { return phase_ == Phase::kHandling; }

 private:
  friend class SessionExchange;
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class Phase { kHandshake, kIdle, kHeader, kBody, kHandling, kLinger, kClosed };

  void Enter(Phase phase);
  void OnHandshake(ErrorCode error);

  // Reading a request.
  void NextRequest();
  void ReadHeader();
  void OnHeader(ErrorCode error);
  void ReadBody();
  void OnBodyPart(ErrorCode error, size_t bytes);
  void OnBody(ErrorCode error);
  void Dispatch();
  void RefuseBytes(ErrorCode error);
  void Refuse(const ApiError& refusal, const char* reason);
  bool BodyEndIsPlain() const;
  std::optional<ApiError> CheckHeader();
  HttpHead Head() const;
  // Whether a script of the request's origin may read the answer.
  void CheckOrigin();
  bool IsPreflight() const;
  std::optional<ApiError> ReserveBody();
  bool GrowBody(uint64_t bytes);

  // Watching the socket while a request is answered.
  void ReadAhead();
  void OnReadAhead(ErrorCode error, size_t bytes);
  void ClientGone(const char* reason);

  // Answering.
  std::shared_ptr<HttpExchange> MakeExchange();
  ResponseHead MakeHead();
  void SendFinal(std::string_view bytes, int status);
  void Send(std::string_view bytes);
  void StartWrite();
  void CountUnsent(size_t bytes);
  void CountAnswer(int status);
  void OnWrite(ErrorCode error, size_t bytes);
  void ResponseDone();
  void Linger();
  void ReadAndDiscard();

  void SetDeadline(int64_t ms);
  void OnDeadline();
  void SetWriteDeadline();
  void OnWriteDeadline();

  HttpServer* server_;  // null once the session is forgotten
  MaybeTlsStream stream_;
  LazyTimer read_timer_;
  boost::asio::steady_timer pace_timer_;  // of a large body
  LazyTimer write_timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::array<char, 4096> ahead_;

  Phase phase_ = Phase::kIdle;
  Place place_{this};
  bool first_request_ = true;
  bool ahead_pending_ = false;
  bool read_ended_ =
      false;  // the end of the client's bytes, or an error, was read; nothing follows
  bool timed_out_ = false;
  bool keep_alive_ = false;
  bool http_11_ = true;
  bool head_only_ = false;  // HEAD: no body in the answer
  bool streaming_ = false;
  bool answered_ = false;  // all bytes of the answer are in out_ or sent
  bool writing_ = false;
  uint64_t number_ = 0;  // of the request on this connection
  int64_t received_ns_ = 0;
  std::string path_;
  std::string request_id_;
  std::string allow_origin_;                 // of CORS; empty: nobody else's
  std::string out_;                          // waits for writing_
  std::string in_write_;                     // being written
  size_t written_ = 0;                       // of in_write_
  BodyLease body_lease_;                     // until the answer begins
  std::shared_ptr<const void> answer_room_;  // until the answer has been sent
  size_t unsent_ = 0;                        // as last told to the service
  uint64_t paced_bytes_ = 0;                 // of a large body
  int64_t body_read_ns_ = 0;                 // since when more of a body is awaited; 0: it is not
  int64_t body_waited_ns_ = 0;               // before that
  uint64_t large_bytes_ = 0;                 // of this answer's large pieces
  std::chrono::steady_clock::time_point taken_by_;  // the answer, once it is whole
  std::function<void()> on_disconnect_;
};

}  // namespace flotilla
