// HttpSession's reading of bodies: their room in memory, and their pace.
#include <algorithm>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "router/http/http_server.h"
#include "router/http/http_session.h"

namespace flotilla {
namespace http = boost::beast::http;

namespace {

constexpr size_t kMaxReadBytes = 64 << 10;  // of a body at once
// A body whose client has had the grace, and sends less than this, makes room for others.
constexpr int64_t kBodyGraceNs = 5 * kNsPerSecond;
constexpr uint64_t kLeastBodyBytesPerMs = 64;
constexpr size_t kKeptReadBytes = 8 << 10;  // of the buffer, from request to request

ApiError NoBodyMemory() {
  return Unavailable("This router has no memory for another body now; try again.", 1000);
}

}  // namespace

std::optional<ApiError> HttpSession::ReserveBody() {
  // One that says to be larger than is allowed is refused while it is read; how large a chunked one
  // becomes shows then.
  const auto length = parser_->content_length();
  const uint64_t bytes = std::min(parser_->chunked() ? kFreeBodyBytes : length.value_or(0),
                                  server_->options().max_body_bytes);
  for (;;) {
    body_lease_ = server_->bodies()->Reserve(bytes);
    if (body_lease_ != nullptr) return std::nullopt;
    if (!server_->DropStalledBody()) break;
  }
  server_->service()->OnRefused("body_memory");
  return NoBodyMemory();
}

bool HttpSession::GrowBody(uint64_t bytes) {
  if (bytes <= body_lease_->bytes) return true;
  const uint64_t more =
      std::min(std::max(bytes, 4 * body_lease_->bytes), server_->options().max_body_bytes);
  while (!server_->bodies()->Resize(body_lease_, more)) {
    if (!server_->DropStalledBody()) return false;
  }
  return true;
}

void HttpSession::ReadBody() {
  if (timed_out_) {  // in a pause of its reading
    RefuseBytes(boost::asio::error::operation_aborted);
    return;
  }
  if (parser_->is_done()) {
    OnBody({});
    return;
  }
  parser_->eager(true);
  if (buffer_.size() > 0 && !parser_->chunked()) {  // mostly all of it is here
    ErrorCode error;
    buffer_.consume(parser_->put(buffer_.data(), error));
    if (error == http::error::need_more) error = {};
    if (error || parser_->is_done()) {
      OnBody(error);
      return;
    }
  }
  body_read_ns_ = RealClock::Now();
  http::async_read_some(stream_, buffer_, *parser_,
                        [self = shared_from_this()](ErrorCode error, size_t bytes) {
                          if (self->phase_ == Phase::kBody) self->OnBodyPart(error, bytes);
                        });
}

void HttpSession::OnBodyPart(ErrorCode error, size_t bytes) {
  body_waited_ns_ += RealClock::Now() - std::exchange(body_read_ns_, 0);
  if (error || timed_out_ || parser_->is_done()) {
    OnBody(error);
    return;
  }
  // As much is read at once as the buffer has room for; whoever sends much gets more of it.
  if (bytes >= buffer_.capacity() / 2)
    buffer_.reserve(std::min(buffer_.capacity() * 4, kMaxReadBytes));
  const uint64_t read = parser_->get().body().size();
  if (parser_->chunked() &&
      !GrowBody(std::min(read + kMaxReadBytes, server_->options().max_body_bytes))) {
    Refuse(NoBodyMemory(), "body_memory");
    return;
  }
  const uint64_t paced = std::max(paced_bytes_, kFreeBodyBytes);
  if (read <= paced) {
    ReadBody();
    return;
  }
  paced_bytes_ = read;
  pace_timer_.expires_after(std::chrono::nanoseconds(server_->bodies()->Pace(read - paced)));
  pace_timer_.async_wait([self = shared_from_this()](ErrorCode) {
    if (self->phase_ == Phase::kBody) self->ReadBody();
  });
}

bool HttpSession::BodyStalls(int64_t now_ns) const {
  if (phase_ != Phase::kBody || body_lease_ == nullptr || body_read_ns_ == 0) return false;
  const int64_t pause = now_ns - body_read_ns_, waited = body_waited_ns_ + pause;
  if (pause >= server_->options().least_wait_ms * kNsPerMs) return true;
  return waited >= kBodyGraceNs &&
         parser_->get().body().size() <
             static_cast<uint64_t>(waited / kNsPerMs) * kLeastBodyBytesPerMs;
}

void HttpSession::DropBody() {
  body_lease_.reset();
  timed_out_ = true;
  stream_.Cancel();
}

void HttpSession::OnBody(ErrorCode error) {
  if (error || timed_out_) {
    RefuseBytes(error);
    return;
  }
  read_timer_.Clear();
  if (buffer_.capacity() > kKeptReadBytes) buffer_.shrink_to_fit();
  // What a chunked body has not become is for others.
  if (body_lease_ != nullptr) server_->bodies()->Resize(body_lease_, parser_->get().body().size());
  Dispatch();
}

}  // namespace flotilla
