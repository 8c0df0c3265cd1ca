// One Inference.Embed call on the engine itself: the sink of its request and the gRPC reactor that
// answers.
//
// The two have separate lives: the reactor ends with the call, the sink with the request. A call
// that is cancelled aborts its request. Threads: gRPC's, the output thread; the sink's lock guards
// all.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "flotilla/v1/inference.grpc.pb.h"
#include "scheduler_proc/front/engine_service.h"

namespace flotilla {

class EmbedReactor;

class EmbedCall final : public OutputSink {
 public:
  EmbedCall(const ServiceDeps* deps, ReqId id, EmbedReactor* reactor, v1::EmbedResponse* response)
      : deps_(deps), id_(id), reactor_(reactor), response_(response) {}

  bool Append(uint64_t stream, v1::Delta&& piece) override;
  void Flush() override {}

  // The client is gone: the request is aborted.
  void Cancel();
  // The request never ran.
  void Refuse(const grpc::Status& status);

 private:
  void FinishLocked(const grpc::Status& status);

  const ServiceDeps* const deps_;
  const ReqId id_;
  std::mutex mutex_;
  EmbedReactor* reactor_;              // guarded by mutex_; null once Finish was called
  v1::EmbedResponse* const response_;  // gRPC's; gone once Finish was called
};

class EmbedReactor final : public grpc::ServerUnaryReactor {
 public:
  // `request` has its request_id.
  EmbedReactor(const ServiceDeps* deps, const v1::EmbedRequest& request,
               v1::EmbedResponse* response);
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  std::shared_ptr<EmbedCall> call_;  // null: refused
};

}  // namespace flotilla
