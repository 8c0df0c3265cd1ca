// The loop over real rings and ranks in threads; the test is the output side. No gRPC, no ZeroMQ:
// this runs under ThreadSanitizer.
#include "scheduler_proc/loop/scheduler_loop.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <map>
#include <random>
#include <thread>

#include "shm/ring_metrics.h"
#include "tests/fakes/fake_replica.h"

namespace flotilla {
namespace {

struct Stream {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  Finish finish = Finish::kNone;
  Status error;
};

class LoopTest : public testing::Test {
 protected:
  void Start(FakeReplicaOptions options = {}, SchedulerLoop::Options loop = {}) {
    options_ = options;
    replica_ = std::make_unique<FakeReplica>(options);
    control_ = replica_->control().operator->();
    port_ = std::make_unique<RingStepPort>(*RingWriter::Attach(replica_->step_ring()), nullptr,
                                           &clock_, &fill_);
    results_ =
        std::make_unique<RingReader>(*RingReader::Attach(replica_->result_ring(), 0, WaitPolicy{}));
    inbox_ =
        std::make_unique<Inbox>(10'000, [c = control_] { ReplicaControl::Ring(&c->doorbell); });
    EpochManager::Options epochs;
    epochs.tp_size = options.tp;
    epochs_ = std::make_unique<EpochManager>(epochs, control_, port_.get());
    loop.core.page_size = options.page_size;
    loop.core.max_running_requests = options.max_slots;
    loop.core.context_length = options.context_length;
    loop.core.vocab_size = options.model.vocab_size;
    loop.core.eos_ids = {options.model.eos_id};
    loop.core.chunked_prefill_size = 64;
    loop_ = std::make_unique<SchedulerLoop>(
        loop, SchedulerLoop::Deps{&clock_, control_, epochs_.get(), port_.get(), results_.get(),
                                  inbox_.get(), &outputs_, &load_, &metrics_, nullptr, nullptr,
                                  [this](uint32_t) {
                                    serving_.store(true);
                                    return OkStatus();
                                  },
                                  [this] { serving_.store(false); }, [](bool) {}});
    thread_ = std::thread([this] { EXPECT_TRUE(loop_->Run().ok()); });
    while (!serving_.load()) std::this_thread::yield();
  }
  void TearDown() override {
    if (loop_ == nullptr) return;
    loop_->Stop();
    thread_.join();
    EXPECT_TRUE(loop_->core()->CheckLedger().ok()) << loop_->core()->CheckLedger();
    EXPECT_EQ(replica_->bad_plans(), 0u);
  }

  void Submit(ReqId id, std::vector<int32_t> prompt, uint32_t max_tokens,
              int64_t deadline_ns = INT64_MAX) {
    SubmitCommand command;
    command.spec.id = id;
    command.spec.prompt_ids = std::move(prompt);
    command.spec.max_new_tokens = max_tokens;
    command.spec.sampling.temperature = 0;
    command.spec.sampling.num_logprobs = 1;
    command.spec.arrival_ns = clock_.NowNs();
    command.spec.deadline_ns = deadline_ns;
    load_.AddSubmitted(command.spec.prompt_ids.size());
    ASSERT_TRUE(inbox_->Submit(std::move(command)).ok());
  }

  // Takes events until `done` (20 s).
  template <typename Condition>
  bool Pump(Condition done) {
    const int64_t deadline = clock_.NowNs() + 20 * kNsPerSecond;
    while (!done() && clock_.NowNs() < deadline) {
      pollfd fd{outputs_.event_fd(), POLLIN, 0};
      poll(&fd, 1, 100);
      std::vector<OutputEvent> events;
      outputs_.Drain(&events);
      for (OutputEvent& event : events) {
        if (auto* output = std::get_if<ReqOutput>(&event)) {
          Stream& s = streams_[output->id];
          EXPECT_EQ(s.finish, Finish::kNone) << "output after the end of " << output->id;
          if (output->token) s.tokens.push_back(*output->token);
          if (output->has_logprobs) s.logprobs.push_back(output->logprobs.logprob);
          s.finish = output->finish;
          finished_ += output->finish != Finish::kNone;
        } else if (auto* fail = std::get_if<FailOutput>(&event)) {
          streams_[fail->id].error = fail->status;
          streams_[fail->id].finish = Finish::kError;
          ++finished_;
        }
      }
    }
    return done();
  }
  bool PumpUntilFinished(size_t n) {
    return Pump([&] { return finished_ >= n; });
  }
  std::vector<int32_t> Expected(std::vector<int32_t> prompt, uint32_t max_tokens) {
    return FakeGreedy(std::move(prompt), max_tokens, options_.model);
  }
  static std::vector<int32_t> Prompt(uint32_t seed, uint32_t n) {
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < n; ++i)
      ids.push_back(static_cast<int32_t>((seed * 131 + i * 7) % 500));
    return ids;
  }

  RealClock clock_;
  FakeReplicaOptions options_;
  prometheus::Registry registry_;
  LoopMetrics metrics_{{"m", "r", 40, 16}, &registry_};
  prometheus::Gauge& fill_ = AddGauge(&registry_, RingFillRatioSpec("step"));
  std::unique_ptr<FakeReplica> replica_;
  ReplicaControlBlock* control_ = nullptr;
  std::unique_ptr<RingStepPort> port_;
  std::unique_ptr<RingReader> results_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<EpochManager> epochs_;
  OutputQueue outputs_;
  LoadBoard load_;
  std::atomic<bool> serving_{false};
  std::unique_ptr<SchedulerLoop> loop_;
  std::thread thread_;
  std::map<ReqId, Stream> streams_;
  size_t finished_ = 0;
};

TEST_F(LoopTest, ManyRequestsAtOnceEachGetTheirOwn) {
  Start();
  for (uint32_t i = 1; i <= 40; ++i) Submit(i, Prompt(i % 6, 20 + 3 * i), 25);
  ASSERT_TRUE(PumpUntilFinished(40));
  for (uint32_t i = 1; i <= 40; ++i) {
    EXPECT_EQ(streams_[i].tokens, Expected(Prompt(i % 6, 20 + 3 * i), 25)) << i;
    EXPECT_EQ(streams_[i].finish, Finish::kLength);
  }
  const std::string text = RenderMetrics(registry_);
  EXPECT_NE(text.find("flotilla_scheduler_generation_tokens_total{model=\"m\",replica=\"r\"} 1000"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("flotilla_scheduler_kv_pages_unaccounted{model=\"m\",replica=\"r\"} 0"),
            std::string::npos);
  EXPECT_NE(text.find("flotilla_scheduler_time_to_first_token_seconds_count{model=\"m\","
                      "replica=\"r\"} 40"),
            std::string::npos);
}

TEST_F(LoopTest, WorkersThatDieMidStreamChangeNoToken) {
  FakeReplicaOptions options;
  options.tp = 3;
  Start(options);
  replica_->Hold(true);  // until all are in, and the first round begins
  for (uint32_t i = 1; i <= 10; ++i) Submit(i, Prompt(i, 60), 200);
  for (uint32_t round = 0; round < 6; ++round) {
    const uint64_t steps = replica_->steps();
    replica_->HoldAfter(20);
    ASSERT_TRUE(Pump([&] { return replica_->steps() >= steps + 20; }));
    replica_->Kill(round % 3);
    replica_->Restart(round % 3);
  }
  EXPECT_EQ(finished_, 0u);
  replica_->Hold(false);
  ASSERT_TRUE(PumpUntilFinished(10));
  for (uint32_t i = 1; i <= 10; ++i) {
    const auto expected = Expected(Prompt(i, 60), 200);
    EXPECT_EQ(streams_[i].tokens, expected) << i;
    ASSERT_EQ(streams_[i].logprobs.size(), expected.size());
    for (uint32_t t = 0; t < expected.size(); ++t)
      EXPECT_EQ(streams_[i].logprobs[t], FakeLogprob(expected[t], 60 + t));
  }
  EXPECT_GE(control_->epoch.load(), 7u);
}

TEST_F(LoopTest, AThousandRandomAbortsLeaveNothingLocked) {
  FakeReplicaOptions options;
  options.num_pages = 128;  // small: requests are retracted as well
  Start(options);
  std::mt19937 random(3);
  for (ReqId id = 1; id <= 1000; ++id) {
    Submit(id, Prompt(random() % 9, 1 + random() % 120), 1 + random() % 100);
    if (random() % 3 == 0) std::this_thread::yield();
    if (random() % 5 != 0) inbox_->Abort(1 + random() % id, Finish::kAbort);
    if (id % 50 == 0) Pump([&] { return id - finished_ < 100; });
  }
  ASSERT_TRUE(PumpUntilFinished(1000));
  // Slots close with the next plan or none; pages are free at once.
  EXPECT_TRUE(Pump([&] { return load_.stats().locked_pages == 0; }));
  EXPECT_EQ(load_.stats().running + load_.stats().waiting, 0u);
  EXPECT_EQ(load_.stats().free_pages + load_.stats().evictable_pages, 128u);
}

TEST_F(LoopTest, AnAbortedRequestIsFreeWithinTwoSteps) {
  Start();
  replica_->Hold(true);  // until both are there
  Submit(1, Prompt(1, 300), 1000);
  Submit(2, Prompt(2, 10), 1000);
  replica_->HoldAfter(30);
  ASSERT_TRUE(Pump([&] { return streams_[1].tokens.size() > 5 && !streams_[2].tokens.empty(); }));
  inbox_->Abort(1, Finish::kAbort);
  ASSERT_TRUE(Pump([&] { return streams_[1].finish == Finish::kAbort; }));
  const uint64_t steps = replica_->steps();
  replica_->HoldAfter(2);
  ASSERT_TRUE(Pump([&] { return replica_->steps() >= steps + 2; }));   // both that were planned
  EXPECT_TRUE(Pump([&] { return load_.stats().locked_pages <= 4; }));  // request 2's alone
  replica_->HoldAfter(2);
  ASSERT_TRUE(Pump([&] { return replica_->steps() >= steps + 4; }));
  EXPECT_EQ(replica_->open_slots(), 1u) << "the next plan closes its slot";
  replica_->Hold(false);
  inbox_->Abort(2, Finish::kAbort);
  ASSERT_TRUE(PumpUntilFinished(2));
}

TEST_F(LoopTest, DeadlinesEndRequestsEvenIfNoResultComes) {
  Start();
  replica_->Hold(true);
  Submit(1, Prompt(1, 30), 100, clock_.NowNs() + 20 * kNsPerMs);
  Submit(2, Prompt(2, 30), 10);
  ASSERT_TRUE(PumpUntilFinished(1));
  EXPECT_EQ(streams_[1].finish, Finish::kDeadline);
  replica_->Hold(false);
  ASSERT_TRUE(PumpUntilFinished(2));
  EXPECT_EQ(streams_[2].tokens, Expected(Prompt(2, 30), 10));
}

TEST_F(LoopTest, TruncateEndsAsIfItHadStoppedThere) {
  Start();
  replica_->HoldAfter(20);
  Submit(1, Prompt(1, 30), 1000);
  ASSERT_TRUE(Pump([&] { return streams_[1].tokens.size() > 10; }));
  inbox_->Truncate(1, 6);
  ASSERT_TRUE(PumpUntilFinished(1));
  EXPECT_EQ(streams_[1].finish, Finish::kStop);
}

TEST_F(LoopTest, AddErrorsReachTheStream) {
  SchedulerLoop::Options loop;
  loop.core.max_queued_requests = 2;
  FakeReplicaOptions options;
  options.max_slots = 1;
  Start(options, loop);
  replica_->Hold(true);
  for (ReqId id = 1; id <= 6; ++id) Submit(id, Prompt(1, 30), 10);
  ASSERT_TRUE(Pump([&] { return finished_ >= 3; }));
  size_t refused = 0;
  for (auto& [id, stream] : streams_)
    refused += stream.error.code() == absl::StatusCode::kResourceExhausted;
  EXPECT_EQ(refused, finished_);
  replica_->Hold(false);
  ASSERT_TRUE(PumpUntilFinished(6));
}

TEST_F(LoopTest, AnUnansweredStepIsGivenUp) {
  SchedulerLoop::Options loop;
  loop.step_timeout_ns = 50 * kNsPerMs;
  Start({}, loop);
  replica_->HoldAfter(10);
  Submit(1, Prompt(1, 30), 40);
  ASSERT_TRUE(Pump([&] { return control_->epoch.load() >= 2; }));
  replica_->Hold(false);
  ASSERT_TRUE(PumpUntilFinished(1));
  EXPECT_EQ(streams_[1].tokens, Expected(Prompt(1, 30), 40));
}

// A rank that hangs is somebody else's fault more often than not, so more of these are let pass.
TEST_F(LoopTest, ARequestWhoseStepsAreNeverAnsweredInTimeIsEnded) {
  const SchedulerLoop::Options limits;
  Start();
  replica_->FailSteps(1000, absl::StatusCode::kDeadlineExceeded);
  Submit(1, Prompt(1, 30), 40);
  ASSERT_TRUE(PumpUntilFinished(1));
  EXPECT_EQ(streams_[1].finish, Finish::kError);
  EXPECT_GE(control_->epoch.load(), limits.max_lost_steps);
  EXPECT_NE(RenderMetrics(registry_).find(
                "request_success_total{finished_reason=\"error\",model=\"m\",replica=\"r\"} 1"),
            std::string::npos)
      << RenderMetrics(registry_);
  replica_->FailSteps(0, absl::StatusCode::kOk);
  Submit(2, Prompt(2, 30), 10);
  ASSERT_TRUE(PumpUntilFinished(2));
  EXPECT_EQ(streams_[2].tokens, Expected(Prompt(2, 30), 10));
}

}  // namespace
}  // namespace flotilla
