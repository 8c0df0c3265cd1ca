// flotilla.v1.Engine: what routers speak with a replica. Callback API; every method returns at
// once. Threads: gRPC's. Ownership: owns nothing; the deps outlive the server.
#pragma once

#include <functional>

#include "common/base/clock.h"
#include "flotilla/v1/engine.grpc.pb.h"
#include "scheduler_proc/exchange/large_results.h"
#include "scheduler_proc/exchange/load_board.h"
#include "scheduler_proc/front/engine_info.h"
#include "scheduler_proc/front/keyed_results.h"
#include "scheduler_proc/front/request_front.h"
#include "scheduler_proc/front/router_channel.h"

namespace flotilla {

inline constexpr uint32_t kProtocolMin = 1;
inline constexpr uint32_t kProtocolMax = 2;

struct ServiceDeps {
  RequestFront* front = nullptr;
  RouterHub* hub = nullptr;
  EngineInfo* info = nullptr;
  LoadBoard* load = nullptr;
  LargeResults* large_results = nullptr;
  KeyedResults* keyed = nullptr;
  const Clock* clock = nullptr;
  // Drain was called: not ready from now on.
  std::function<void()> on_drain;
  RouterChannelOptions channel;
  size_t max_call_unsent_bytes = 4 << 20;  // of one direct call; a slower reader is dropped
};

class EngineService final : public v1::Engine::CallbackService {
 public:
  explicit EngineService(const ServiceDeps& deps) : deps_(deps) {}

  grpc::ServerBidiReactor<v1::RouterFrame, v1::EngineFrame>* Connect(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const v1::GetLoadRequest* request, v1::Load* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerWriteReactor<v1::FileChunk>* FetchModelFile(
      grpc::CallbackServerContext* context, const v1::FetchModelFileRequest* request) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* FetchLargeResult(
      grpc::CallbackServerContext* context, const v1::FetchLargeResultRequest* request) override;
  grpc::ServerUnaryReactor* FindKeyed(grpc::CallbackServerContext* context,
                                      const v1::FindKeyedRequest* request,
                                      v1::FindKeyedResponse* response) override;

 private:
  const ServiceDeps deps_;
};

}  // namespace flotilla
