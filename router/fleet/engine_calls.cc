#include "router/fleet/engine_calls.h"

#include <utility>

#include "router/fleet/collect_call.h"

namespace flotilla {
namespace {

// Of one replica whether it has a keyed request.
struct Search {
  EngineCaller caller;
  std::string key;
  std::chrono::milliseconds timeout;
  std::function<void(bool)> callback;
  int asks_left = 2;
};

struct FindKeyedCall {
  std::unique_ptr<Search> search;
  grpc::ClientContext context;
  v1::FindKeyedRequest request;
  v1::FindKeyedResponse response;
};

void Ask(std::unique_ptr<Search> search) {
  --search->asks_left;
  auto call = std::make_shared<FindKeyedCall>();
  const EngineCaller caller = search->caller;
  call->request.set_key(search->key);
  call->context.set_deadline(std::chrono::system_clock::now() + search->timeout);
  call->search = std::move(search);
  caller.calls->Add();
  caller.stub->async()->FindKeyed(
      &call->context, &call->request, &call->response,
      [call, executor = caller.executor, calls = caller.calls](const grpc::Status& status) mutable {
        const bool found = status.ok() && call->response.found();
        // Here, so that it counts before this one no longer does.
        if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
            call->search->asks_left > 0)
          Ask(std::move(call->search));
        // Moved: this thread must not be the last to hold it (call_tracker.h).
        boost::asio::post(executor, [call = std::move(call), found] {
          if (call->search != nullptr) call->search->callback(found);
        });
        calls->Remove();
      });
}

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
               std::chrono::milliseconds timeout, std::function<void(bool)> callback) {
  Ask(std::make_unique<Search>(Search{caller, key, timeout, std::move(callback)}));
}

}  // namespace flotilla
