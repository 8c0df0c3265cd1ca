// The answering half of HttpSession.
#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "router/http/http_server.h"
#include "router/http/http_session.h"

namespace flotilla {
namespace {

constexpr int64_t kLingerMs = 3'000;
constexpr uint64_t kLargePieceShare = 8;  // of the buffer, one such part
constexpr size_t kIdleBytes = 64 << 10;   // that an idle connection keeps for its next answer

}  // namespace

// What a handler holds: this connection, as long as it is at this request.
class SessionExchange final : public HttpExchange {
 public:
  SessionExchange(std::shared_ptr<HttpSession> session, uint64_t number)
      : session_(std::move(session)), number_(number), request_id_(session_->request_id_) {}

  const std::string& request_id() const override { return request_id_; }

  void ReplyWith(std::string_view headers, int status, std::string_view content_type,
                 std::string_view body) override {
    if (!Current()) return;
    ResponseHead head = session_->MakeHead();
    head.more = headers;
    head.status = status;
    head.content_type = content_type;
    session_->SendFinal(FormatResponse(head, body), status);
  }
  void ReplyError(const ApiError& error) override {
    if (!Current()) return;
    if (LogsDebug())
      Log().debug("refused {} {}", Kv("request_id", request_id_), Kv("error", error.message));
    session_->SendFinal(FormatError(error, session_->MakeHead()), HttpStatus(error));
  }
  void StartStream() override {
    if (!Current()) return;
    session_->streaming_ = true;
    session_->body_lease_.reset();
    if (!session_->http_11_) session_->keep_alive_ = false;  // the end of the stream is the close
    session_->Send(FormatStreamHead(session_->MakeHead(), session_->http_11_));
  }
  void Write(std::string_view data) override {
    if (!Current()) return;
    if (!session_->http_11_) {
      session_->Send(data);
      return;
    }
    std::string chunk;
    AppendChunk(data, &chunk);
    session_->Send(chunk);
  }
  void EndStream(int status) override {
    if (!Current()) return;
    session_->SendFinal(session_->http_11_ ? kLastChunk : std::string_view(), status);
  }
  void Keep(std::shared_ptr<const void> room) override {
    if (Current()) session_->answer_room_ = std::move(room);
  }
  void set_on_disconnect(std::function<void()> callback) override {
    if (Current()) session_->on_disconnect_ = std::move(callback);
  }

 private:
  bool Current() const {
    return session_->number_ == number_ && !session_->answered_ &&
           session_->phase_ == HttpSession::Phase::kHandling;
  }

  const std::shared_ptr<HttpSession> session_;
  const uint64_t number_;
  const std::string request_id_;
};

std::shared_ptr<HttpExchange> HttpSession::MakeExchange() {
  return std::make_shared<SessionExchange>(shared_from_this(), number_);
}

ResponseHead HttpSession::MakeHead() {
  // What is pipelined behind it is answered first.
  if (server_->leaving() && buffer_.size() == 0) keep_alive_ = false;
  ResponseHead head;
  head.close = !keep_alive_ || server_->draining();
  head.keep_alive_10 = !http_11_;
  head.head_only = head_only_;
  head.request_id = request_id_;
  head.error_form = server_->service()->error_form(path_);
  head.allow_origin = allow_origin_;
  return head;
}

void HttpSession::SendFinal(std::string_view bytes, int status) {
  if (server_->draining()) keep_alive_ = false;
  answered_ = true;
  body_lease_.reset();
  on_disconnect_ = nullptr;
  streaming_ = false;
  CountAnswer(status);
  const HttpOptions& options = server_->options();
  const uint64_t left = out_.size() + in_write_.size() - written_ + bytes.size();
  taken_by_ = std::chrono::steady_clock::now() +
              std::chrono::milliseconds(options.write_timeout_ms) +
              std::chrono::milliseconds(left * 1000 / options.least_read_bytes_per_s);
  Send(bytes);
  if (!writing_) ResponseDone();
}

// A prompt's logprobs, or what a repeat of a request gets at once, is large without anybody being
// slow: it has room of its own, as a whole answer has.
void HttpSession::Send(std::string_view bytes) {
  const uint64_t room = server_->options().max_stream_buffer_bytes;
  if (bytes.size() > room / kLargePieceShare) large_bytes_ += bytes.size();
  out_.append(bytes);
  CountUnsent(out_.size() + in_write_.size() - written_);
  if (streaming_ && out_.size() > room + large_bytes_) {
    ClientGone("slow_client");
    return;
  }
  if (!writing_ && !out_.empty()) StartWrite();
}

void HttpSession::CountAnswer(int status) {
  const double seconds = static_cast<double>(RealClock::Now() - received_ns_) * 1e-9;
  if (LogsDebug())
    Log().debug("answered {} {} {} {}", Kv("request_id", request_id_), Kv("path", path_),
                Kv("status", status), Kv("seconds", seconds));
  server_->service()->OnAnswered(path_, status, seconds);
}

void HttpSession::CountUnsent(size_t bytes) {
  server_->service()->OnUnsent(static_cast<int64_t>(bytes) - static_cast<int64_t>(unsent_));
  unsent_ = bytes;
}

void HttpSession::StartWrite() {
  writing_ = true;
  if (written_ == in_write_.size()) {
    in_write_.clear();
    std::swap(in_write_, out_);
    written_ = 0;
  }
  SetWriteDeadline();
  stream_.async_write_some(
      boost::asio::buffer(in_write_.data() + written_, in_write_.size() - written_),
      [self = shared_from_this()](ErrorCode error, size_t bytes) {
        self->writing_ = false;
        if (self->phase_ != Phase::kClosed) self->OnWrite(error, bytes);
      });
}

void HttpSession::OnWrite(ErrorCode error, size_t bytes) {
  write_timer_.Clear();
  if (error) {
    if (answered_)
      Close();
    else
      ClientGone("disconnect");
    return;
  }
  written_ += bytes;
  CountUnsent(out_.size() + in_write_.size() - written_);
  if (written_ < in_write_.size() || !out_.empty()) {
    StartWrite();
    return;
  }
  in_write_.clear();
  written_ = 0;
  if (answered_) ResponseDone();
}

void HttpSession::ResponseDone() {
  answer_room_.reset();
  for (std::string* buffer : {&out_, &in_write_}) {
    if (buffer->capacity() > kIdleBytes) *buffer = std::string();
  }
  if (!keep_alive_) {
    Linger();
    return;
  }
  if (ahead_pending_ && buffer_.size() > 0) {
    // A pipelined request is here; its read starts when the one ahead has ended.
    Enter(Phase::kIdle);
    stream_.Cancel();
    return;
  }
  NextRequest();
}

// Closing with unread bytes would reset the connection and take the answer with it.
void HttpSession::Linger() {
  if (read_ended_) {  // no bytes are left unread, and a read would wait for the deadline
    Close();
    return;
  }
  Enter(Phase::kLinger);
  stream_.EndSending(shared_from_this());
  SetDeadline(kLingerMs);
  if (!ahead_pending_) ReadAndDiscard();
}

void HttpSession::ReadAndDiscard() {
  buffer_.clear();
  stream_.async_read_some(boost::asio::buffer(ahead_),
                          [self = shared_from_this()](ErrorCode error, size_t) {
                            if (self->phase_ != Phase::kLinger) return;
                            if (error)
                              self->Close();
                            else
                              self->ReadAndDiscard();
                          });
}

}  // namespace flotilla
