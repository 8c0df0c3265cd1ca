// One Engine.Connect call: frames out in order, frames in on the io thread.
//
// Threads: Start, Write and Cancel from the io thread; the handlers are posted to it. on_done comes
// exactly once and last. Ownership: the call keeps itself alive until on_done was posted; the
// executor must outlive it (CallTracker says when). Errors: in on_done's status; a Write after the
// end is dropped.
#pragma once

#include <grpcpp/grpcpp.h>

#include <boost/asio/any_io_executor.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "flotilla/v1/engine.grpc.pb.h"
#include "router/call_tracker.h"

namespace flotilla {

class EngineStream final : public grpc::ClientBidiReactor<v1::RouterFrame, v1::EngineFrame>,
                           public std::enable_shared_from_this<EngineStream> {
 public:
  struct Handlers {
    std::function<void(v1::EngineFrame)> on_frame;
    std::function<void(grpc::Status)> on_done;
  };
  static std::shared_ptr<EngineStream> Start(std::shared_ptr<v1::Engine::Stub> stub,
                                             boost::asio::any_io_executor executor,
                                             CallTracker* calls, Handlers handlers);
  void Write(v1::RouterFrame frame);
  // From now on what waits while a frame is sent goes together (FrameBatch), as the other side's
  // protocol allows: most of a message's cost is gRPC's, whatever is in it.
  void AllowBatches();
  void Cancel() { context_.TryCancel(); }

 private:
  EngineStream(std::shared_ptr<v1::Engine::Stub> stub, boost::asio::any_io_executor executor,
               CallTracker* calls, Handlers handlers);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void Flush();
  void WriteNextLocked();

  const std::shared_ptr<v1::Engine::Stub> stub_;
  const boost::asio::any_io_executor executor_;
  CallTracker* const calls_;
  const Handlers handlers_;
  grpc::ClientContext context_;
  v1::EngineFrame incoming_;
  std::shared_ptr<EngineStream> self_;

  std::mutex mutex_;
  // Guarded by mutex_; in_write_ while writing_ is gRPC's.
  std::deque<v1::RouterFrame> outgoing_;
  v1::RouterFrame in_write_;
  bool writing_ = false;
  bool flush_posted_ = false;
  bool batches_ = false;
  bool closed_ = false;
};

}  // namespace flotilla
