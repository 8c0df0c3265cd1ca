// A gRPC call over an HTTP/2 connection of its own: bytes that came in, messages and the call's end
// out; messages in, bytes to send out. It does no I/O.
//
// HTTP/2 is nghttp2's. gRPC's part of it are five bytes before each message and the status behind
// the last one.
//
// Threads: one at a time. Errors: they end the call, with gRPC's codes. Source:
// github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct nghttp2_session;

namespace flotilla {

class GrpcSession {
 public:
  struct Call {
    std::string path;       // "/package.Service/Method"
    std::string authority;  // the server, as the caller knows it
    bool tls = false;
    size_t max_message_bytes = 0;  // of one that comes in; a larger one ends the call
  };
  // A message, for as long as the call lasts.
  using OnMessage = std::function<void(std::string_view)>;

  GrpcSession(const Call& call, OnMessage on_message);
  ~GrpcSession();
  GrpcSession(const GrpcSession&) = delete;

  // Appends a message to those that are to be sent.
  void Send(const google::protobuf::MessageLite& message);
  // Calls on_message for each message that `bytes` complete. Not from within on_message.
  void Receive(std::string_view bytes);
  // Appends what is to be sent now to *out. Not from within on_message.
  void TakeOutput(std::string* out);
  // What the other side has not yet room for, or TakeOutput was not yet called for.
  size_t unsent_bytes() const { return outgoing_.size() - sent_; }
  // Once there is a status nothing more comes or goes.
  const std::optional<grpc::Status>& ended() const { return ended_; }

 private:
  struct Callbacks;
  void End(grpc::StatusCode code, const std::string& message);
  void TakeHeader(std::string_view name, std::string_view value);
  void TakeData(std::string_view bytes);
  void EndOfCall();

  const size_t max_message_bytes_;
  const OnMessage on_message_;
  std::unique_ptr<nghttp2_session, void (*)(nghttp2_session*)> session_;
  int32_t stream_ = 0;
  std::string outgoing_;  // messages with their prefixes, from sent_ on
  size_t sent_ = 0;
  std::string incoming_;  // the beginning of a message
  int http_status_ = 0;
  std::optional<int> grpc_status_;
  std::string grpc_message_;  // as it was sent
  std::optional<grpc::Status> ended_;
};

}  // namespace flotilla
