#include "router/engine_calls.h"

#include <chrono>
#include <utility>

#include "router/collect_call.h"

namespace flotilla {
namespace {

constexpr auto kFindKeyedTimeout = std::chrono::seconds(1);

}  // namespace

void FetchLargeResult(const EngineCaller& caller, uint64_t id, LargeResultCallback callback) {
  auto request = std::make_shared<v1::FetchLargeResultRequest>();
  request->set_large_result_id(id);
  auto entries = std::make_shared<std::vector<v1::TokenLogprobs>>();
  auto take = [entries](v1::GenerateResponse& piece) {
    for (v1::TokenLogprobs& entry : *piece.mutable_prompt_logprobs())
      entries->push_back(std::move(entry));
    return true;
  };
  auto done = [callback = std::move(callback), entries, request, stub = caller.stub](
                  const grpc::Status& status) { callback(status.ok() ? entries : nullptr); };
  CollectCall<v1::GenerateResponse>::Start(
      [&](grpc::ClientContext* context, grpc::ClientReadReactor<v1::GenerateResponse>* reactor) {
        caller.stub->async()->FetchLargeResult(context, request.get(), reactor);
      },
      caller.executor, caller.calls, std::move(take), std::move(done));
}

void FindKeyed(const EngineCaller& caller, const std::string& key,
               std::function<void(bool)> callback) {
  struct Call {
    std::shared_ptr<v1::Engine::Stub> stub;
    std::function<void(bool)> callback;
    grpc::ClientContext context;
    v1::FindKeyedRequest request;
    v1::FindKeyedResponse response;
  };
  auto call = std::make_shared<Call>();
  call->stub = caller.stub;
  call->callback = std::move(callback);
  call->request.set_key(key);
  call->context.set_deadline(std::chrono::system_clock::now() + kFindKeyedTimeout);
  caller.calls->Add();
  caller.stub->async()->FindKeyed(
      &call->context, &call->request, &call->response,
      [call, executor = caller.executor, calls = caller.calls](const grpc::Status& status) mutable {
        const bool found = status.ok() && call->response.found();
        // Moved: this thread must not be the last to hold it (call_tracker.h).
        boost::asio::post(executor, [call = std::move(call), found] { call->callback(found); });
        calls->Remove();
      });
}

}  // namespace flotilla
