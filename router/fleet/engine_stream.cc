#include "router/fleet/engine_stream.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "common/base/listen.h"
#include "common/base/tcp_address.h"
#include "common/rpc/message_limits.h"
#include "common/tls/tls_files.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

constexpr int kMostFrames = 64;           // of a batch
constexpr size_t kMostBytes = 256 << 10;  // of a batch, but for its first frame
constexpr size_t kLeastReadBytes = 8 << 10, kMostReadBytes = 64 << 10;  // at once
constexpr size_t kKeptBytes = 64 << 10;  // of a buffer that has become empty

GrpcSession::Call ConnectCall(const EngineAddress& engine) {
  return {.path = "/flotilla.v1.Engine/Connect",
          .authority = IsUnixAddress(engine.address) ? "localhost" : engine.address,
          .tls = engine.tls != nullptr,
          .max_message_bytes = kMaxMessageBytes};
}

}  // namespace

EngineStream::EngineStream(EngineAddress engine, asio::any_io_executor executor, Handlers handlers)
    : engine_(std::move(engine)),
      executor_(std::move(executor)),
      handlers_(std::move(handlers)),
      session_(ConnectCall(engine_), [this](std::string_view message) { TakeMessage(message); }),
      in_(kLeastReadBytes) {}

std::shared_ptr<EngineStream> EngineStream::Start(EngineAddress engine,
                                                  asio::any_io_executor executor,
                                                  Handlers handlers) {
  std::shared_ptr<EngineStream> stream(
      new EngineStream(std::move(engine), executor, std::move(handlers)));
  stream->dial_ =
      Dial::Start(stream->engine_.address, executor,
                  [stream](StatusOr<Dial::Socket> socket) { stream->OnDialed(std::move(socket)); });
  return stream;
}

// --- The connection ------------------------------------------------------------------------------

std::string EngineStream::host() const {
  if (!engine_.server_name.empty()) return engine_.server_name;
  const StatusOr<TcpAddress> address = ParseTcpAddress(engine_.address);
  return address.ok() ? address->host : "";
}

void EngineStream::OnDialed(StatusOr<Dial::Socket> socket) {
  dial_.reset();
  if (!socket.ok())
    return End({grpc::StatusCode::UNAVAILABLE, std::string(socket.status().message())});
  stream_.emplace(*std::move(socket), engine_.tls == nullptr ? nullptr : engine_.tls->context);
  if (!stream_->needs_handshake()) return OnConnected();
  stream_->Offer("h2");
  stream_->AsyncHandshakeWith(host(), [self = shared_from_this()](ErrorCode error) {
    if (self->ended_) return;
    if (!error) return self->OnConnected();
    const std::string why = self->stream_->WhyUntrusted();
    self->Fail(why.empty() ? error.message() : StrCat("its certificate is not trusted: ", why));
  });
}

void EngineStream::OnConnected() {
  connected_ = true;
  Flush();
  Read();
}

void EngineStream::Read() {
  stream_->async_read_some(asio::buffer(in_),
                           [self = shared_from_this()](ErrorCode error, size_t bytes) {
                             if (self->ended_) return;
                             if (error) return self->Fail(error.message());
                             self->OnRead({self->in_.data(), bytes});
                           });
}

void EngineStream::OnRead(std::string_view bytes) {
  session_.Receive(bytes);
  Pump();
  for (v1::EngineFrame& frame : std::exchange(incoming_, {})) {
    if (ended_) return;
    handlers_.on_frame(std::move(frame));
  }
  if (ended_) return;
  if (session_.ended().has_value()) return End(*session_.ended());
  if (bytes.size() == in_.size() && in_.size() < kMostReadBytes) in_.resize(2 * in_.size());
  Read();
}

void EngineStream::TakeMessage(std::string_view message) {
  if (incoming_.emplace_back().ParseFromArray(message.data(), static_cast<int>(message.size())))
    return;
  incoming_.pop_back();
  // Nothing that follows would make sense.
  End({grpc::StatusCode::INTERNAL, "the replica sent what is no frame"});
}

// Behind what the io thread does now: nobody expects to be called back from within.
void EngineStream::End(grpc::Status status) {
  if (std::exchange(ended_, true)) return;
  outgoing_.clear();
  if (dial_ != nullptr) std::exchange(dial_, nullptr)->Cancel();
  if (stream_.has_value()) stream_->Close();
  asio::post(executor_, [self = shared_from_this(), status = std::move(status)] {
    self->handlers_.on_done(status);
  });
}

void EngineStream::Fail(const std::string& what) {
  End({grpc::StatusCode::UNAVAILABLE, StrCat("the connection to ", engine_.address, ": ", what)});
}

void EngineStream::Cancel() { End(grpc::Status::CANCELLED); }

// --- Frames out ----------------------------------------------------------------------------------

void EngineStream::Write(v1::RouterFrame frame) {
  if (ended_) return;
  outgoing_.push_back(std::move(frame));
  if (!connected_ || writing_ || std::exchange(flush_posted_, true)) return;
  // Behind whatever the io thread has ready: requests that came together go together.
  asio::post(executor_, [self = shared_from_this()] {
    self->flush_posted_ = false;
    self->Flush();
  });
}

void EngineStream::Flush() {
  if (ended_ || writing_ || !connected_) return;
  while (!outgoing_.empty() && !writing_ && session_.unsent_bytes() == 0) {
    NextMessage();
    Pump();
  }
  Pump();
}

void EngineStream::NextMessage() {
  if (!batches_ || outgoing_.size() == 1) {
    session_.Send(outgoing_.front());
    outgoing_.pop_front();
    return;
  }
  v1::FrameBatch* batch = batch_.mutable_batch();
  batch->clear_frames();
  size_t bytes = 0;
  while (!outgoing_.empty() && batch->frames_size() < kMostFrames) {
    bytes += outgoing_.front().ByteSizeLong();
    if (batch->frames_size() > 0 && bytes > kMostBytes) break;
    *batch->add_frames() = std::move(outgoing_.front());
    outgoing_.pop_front();
  }
  session_.Send(batch_);
}

void EngineStream::Pump() {
  if (ended_ || writing_ || !connected_) return;
  session_.TakeOutput(&out_);
  if (out_.empty()) return;
  writing_ = true;
  asio::async_write(*stream_, asio::buffer(out_),
                    [self = shared_from_this()](ErrorCode error, size_t) {
                      self->writing_ = false;
                      self->out_.clear();
                      if (self->out_.capacity() > kKeptBytes) self->out_.shrink_to_fit();
                      if (error && !self->ended_) return self->Fail(error.message());
                      self->Flush();
                      if (!self->ended_ && self->session_.ended())
                        self->End(*self->session_.ended());
                    });
}

}  // namespace flotilla
