// One Engine.Connect call on a connection of its own: frames out in order, frames in.
//
// It is HTTP/2 on the io thread's own sockets rather than a call of gRPC's library, whose threads
// hand each message on to each other: at one connection that doubled what a router adds to a
// request (docs/performance-router.md).
//
// Threads: the io thread. on_done comes exactly once and last, and no handler from within Start,
// Write or Cancel. Ownership: the call keeps itself alive until on_done; the executor must outlive
// that. Errors: in on_done's status; a Write after the end is dropped.
#pragma once

#include <grpcpp/support/status.h>

#include <boost/asio/any_io_executor.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/tls/maybe_tls_stream.h"
#include "flotilla/v1/engine.pb.h"
#include "router/fleet/dial.h"
#include "router/fleet/grpc_session.h"

namespace flotilla {

struct TlsMaterial;

struct EngineAddress {
  std::string address;                     // host:port or unix:/path
  std::shared_ptr<const TlsMaterial> tls;  // null: plain text
  std::string server_name;                 // that its certificate has; empty: the address' host
};

class EngineStream final : public std::enable_shared_from_this<EngineStream> {
 public:
  struct Handlers {
    std::function<void(v1::EngineFrame)> on_frame;
    std::function<void(grpc::Status)> on_done;
  };
  static std::shared_ptr<EngineStream> Start(EngineAddress engine,
                                             boost::asio::any_io_executor executor,
                                             Handlers handlers);
  void Write(v1::RouterFrame frame);
  // From now on what waits while the other side has no room for more goes together (FrameBatch), as
  // its protocol allows.
  void AllowBatches() { batches_ = true; }
  void Cancel();

 private:
  EngineStream(EngineAddress engine, boost::asio::any_io_executor executor, Handlers handlers);
  std::string host() const;
  void OnDialed(StatusOr<Dial::Socket> socket);
  void OnConnected();
  void Read();
  void OnRead(std::string_view bytes);
  void TakeMessage(std::string_view message);
  void Flush();
  void NextMessage();
  void Pump();
  void End(grpc::Status status);
  void Fail(const std::string& what);

  const EngineAddress engine_;
  const boost::asio::any_io_executor executor_;
  const Handlers handlers_;
  GrpcSession session_;
  std::shared_ptr<Dial> dial_;  // until it is connected
  std::optional<MaybeTlsStream> stream_;
  bool connected_ = false;  // ready for HTTP/2
  bool ended_ = false;
  bool batches_ = false;
  bool flush_posted_ = false;
  bool writing_ = false;
  std::deque<v1::RouterFrame> outgoing_;
  v1::RouterFrame batch_;
  std::string out_;  // what is written now
  std::vector<char> in_;
  std::vector<v1::EngineFrame> incoming_;  // of the bytes that are taken now
};

}  // namespace flotilla
