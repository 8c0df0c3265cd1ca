// Client's side for tests of the engine: one Generate call read to its end, and a router's
// connection whose frames are collected by a reader thread.
#pragma once

#include <grpcpp/client_context.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "flotilla/v1/engine.grpc.pb.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "tests/support/patience.h"

namespace flotilla {

inline v1::GenerateRequest TokenRequest(const std::vector<int32_t>& prompt, int32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

// `n` token ids that depend on `seed`.
inline std::vector<int32_t> Prompt(uint32_t seed, uint32_t n) {
  std::vector<int32_t> ids;
  for (uint32_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>((seed * 131 + i * 7) % 500));
  return ids;
}

struct Generated {
  grpc::Status status;
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<v1::TokenLogprobs> logprobs;
  std::vector<v1::TokenLogprobs> prompt_logprobs;
  v1::GenerateResponse first, last;
  int messages = 0;
};

inline Generated Generate(v1::Inference::Stub* stub, const v1::GenerateRequest& request,
                          grpc::ClientContext* context = nullptr) {
  grpc::ClientContext own;
  auto reader = stub->Generate(context != nullptr ? context : &own, request);
  Generated out;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (out.messages++ == 0) out.first = response;
    out.last = response;
    for (const auto& entry : response.prompt_logprobs()) out.prompt_logprobs.push_back(entry);
    if (response.choices_size() == 0) continue;
    out.text += response.choices(0).text();
    for (int32_t id : response.choices(0).token_ids()) out.tokens.push_back(id);
    for (const auto& entry : response.choices(0).logprobs()) out.logprobs.push_back(entry);
  }
  out.status = reader->Finish();
  return out;
}

// What a router has of one stream.
struct Received {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<v1::TokenLogprobs> logprobs;
  std::vector<v1::TokenLogprobs> prompt_logprobs;
  v1::Delta last;
  bool done = false;
};

inline v1::RouterFrame SubmitFrame(uint64_t stream, const v1::GenerateRequest& request) {
  v1::RouterFrame frame;
  frame.mutable_submit()->set_stream_id(stream);
  *frame.mutable_submit()->mutable_request() = request;
  return frame;
}

inline v1::RouterFrame AbortFrame(uint64_t stream) {
  v1::RouterFrame frame;
  frame.mutable_abort()->set_stream_id(stream);
  frame.mutable_abort()->set_reason(v1::FINISH_REASON_ABORT);
  return frame;
}

class TestRouter {
 public:
  explicit TestRouter(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::Engine::NewStub(channel)), stream_(stub_->Connect(&context_)) {}
  ~TestRouter() { Break(); }

  // `reading`: collect frames. A router that does not read leaves them in the engine.
  void Hello(v1::Hello hello, bool reading = true) {
    v1::RouterFrame frame;
    *frame.mutable_hello() = std::move(hello);
    stream_->Write(frame);
    if (reading) StartReading();
  }
  static v1::Hello MakeHello(const std::string& id = "router-a") {
    v1::Hello hello;
    hello.set_protocol_min(1);
    hello.set_protocol_max(1);
    hello.set_router_id(id);
    return hello;
  }
  void StartReading() {
    reader_ = std::thread([this] { Read(); });
  }
  void Submit(uint64_t stream, const v1::GenerateRequest& request,
              const std::vector<int32_t>& resume = {}) {
    v1::RouterFrame frame = SubmitFrame(stream, request);
    if (!resume.empty())
      frame.mutable_submit()->add_resume()->mutable_output_ids()->Add(resume.begin(), resume.end());
    Send(frame);
  }
  void Abort(uint64_t stream) { Send(AbortFrame(stream)); }
  void Send(const v1::RouterFrame& frame) { stream_->Write(frame); }

  // Waits until `done` holds over what was received (20 s); false: it did not, or the stream ended.
  template <typename Condition>
  bool Wait(Condition done) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return done() || ended_; });
    return done();
  }
  bool WaitDone(uint64_t stream) {
    return Wait([&] { return streams_[stream].done; });
  }
  Received Get(uint64_t stream) {
    std::lock_guard lock(mutex_);
    return streams_[stream];
  }
  // The call breaks, as if the router died.
  void Break() {
    context_.TryCancel();
    if (reader_.joinable()) reader_.join();
  }
  // Reads to the end; the call's status.
  grpc::Status Finish() {
    if (reader_.joinable()) reader_.join();
    return stream_->Finish();
  }

  // Guarded by the lock of Wait / under Wait's condition only.
  std::map<uint64_t, Received> streams_;
  v1::Welcome welcome_;
  bool welcomed_ = false;
  v1::Load load_;
  uint64_t steps_ = 0, submits_ = 0;
  std::set<uint64_t> pages_;  // that are cached, as the events say
  int64_t pong_ = 0;
  bool goodbye_ = false;
  bool ended_ = false;

 private:
  void Read() {
    v1::EngineFrame frame;
    while (stream_->Read(&frame)) {
      std::lock_guard lock(mutex_);
      OnFrame(frame);
      changed_.notify_all();
    }
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void OnFrame(const v1::EngineFrame& frame) {
    if (frame.has_welcome()) {
      welcome_ = frame.welcome();
      welcomed_ = true;
    }
    if (frame.has_pong()) pong_ = frame.pong().sent_ns();
    if (frame.has_goodbye()) goodbye_ = true;
    if (!frame.has_step()) return;
    ++steps_;
    load_ = frame.step().load();
    submits_ = frame.step().submits();
    for (const v1::CacheEvent& event : frame.step().cache_events()) OnCacheEvent(event);
    for (const v1::Delta& delta : frame.step().deltas()) {
      Received& r = streams_[delta.stream_id()];
      for (const auto& entry : delta.prompt_logprobs()) r.prompt_logprobs.push_back(entry);
      if (delta.choices_size() > 0) {
        r.text += delta.choices(0).text();
        for (int32_t id : delta.choices(0).token_ids()) r.tokens.push_back(id);
        for (const auto& entry : delta.choices(0).logprobs()) r.logprobs.push_back(entry);
      }
      if (delta.large_result_id() != 0) r.last.set_large_result_id(delta.large_result_id());
      if (!delta.last()) continue;
      const uint64_t large = r.last.large_result_id();
      r.last = delta;
      if (large != 0) r.last.set_large_result_id(large);
      r.done = true;
    }
  }

  void OnCacheEvent(const v1::CacheEvent& event) {
    if (event.kind() == v1::CacheEvent::CLEARED) pages_.clear();
    for (const uint64_t hash : event.page_hashes()) {
      if (event.kind() == v1::CacheEvent::STORED)
        pages_.insert(hash);
      else
        pages_.erase(hash);
    }
  }

  grpc::ClientContext context_;
  std::unique_ptr<v1::Engine::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::RouterFrame, v1::EngineFrame>> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread reader_;
};

}  // namespace flotilla
