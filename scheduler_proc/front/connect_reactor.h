// One Engine.Connect call: reads a router's frames; its writes are driven by the RouterChannel.
// A cancelled call shows as a failed read.
// Deletes itself when the call is over. Threads: gRPC's (reads are sequential), and whoever holds
// the channel's lock.
#pragma once

#include <atomic>
#include <memory>

#include "scheduler_proc/front/engine_service.h"

namespace flotilla {

class ConnectReactor final : public grpc::ServerBidiReactor<v1::RouterFrame, v1::EngineFrame>,
                             public FrameConnection {
 public:
  explicit ConnectReactor(const ServiceDeps* deps);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  // FrameConnection
  void Write(v1::EngineFrame&& frame) override;
  void Close(const Status& status) override;

 private:
  Status OnHello();
  Status OnFrame(v1::RouterFrame* frame);
  Status OnBatch(v1::FrameBatch* batch);
  Status OnSubmit(v1::Submit* submit);
  void OnAbort(const v1::AbortStream& abort);
  StatusOr<CheckedRequest> Check(const v1::Submit& submit) const;
  // The stream ends at once with an error.
  static void Refuse(OutputSink* sink, uint64_t stream, const Status& status);
  void Leave(const grpc::Status& status);
  void FinishOnce(const grpc::Status& status);

  const ServiceDeps* const deps_;
  std::shared_ptr<RouterChannel> channel_;  // null before Hello
  v1::RouterFrame in_;
  v1::EngineFrame out_;
  std::atomic<bool> finished_{false};
};

}  // namespace flotilla
