// A server-streaming call whose messages are gathered and handed over at the end. It fails with
// DEADLINE_EXCEEDED after kTimeout: a replica that hangs must not keep who waits for ever.
//
// `take` runs on gRPC's threads, one call at a time; returning false cancels the call. `done` is
// posted to the executor once. Ownership: the call keeps itself until then, and ends there with
// what it holds of the channel (call_tracker.h). The executor must outlive it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "router/fleet/call_tracker.h"

namespace flotilla {

template <typename Message>
class CollectCall final : public grpc::ClientReadReactor<Message> {
 public:
  // `start(context, reactor)` makes the stub's call.
  template <typename StartFn>
  static void Start(StartFn start, boost::asio::any_io_executor executor, CallTracker* calls,
                    std::function<bool(Message&)> take, std::function<void(grpc::Status)> done) {
    auto* call = new CollectCall(std::move(executor), calls, std::move(take), std::move(done));
    calls->Add();
    call->context_.set_deadline(std::chrono::system_clock::now() + kTimeout);
    start(&call->context_, call);
    call->StartRead(&call->message_);
    call->StartCall();
  }

 private:
  static constexpr auto kTimeout = std::chrono::seconds(30);

  CollectCall(boost::asio::any_io_executor executor, CallTracker* calls,
              std::function<bool(Message&)> take, std::function<void(grpc::Status)> done)
      : executor_(std::move(executor)),
        calls_(calls),
        take_(std::move(take)),
        done_(std::move(done)) {}

  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      const std::lock_guard lock(order_);
      Message message;
      message.Swap(&message_);  // memory that another thread's next message would be read into
      if (!take_(message)) context_.TryCancel();
    }
    this->StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    { const std::lock_guard lock(order_); }
    CallTracker* const calls = calls_;
    boost::asio::post(executor_,
                      [self = std::unique_ptr<CollectCall>(this), status] { self->done_(status); });
    calls->Remove();
  }

  const boost::asio::any_io_executor executor_;
  CallTracker* const calls_;
  std::function<bool(Message&)> take_;
  std::function<void(grpc::Status)> done_;
  grpc::ClientContext context_;
  Message message_;
  // gRPC calls in order, but on any thread, and ThreadSanitizer does not see how it orders them.
  std::mutex order_;
};

}  // namespace flotilla
