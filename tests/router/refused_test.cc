// Streams that replicas refuse to go on with, or that must move again and again: what does not end
// them, and what they wait for.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "tests/router/begun_request.h"

namespace flotilla {
namespace {

constexpr int kFull = 8;
constexpr int kInvalid = 3;

class RefusedTest : public ::testing::Test {
 protected:
  explicit RefusedTest(const HarnessOptions& options = Replicas(2)) : harness_(options) {}

  FakeEngineService& engine(size_t i) { return harness_.engine(i); }
  void Post(const char* body, int pieces) { answer_ = Begun(&harness_, body, pieces).answer; }
  // The engine, other than those that are gone, that has the request.
  size_t WaitForHome(const std::set<size_t>& gone) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      for (size_t i = 0; i < num_engines_; ++i) {
        if (!gone.contains(i) && engine(i).active() > 0) return i;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "nobody has it";
    return num_engines_;
  }
  void ExpectWholeText() {
    EXPECT_EQ(StreamText(Events(answer_.get().body)), ExpectedText(engine(0)));
  }
  bool StillWaits(int64_t milliseconds) {
    return answer_.wait_for(std::chrono::milliseconds(milliseconds)) == std::future_status::timeout;
  }

  RouterHarness harness_;
  size_t num_engines_ = 2;
  std::future<HttpAnswer> answer_;
};

TEST_F(RefusedTest, NoNumberOfRefusalsEndsAStreamThatHasBegun) {
  engine(1).RefuseNext(3, kFull, "queue full");
  Post(kStream, 7);
  engine(0).Stop();
  ExpectWholeText();
  EXPECT_EQ(engine(1).submits().size(), 4u);
}

// As by a smaller replica, while the one that could go on is restarted.
TEST_F(RefusedTest, NorDoWrongRefusals) {
  engine(1).RefuseNext(1000, kInvalid, "prompt: too long for this replica");
  Post(kStream, 7);
  engine(0).Stop();
  ASSERT_TRUE(engine(1).WaitForSubmits(3));
  engine(0).Start();
  engine(0).RunFreely();
  ExpectWholeText();
}

TEST_F(RefusedTest, NorOneThatWasAcceptedOnce) {
  engine(1).RefuseNext(3, kFull, "queue full");
  Post(kPlain, 0);
  engine(0).Stop();
  EXPECT_EQ(answer_.get().status, 200);
  EXPECT_EQ(engine(1).submits().size(), 4u);
}

class RefusedForASecondTest : public RefusedTest {
 protected:
  static HarnessOptions Options() {
    HarnessOptions options = Replicas(2);
    options.failover_wait_ms = 1000;
    options.engine.reattach_ms = 20;
    return options;
  }
  RefusedForASecondTest() : RefusedTest(Options()) {}
};

TEST_F(RefusedForASecondTest, ItIsGivenUpWhenItsTimeIsOver) {
  engine(1).RefuseNext(1000, kFull, "queue full");
  Post(kPlain, 7);
  const auto begin = std::chrono::steady_clock::now();
  engine(0).Stop();
  const HttpAnswer answer = answer_.get();
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("was lost"), std::string::npos) << answer.body;
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_GE(engine(1).submits().size(), 2u);
  EXPECT_LE(engine(1).submits().size(), 3u) << "it was asked at every tick";
}

// Only the time in which nobody has it counts.
TEST_F(RefusedForASecondTest, TimeWithAReplicaIsNoWaiting) {
  engine(1).Stop();
  Post(kStream, 7);
  for (int loss = 0; loss < 2; ++loss) {
    engine(0).Stop();
    EXPECT_TRUE(StillWaits(400));
    engine(0).Start();
    engine(0).Hold();
    ASSERT_TRUE(engine(0).WaitForSubmits(2 + loss));
    EXPECT_TRUE(StillWaits(1100));
  }
  engine(0).RunFreely();
  ExpectWholeText();
}

class FourReplicasTest : public RefusedTest {
 protected:
  FourReplicasTest() : RefusedTest(Replicas(4)) { num_engines_ = 4; }
  // All but the last that has it drain, one after the other, and are gone before a token has come.
  void DrainOneAfterTheOther() {
    for (size_t i = 1; i < 4; ++i) engine(i).Hold();
    std::set<size_t> gone;
    size_t home = 0;
    for (int drained = 0; drained < 3; ++drained) {
      engine(home).SetDraining(true);
      ASSERT_TRUE(harness_.WaitForMetric(
          StrCat("flotilla_router_backend_healthy{replica=\"fake-", home, "\"}"), 0));
      engine(home).Stop();
      gone.insert(home);
      home = WaitForHome(gone);
    }
    engine(home).RunFreely();
  }
};

TEST_F(FourReplicasTest, ThoseThatDrainAreNoAttemptsOfAStreamThatHasBegun) {
  Post(kStream, 7);
  DrainOneAfterTheOther();
  ExpectWholeText();
}

TEST_F(FourReplicasTest, NorOfARequestWithoutTokens) {
  Post(kPlain, 0);
  DrainOneAfterTheOther();
  EXPECT_EQ(answer_.get().status, 200);
}

// A replica that has lost it once, and is well again, is as good as any.
TEST_F(RefusedTest, ItGoesBackToOneThatHasRecovered) {
  Post(kStream, 7);
  engine(1).Hold();
  engine(0).SetRecovering(true);
  ASSERT_TRUE(engine(1).WaitForSubmits(1));
  engine(0).RunFreely();
  engine(0).SetRecovering(false);
  engine(1).SetRecovering(true);
  ExpectWholeText();
  EXPECT_EQ(engine(0).submits().size(), 2u);
}

}  // namespace
}  // namespace flotilla
