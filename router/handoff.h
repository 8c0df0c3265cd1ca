// The hand-off of listening sockets from a router to its successor on the same host, so that no
// connection is refused between them.
//
// The router that serves listens on a Unix socket (--handoff-socket). A successor that is given the
// same path connects and gets copies of the listening sockets. Once it has a ready replica it
// accepts from them too, and listens at the path itself; only then it says so, and its predecessor
// closes its copies. Whoever ends before that, at whatever point, takes nothing from the other.
//
// 1. predecessor → successor: "flotilla-handoff 1 HOST", and 2 or 3 descriptors (HTTP, gRPC,
//    metrics).
// 2. successor → predecessor: "serving".
// 3. predecessor → successor: "left".
//
// Threads: Predecessor: one at a time. HandoffServer: one of its own, which calls on_relieved.
// Errors: as each says. Who connects must be of the same user (the file's mode, and SO_PEERCRED).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/base/unix_listener.h"

namespace flotilla {

struct ListeningSockets {
  UniqueFd http, grpc;
  UniqueFd metrics;  // perhaps none
};

// What a successor is meant to listen on; port 0: any.
struct ListeningPlaces {
  std::string host;
  uint16_t http_port = 0;
  uint16_t grpc_port = 0;
  std::optional<uint16_t> metrics_port = std::nullopt;  // no such page
};

class Predecessor {
 public:
  // NotFound: no router serves at `path`. Unavailable: it just ended. FailedPrecondition: it
  // listens elsewhere than `places`. DataLoss: what it sent is no hand-off. DeadlineExceeded.
  static StatusOr<std::unique_ptr<Predecessor>> Meet(const std::string& path,
                                                     const ListeningPlaces& places);
  // Once.
  ListeningSockets TakeSockets() { return std::move(sockets_); }
  bool alive() const;
  // It accepts no more connections when this returns, if it still lives.
  void Relieve();

 private:
  Predecessor(UniqueFd connection, ListeningSockets sockets)
      : connection_(std::move(connection)), sockets_(std::move(sockets)) {}

  UniqueFd connection_;
  ListeningSockets sockets_;
};

class HandoffServer {
 public:
  struct Options {
    std::string path;
    std::string host;
    int http = -1, grpc = -1;
    int metrics = -1;                   // perhaps none
    std::function<void()> on_relieved;  // at most once
  };
  // As UnixListener::Listen.
  static StatusOr<std::unique_ptr<HandoffServer>> Start(Options options);
  ~HandoffServer();
  HandoffServer(const HandoffServer&) = delete;

 private:
  HandoffServer(Options options, UnixListener listener, UniqueFd stop);
  void Run();
  bool Serve(int connection);
  void ListenAgain();
  bool WaitReadable(int fd) const;

  const Options options_;
  UnixListener listener_;
  const UniqueFd stop_;  // an event
  std::thread thread_;
};

}  // namespace flotilla
