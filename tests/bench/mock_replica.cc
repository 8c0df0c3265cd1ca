// A replica that computes nothing, for what a router alone costs (tests/bench/routers.py): it
// answers each request with one frame, or with a token each --step-us. With --ping it is the client
// of another one and measures what a bare message there and back takes on the same kind of stream.
// The tokenizer that it offers is that of FLOTILLA_TEST_MODEL.
//
// Threads: gRPC's; one more a stream if there are steps.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/flags.h"
#include "common/base/status.h"
#include "flotilla/v1/engine.grpc.pb.h"
#include "tests/fakes/test_model.h"

namespace flotilla {
namespace {

constexpr size_t kChunkBytes = 256 << 10;
constexpr uint32_t kHeartbeatMs = 60'000;  // it sends none: nobody waits that long
constexpr int32_t kToken = 1000;

// One router's stream: what it asks is answered in the frame after the one that is being sent.
class Answering final : public grpc::ServerBidiReactor<v1::RouterFrame, v1::EngineFrame> {
 public:
  Answering(v1::EngineFrame welcome, int64_t step_us)
      : welcome_(std::move(welcome)), step_us_(step_us) {
    StartRead(&incoming_);
    if (step_us_ > 0) steps_ = std::thread([this] { TakeSteps(); });
  }

  void OnReadDone(bool ok) override {
    std::unique_lock lock(mutex_);
    if (!ok) {
      ended_ = true;
      if (!writing_) FinishOnce();
      return;
    }
    Take(incoming_);
    WriteIfDue();
    lock.unlock();
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok || ended_)
      FinishOnce();
    else
      WriteIfDue();
  }
  void OnDone() override {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    if (steps_.joinable()) steps_.join();
    delete this;
  }

 private:
  struct Live {
    int32_t prompt_tokens = 0;
    int32_t wanted = 0;
    int32_t sent = 0;
  };

  void Take(const v1::RouterFrame& frame) {
    for (const v1::RouterFrame& each : frame.batch().frames()) Take(each);
    if (frame.has_submit()) {
      const v1::GenerateRequest& request = frame.submit().request();
      live_[frame.submit().stream_id()] = {request.token_ids().ids_size(),
                                           request.stopping().max_tokens(), 0};
      ++submits_;
    } else if (frame.has_abort()) {
      live_.erase(frame.abort().stream_id());
    } else if (frame.has_ping()) {
      pongs_.push_back(frame.ping().sent_ns());
    } else if (frame.has_hello()) {
      outgoing_ = welcome_;
      writing_ = true;
      StartWrite(&outgoing_);
    }
  }

  void WriteIfDue() {
    if (writing_ || ended_) return;
    if (!pongs_.empty()) {
      outgoing_.mutable_pong()->set_sent_ns(pongs_.back());
      pongs_.pop_back();
    } else if (step_due_ || (step_us_ == 0 && !live_.empty())) {
      step_due_ = false;
      outgoing_ = MakeStep();
    } else {
      return;
    }
    writing_ = true;
    StartWrite(&outgoing_);
  }

  void TakeSteps() {
    auto next = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!ended_) {
      if (!live_.empty()) step_due_ = true;
      WriteIfDue();
      lock.unlock();
      next = std::max(next + std::chrono::microseconds(step_us_), std::chrono::steady_clock::now());
      std::this_thread::sleep_until(next);
      lock.lock();
    }
  }

  void FinishOnce() {
    if (!std::exchange(finished_, true)) Finish(grpc::Status::OK);
  }

  // A token of each request, or all of its tokens.
  v1::EngineFrame MakeStep() {
    v1::EngineFrame frame;
    v1::Step* step = frame.mutable_step();
    for (auto at = live_.begin(); at != live_.end();) {
      Live& live = at->second;
      v1::Delta* delta = step->add_deltas();
      delta->set_stream_id(at->first);
      v1::ChoiceDelta* choice = delta->add_choices();
      const int32_t until = step_us_ > 0 ? std::min(live.sent + 1, live.wanted) : live.wanted;
      for (; live.sent < until; ++live.sent) {
        choice->mutable_text()->append(" word");
        choice->add_token_ids(kToken);
      }
      if (live.sent < live.wanted) {
        ++at;
        continue;
      }
      choice->set_finish_reason(v1::FINISH_REASON_LENGTH);
      delta->mutable_usage()->set_prompt_tokens(live.prompt_tokens);
      delta->mutable_usage()->set_completion_tokens(live.sent);
      delta->set_last(true);
      at = live_.erase(at);
    }
    step->mutable_load()->set_running_requests(static_cast<uint32_t>(live_.size()));
    step->mutable_load()->set_total_pages(1000);
    step->mutable_load()->set_free_pages(1000);
    step->set_submits(submits_);
    return frame;
  }

  const v1::EngineFrame welcome_;
  const int64_t step_us_;
  v1::RouterFrame incoming_;
  std::mutex mutex_;
  // Guarded by mutex_; outgoing_ only while nothing is written.
  v1::EngineFrame outgoing_;
  std::map<uint64_t, Live> live_;
  std::vector<int64_t> pongs_;
  uint64_t submits_ = 0;
  bool writing_ = false, step_due_ = false, ended_ = false, finished_ = false;
  std::thread steps_;
};

class MockReplica final : public v1::Engine::WithCallbackMethod_Connect<v1::Engine::Service> {
 public:
  explicit MockReplica(int64_t step_us) : step_us_(step_us) {}

 private:
  grpc::ServerBidiReactor<v1::RouterFrame, v1::EngineFrame>* Connect(
      grpc::CallbackServerContext*) override {
    return new Answering(Welcome(), step_us_);
  }

  grpc::Status FetchModelFile(grpc::ServerContext*, const v1::FetchModelFileRequest*,
                              grpc::ServerWriter<v1::FileChunk>* writer) override {
    SendHead(GetTestModel(), writer);
    return grpc::Status::OK;
  }

  static v1::EngineFrame Welcome() {
    const TestModel& model = GetTestModel();
    v1::EngineFrame frame;
    v1::Welcome* welcome = frame.mutable_welcome();
    welcome->set_protocol(2);
    welcome->set_replica_id("mock");
    welcome->set_heartbeat_ms(kHeartbeatMs);
    welcome->set_reattach_ms(2000);
    v1::GetModelInfoResponse* info = welcome->mutable_model();
    info->set_model("mock");
    info->set_model_digest(model.sha256);
    info->set_fingerprint("mock");
    info->set_max_model_len(8192);
    info->set_vocab_size(model.tokenizer->vocab_size());
    info->set_hidden_size(1);
    info->set_created(1'700'000'000);
    v1::ModelFile* file = info->add_files();
    file->set_name("tokenizer");
    file->set_sha256(model.sha256);
    file->set_bytes(model.header.size());
    return frame;
  }

  const int64_t step_us_;
};

// Microseconds that a message takes there and back, one at a time: the median and the 99th
// percentile.
int Ping(const std::string& address, int pings) {
  const auto stub =
      v1::Engine::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Connect(&context);
  v1::RouterFrame out;
  v1::EngineFrame in;
  out.mutable_hello()->set_protocol_min(1);
  out.mutable_hello()->set_protocol_max(2);
  std::vector<double> us;
  bool open = stream->Write(out) && stream->Read(&in);
  while (open && us.size() < static_cast<size_t>(pings)) {
    const auto begin = std::chrono::steady_clock::now();
    out.mutable_ping()->set_sent_ns(1);
    open = stream->Write(out);
    do {
      open = open && stream->Read(&in);
    } while (open && !in.has_pong());
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                     .count());
  }
  context.TryCancel();
  if (!open) {
    std::fprintf(stderr, "mock_replica: error: %s did not answer\n", address.c_str());
    return 1;
  }
  std::sort(us.begin(), us.end());
  std::printf("{\"ping_p50_us\": %.1f, \"ping_p99_us\": %.1f}\n", us[us.size() / 2],
              us[us.size() * 99 / 100]);
  return 0;
}

// count: as many replicas, each at an address of its own, "ADDRESS-0" and so on.
int Serve(const std::string& address, int count, int64_t step_us) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  MockReplica replica(step_us);
  int port = 0;
  grpc::ServerBuilder builder;
  for (int i = 0; i < count; ++i)
    builder.AddListeningPort(count == 1 ? address : StrCat(address, "-", i),
                             grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&replica);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "mock_replica: error: can't listen on %s\n", address.c_str());
    return 1;
  }
  std::printf("%d\n", port);
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  using namespace flotilla;
  std::string listen = "127.0.0.1:0", ping;
  int pings = 20'000;
  int64_t step_us = 0;
  int count = 1;
  CLI::App app("A replica that computes nothing; prints its port", "mock_replica");
  app.add_option("--listen", listen, "HOST:PORT or unix:PATH")->capture_default_str();
  app.add_option("--count", count, "As many replicas, at ADDRESS-0 and so on")
      ->check(CLI::Range(1, 20'000));
  app.add_option("--step-us", step_us, "A token of each request that often; 0: all tokens at once")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--ping", ping, "Measure messages to the one at this address instead");
  app.add_option("--pings", pings, "How many")->check(CLI::Range(1, 100'000'000));
  ParseOrExit(&app, argc, argv);
  return ping.empty() ? Serve(listen, count, step_us) : Ping(ping, pings);
}
