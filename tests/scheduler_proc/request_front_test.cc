#include "scheduler_proc/front/request_front.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/fakes/fake_tokenizer.h"

namespace flotilla {
namespace {

CheckedRequest Request(const std::string& request_id, size_t prompt_tokens = 5) {
  CheckedRequest request;
  request.request_id = request_id;
  request.spec.prompt_ids.assign(prompt_tokens, 7);
  request.spec.max_new_tokens = 1;
  return request;
}

class RequestFrontTest : public testing::Test {
 protected:
  Status Enqueue(ReqId id, const std::string& request_id) {
    return front_.Enqueue(id, Request(request_id), "tenant", 0, nullptr, id);
  }
  v1::Load Load() {
    v1::Load load;
    load_.Fill(&load);
    return load;
  }
  std::vector<Command> Drain() {
    std::vector<Command> commands;
    inbox_.Drain(&commands);
    return commands;
  }
  // As the loop does it.
  void Take(std::vector<Command>* commands) {
    for (Command& command : *commands) {
      if (const auto* submit = std::get_if<SubmitCommand>(&command)) {
        ++taken_;
        taken_tokens_ += submit->spec.prompt_ids.size();
      }
    }
    load_.Publish({}, taken_, taken_tokens_);
  }

  RealClock clock_;
  FakeTokenizer tokenizer_;
  std::atomic<int> refused_{0};
  Inbox inbox_{64, [] {}};
  LoadBoard load_;
  RequestFront front_{
      {&inbox_, &load_, &tokenizer_, nullptr, &clock_, [this](auto) { ++refused_; }}};
  uint64_t taken_ = 0, taken_tokens_ = 0;
};

TEST_F(RequestFrontTest, TakesRequestsOnlyWhileServing) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(5);
  const v1::GenerateRequest embed = request;
  request.mutable_stopping()->set_max_tokens(1);
  EXPECT_EQ(front_.Check(request, {}, false).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(front_.CheckEmbed(embed, {}, false).status().code(), absl::StatusCode::kUnavailable);
  front_.SetServing({"m", 500, 100});
  EXPECT_TRUE(front_.Check(request, {}, false).ok());
  EXPECT_TRUE(front_.CheckEmbed(embed, {}, false).ok());
  front_.SetDraining();
  front_.SetServing({"m", 500, 100});  // draining is for good
  EXPECT_EQ(front_.Check(request, {}, false).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Load().draining());
  EXPECT_EQ(refused_.load(), 3);
}

TEST_F(RequestFrontTest, ASubmitCountsUntilTheLoopHasTakenIt) {
  ASSERT_TRUE(Enqueue(1, "a").ok());
  ASSERT_TRUE(Enqueue(2, "b").ok());
  EXPECT_EQ(Load().waiting_requests(), 2u);
  EXPECT_EQ(Load().queued_tokens(), 10u);
  auto commands = Drain();
  Take(&commands);
  EXPECT_EQ(Load().waiting_requests(), 0u);
  EXPECT_EQ(Load().queued_tokens(), 0u);
  EXPECT_EQ(front_.live(), 2u);
}

TEST_F(RequestFrontTest, AFullInboxLeavesNoTrace) {
  for (ReqId id = 1; id <= 64; ++id) ASSERT_TRUE(Enqueue(id, "r").ok());
  EXPECT_EQ(Enqueue(65, "r").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(front_.live(), 64u);
  EXPECT_EQ(Load().waiting_requests(), 64u);
  EXPECT_EQ(refused_.load(), 1);
}

TEST_F(RequestFrontTest, AClientsIdAbortsAllItsRequests) {
  ASSERT_TRUE(Enqueue(1, "mine").ok());
  ASSERT_TRUE(Enqueue(2, "other").ok());
  ASSERT_TRUE(Enqueue(3, "mine").ok());
  Drain();
  EXPECT_FALSE(front_.AbortByRequestId("nobody"));
  EXPECT_TRUE(front_.AbortByRequestId("mine"));
  std::vector<ReqId> aborted;
  for (const Command& command : Drain()) aborted.push_back(std::get<AbortCommand>(command).id);
  std::sort(aborted.begin(), aborted.end());
  EXPECT_EQ(aborted, (std::vector<ReqId>{1, 3}));
  front_.OnFinished(1);
  front_.OnFinished(3);
  EXPECT_FALSE(front_.AbortByRequestId("mine"));
  EXPECT_FALSE(front_.WaitIdle(clock_.NowNs()));
  front_.OnFinished(2);
  EXPECT_TRUE(front_.WaitIdle(clock_.NowNs()));
}

// gRPC's threads submit and abort, the loop takes, the output side finishes, anyone asks for load.
TEST_F(RequestFrontTest, AllSidesAtOnce) {
  constexpr ReqId kEach = 500;
  constexpr int kProducers = 3;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> submitted{0};
  std::vector<std::thread> threads;
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      while (!front_.Ready().ok()) std::this_thread::yield();
      for (ReqId i = 0; i < kEach; ++i) {
        EXPECT_EQ(front_.limits().context_length, 100u);
        const ReqId id = front_.NewId();
        while (!Enqueue(id, StrCat("r", i % 7)).ok()) std::this_thread::yield();
        submitted.fetch_add(1);
        if ((i + static_cast<ReqId>(p)) % 5 == 0) front_.AbortByRequestId(StrCat("r", i % 7));
      }
    });
  }
  std::thread observer([&] {
    while (!stop.load()) {
      // In the inbox, on the way into it, and taken but not published yet.
      EXPECT_LE(Load().waiting_requests(), 64u + kProducers + 64u);
      front_.live();
      std::this_thread::yield();
    }
  });
  std::thread finisher([&] {
    uint64_t finished = 0;
    while (finished < kEach * kProducers) {
      std::vector<Command> commands = Drain();
      if (commands.empty()) std::this_thread::yield();
      Take(&commands);
      for (const Command& command : commands) {
        const auto* submit = std::get_if<SubmitCommand>(&command);
        if (submit == nullptr) continue;
        front_.OnFinished(submit->spec.id);
        ++finished;
      }
    }
  });
  front_.SetServing({"m", 500, 100});
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(front_.WaitIdle(clock_.NowNs() + 20 * kNsPerSecond));
  finisher.join();
  stop.store(true);
  observer.join();
  EXPECT_EQ(submitted.load(), kEach * kProducers);
  EXPECT_EQ(front_.live(), 0u);
  EXPECT_EQ(Load().waiting_requests(), 0u);
}

}  // namespace
}  // namespace flotilla
