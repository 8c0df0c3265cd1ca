#include "router/http/http_session.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/base/request_id.h"
#include "common/base/status.h"
#include "router/base/request_timeout.h"
#include "router/http/http_server.h"

namespace flotilla {
namespace http = boost::beast::http;

namespace {

constexpr size_t kMaxReadAheadBytes = 64 << 10;

std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

const char* RefusalReason(int status) {
  switch (status) {
    case 408:
      return "timeout";
    case 413:
      return "body_limit";
    case 431:
      return "header_limit";
    default:
      return "bad_request";
  }
}

ApiError ErrorOf(boost::system::error_code error, const HttpOptions& options) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return HttpError(431, StrCat("The request's header is over the limit of ",
                                 options.max_header_bytes, " bytes."));
  if (error == http::error::body_limit)
    return HttpError(
        413, StrCat("The request's body is over the limit of ", options.max_body_bytes, " bytes."));
  if (error == http::error::bad_version)
    return HttpError(505, "This server speaks HTTP/1.0 and HTTP/1.1.");
  return HttpError(400, StrCat("This is not a valid HTTP request: ", error.message(), "."));
}

// Also of "http://host/path", as proxies are asked; the host is not looked at (RFC 9112, 3.2.2).
std::string_view PathOf(std::string_view target) {
  target = target.substr(0, target.find('?'));
  const size_t scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string_view::npos) return target;
  const size_t path = target.find('/', scheme + 3);
  return path == std::string_view::npos ? "/" : target.substr(path);
}

}  // namespace

HttpSession::HttpSession(HttpServer* server, MaybeTlsStream::Socket socket)
    : server_(server),
      stream_(std::move(socket), server->tls_context()),
      read_timer_(stream_.get_executor(), [this] { OnDeadline(); }),
      pace_timer_(stream_.get_executor()),
      write_timer_(stream_.get_executor(), [this] { OnWriteDeadline(); }),
      buffer_(server->options().max_header_bytes + kMaxReadAheadBytes + sizeof(ahead_)) {}

HttpSession::~HttpSession() {
  if (server_ != nullptr) server_->Forget(this);
}

void HttpSession::Close() {
  if (phase_ == Phase::kClosed) return;
  const bool handling = phase_ == Phase::kHandling;
  Enter(Phase::kClosed);
  if (body_lease_ != nullptr) body_lease_->abandoned = true;
  body_lease_.reset();
  answer_room_.reset();
  stream_.Close();
  read_timer_.Clear();
  pace_timer_.cancel();
  write_timer_.Clear();
  std::function<void()> callback = std::move(on_disconnect_);
  on_disconnect_ = nullptr;
  if (server_ != nullptr) {
    CountUnsent(0);
    server_->Forget(this);
  }
  server_ = nullptr;
  if (handling && callback) callback();
}

void HttpSession::Enter(Phase phase) {
  phase_ = phase;
  if (server_ == nullptr) return;
  server_->NoteWaiting(this, phase != Phase::kHandling && phase != Phase::kClosed);
}

void HttpSession::CloseIfIdle() {
  if (phase_ == Phase::kIdle && buffer_.size() == 0) Close();
}

// --- Reading a request -------------------------------------------------------------------------

void HttpSession::NextRequest() {
  Enter(Phase::kIdle);
  if (buffer_.size() > 0) {
    ReadHeader();
    return;
  }
  const HttpOptions& options = server_->options();
  SetDeadline(first_request_ ? options.header_timeout_ms : options.idle_timeout_ms);
  if (!ahead_pending_) ReadAhead();
}

void HttpSession::ReadHeader() {
  Enter(Phase::kHeader);
  ++number_;
  first_request_ = false;
  keep_alive_ = answered_ = streaming_ = head_only_ = false;
  large_bytes_ = paced_bytes_ = 0;
  body_read_ns_ = body_waited_ns_ = 0;
  http_11_ = true;
  path_.clear();
  allow_origin_.clear();
  request_id_ = NewRequestId();
  received_ns_ = RealClock::Now();
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_->options().max_header_bytes));
  parser_->body_limit(server_->options().max_body_bytes);
  SetDeadline(server_->options().header_timeout_ms);
  // Mostly all of it is here.
  ErrorCode error;
  if (buffer_.size() > 0) buffer_.consume(parser_->put(buffer_.data(), error));
  if ((error && error != http::error::need_more) || parser_->is_header_done()) {
    OnHeader(error);
    return;
  }
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](ErrorCode error, size_t) {
                            if (self->phase_ == Phase::kHeader) self->OnHeader(error);
                          });
}

void HttpSession::OnHeader(ErrorCode error) {
  if (error) {
    RefuseBytes(error);
    return;
  }
  http_11_ = parser_->get().version() >= 11;
  keep_alive_ = parser_->keep_alive();
  path_ = std::string(PathOf(View(parser_->get().target())));
  head_only_ = parser_->get().method() == http::verb::head;
  const std::string_view id = View(parser_->get()[kRequestIdHeader]);
  if (IsRequestId(id)) request_id_ = std::string(id);
  CheckOrigin();
  if (!BodyEndIsPlain()) {
    Enter(Phase::kHandling);
    keep_alive_ = false;
    SendFinal(FormatError(HttpError(400,
                                    "The only Transfer-Encoding this server takes is chunked, "
                                    "in HTTP/1.1 and without a Content-Length."),
                          MakeHead()),
              400);
    return;
  }
  if (IsPreflight()) {
    Enter(Phase::kHandling);
    const std::string_view wanted = View(parser_->get()["Access-Control-Request-Headers"]);
    if (!parser_->is_done()) keep_alive_ = false;
    SendFinal(FormatPreflight(MakeHead(), wanted), 204);
    return;
  }
  if (const std::optional<ApiError> refusal = CheckHeader()) {
    Enter(Phase::kHandling);
    // An unread body would be taken for the next request; a broken client's next one is not
    // awaited.
    const int status = HttpStatus(*refusal);
    if (!parser_->is_done() || status == 400 || status == 417) keep_alive_ = false;
    SendFinal(FormatError(*refusal, MakeHead()), status);
    return;
  }
  Enter(Phase::kBody);
  SetDeadline(server_->options().body_timeout_ms);
  const std::string_view expect = View(parser_->get()[http::field::expect]);
  if (expect.empty() || parser_->is_done() || !http_11_) {
    ReadBody();
    return;
  }
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  boost::asio::async_write(stream_, boost::asio::buffer(kContinue),
                           [self = shared_from_this()](ErrorCode write_error, size_t) {
                             if (self->phase_ != Phase::kBody) return;
                             if (write_error)
                               self->Close();
                             else
                               self->ReadBody();
                           });
}

// Where a body ends must be the same for every proxy before this server, or what is left of it
// would be another client's request (RFC 9112, 6.3).
bool HttpSession::BodyEndIsPlain() const {
  const auto& message = parser_->get();
  const size_t encodings = message.count(http::field::transfer_encoding);
  return encodings == 0 ||
         (encodings == 1 && http_11_ && message.count(http::field::content_length) == 0 &&
          boost::beast::iequals(message[http::field::transfer_encoding], "chunked"));
}

std::optional<ApiError> HttpSession::CheckHeader() {
  const auto& message = parser_->get();
  if (http_11_ && message.count(http::field::host) != 1)
    return HttpError(400, "An HTTP/1.1 request needs exactly one Host header.");
  const std::string_view expect = View(message[http::field::expect]);
  if (!expect.empty() && !boost::beast::iequals(message[http::field::expect], "100-continue"))
    return HttpError(417, "The only expectation this server meets is 100-continue.");
  if (std::optional<ApiError> refusal = server_->service()->CheckHead(Head())) return refusal;
  return ReserveBody();
}

HttpHead HttpSession::Head() const {
  const auto& message = parser_->get();
  HttpHead head;
  head.method = std::string(View(message.method_string()));
  head.path = path_;
  head.content_type = std::string(View(message[http::field::content_type]));
  const auto encodings = message.equal_range(http::field::content_encoding);
  for (auto each = encodings.first; each != encodings.second; ++each) {
    if (!boost::beast::iequals(each->value(), "identity"))
      head.content_encoding = std::string(View(each->value()));
  }
  head.authorization = std::string(View(message[http::field::authorization]));
  head.x_api_key = std::string(View(message["X-Api-Key"]));
  head.if_none_match = std::string(View(message[http::field::if_none_match]));
  head.traceparent = std::string(View(message["traceparent"]));
  if (const auto key = message.find("Idempotency-Key"); key != message.end())
    head.idempotency_key = std::string(View(key->value()));
  const auto timeouts = message.equal_range(kRequestTimeoutHeader);
  for (auto each = timeouts.first; each != timeouts.second; ++each) {
    // Of several, what is refused.
    head.request_timeout = StrCat(head.request_timeout.has_value() ? "," : "", View(each->value()));
  }
  head.has_length = parser_->chunked() || message.count(http::field::content_length) > 0;
  return head;
}

void HttpSession::CheckOrigin() {
  const std::string_view origin = View(parser_->get()[http::field::origin]);
  if (origin.empty()) return;
  for (const std::string& allowed : server_->options().cors_allow_origin) {
    if (allowed == "*" || allowed == origin) allow_origin_ = allowed;
  }
}

bool HttpSession::IsPreflight() const {
  return !allow_origin_.empty() && parser_->get().method() == http::verb::options &&
         parser_->get().count("Access-Control-Request-Method") > 0;
}

void HttpSession::Dispatch() {
  Enter(Phase::kHandling);
  received_ns_ = RealClock::Now();
  auto& message = parser_->get();
  HttpRequest request;
  request.head = Head();
  request.body = std::move(message.body());
  request.received_ns = received_ns_;
  request.body_lease = body_lease_;
  parser_.reset();
  server_->service()->Handle(std::move(request), MakeExchange());
  // Behind what that has made ready to be sent.
  boost::asio::post(stream_.get_executor(), [self = shared_from_this(), number = number_] {
    if (self->phase_ == Phase::kHandling && self->number_ == number && !self->ahead_pending_)
      self->ReadAhead();
  });
}

// The bytes are no request, or did not come in time.
void HttpSession::RefuseBytes(ErrorCode error) {
  static const auto& http_category = make_error_code(http::error::bad_value).category();
  const bool incomplete =
      error == http::error::end_of_stream || error == http::error::partial_message;
  const bool late = std::exchange(timed_out_, false);
  if (!late && (incomplete || error.category() != http_category)) {
    Close();  // the client left
    return;
  }
  const ApiError refusal = late ? HttpError(408, "The request did not come in time.")
                                : ErrorOf(error, server_->options());
  Refuse(refusal, RefusalReason(HttpStatus(refusal)));
}

void HttpSession::Refuse(const ApiError& refusal, const char* reason) {
  Enter(Phase::kHandling);
  keep_alive_ = false;
  server_->service()->OnRefused(reason);
  SendFinal(FormatError(refusal, MakeHead()), HttpStatus(refusal));
}

// --- Watching the socket -----------------------------------------------------------------------

void HttpSession::ReadAhead() {
  if (buffer_.size() >= kMaxReadAheadBytes) return;
  ahead_pending_ = true;
  stream_.async_read_some(boost::asio::buffer(ahead_),
                          [self = shared_from_this()](ErrorCode error, size_t bytes) {
                            self->ahead_pending_ = false;
                            self->OnReadAhead(error, bytes);
                          });
}

void HttpSession::OnReadAhead(ErrorCode error, size_t bytes) {
  if (phase_ == Phase::kClosed) return;
  if (error && error != boost::asio::error::operation_aborted) read_ended_ = true;
  if (bytes > 0) {
    const auto room = buffer_.prepare(bytes);
    boost::asio::buffer_copy(room, boost::asio::buffer(ahead_, bytes));
    buffer_.commit(bytes);
  }
  if (phase_ == Phase::kHandling && answered_) {
    if (error) keep_alive_ = false;  // it will not send another; what is left to write may go out
    return;
  }
  if (phase_ == Phase::kHandling) {
    if (error && error != boost::asio::error::operation_aborted) {
      ClientGone("disconnect");
    } else if (!error) {
      ReadAhead();
    }
    return;
  }
  if (phase_ == Phase::kLinger) {
    if (read_ended_)
      Close();
    else
      ReadAndDiscard();
    return;
  }
  // Idle: the next request's first bytes, the connection's end, or the time for it.
  if (buffer_.size() > 0)
    ReadHeader();
  else
    Close();
}

void HttpSession::ClientGone(const char* reason) {
  if (std::string_view(reason) != "disconnect") server_->service()->OnRefused(reason);
  CountAnswer(499);
  Close();
}

// --- Time --------------------------------------------------------------------------------------

void HttpSession::SetDeadline(int64_t ms) {
  timed_out_ = false;
  read_timer_.Set(std::chrono::steady_clock::now() + std::chrono::milliseconds(ms));
}

void HttpSession::OnDeadline() {
  const auto self = shared_from_this();
  if (phase_ == Phase::kHandshake) server_->service()->OnRefused("timeout");
  if (phase_ == Phase::kHandshake || phase_ == Phase::kIdle || phase_ == Phase::kLinger) {
    Close();
  } else if (phase_ == Phase::kHeader || phase_ == Phase::kBody) {
    timed_out_ = true;
    stream_.Cancel();
  }
}

// Each byte that is taken sets it anew, but a whole answer has an end.
void HttpSession::SetWriteDeadline() {
  const auto by = std::chrono::steady_clock::now() +
                  std::chrono::milliseconds(server_->options().write_timeout_ms);
  write_timer_.Set(answered_ ? std::min(by, taken_by_) : by);
}

void HttpSession::OnWriteDeadline() {
  const auto self = shared_from_this();
  if (phase_ != Phase::kHandling || !writing_) return;
  if (!answered_) {
    ClientGone("slow_client");
    return;
  }
  server_->service()->OnRefused("slow_client");
  Close();
}

}  // namespace flotilla
