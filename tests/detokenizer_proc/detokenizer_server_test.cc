// The detokenizer's loop over real Unix sockets, in a thread of this process.
#include "detokenizer_proc/detokenizer_server.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <thread>

#include "common/base/unique_fd.h"
#include "tests/detokenizer_proc/fake_scheduler.h"
#include "tests/fakes/byte_vocabulary.h"

namespace flotilla {
namespace {

using testing::FakeScheduler;

class DetokenizerServerTest : public ::testing::Test {
 protected:
  ~DetokenizerServerTest() override { Stop(); }

  void Start() {
    stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
    DetokenizerOptions options{.request_socket = scheduler_.request_address(),
                               .reply_socket = scheduler_.reply_address(),
                               .incarnation = 7,
                               .stop_fd = stop_.get()};
    auto server = DetokenizerServer::Create(options, &vocabulary_, &clock_, &slot_, &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    thread_ = std::thread([this, server = std::move(*server)] { status_ = server->Run(); });
  }
  // Run has returned and the sockets are closed.
  void Stop() {
    if (!thread_.joinable()) return;
    eventfd_write(stop_.get(), 1);
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_;
  }
  DetokText Roundtrip(DetokStreamEvent event) {
    scheduler_.Send({.generation = generation_, .events = {std::move(event)}});
    return scheduler_.ReceiveText();
  }

  const testing::ByteVocabulary vocabulary_{};
  const RealClock clock_{};
  prometheus::Registry registry_;
  DetokenizerMetrics metrics_{&registry_};
  ProcessSlot slot_{};
  FakeScheduler scheduler_;
  uint64_t generation_ = 1;
  UniqueFd stop_;
  Status status_;
  std::thread thread_;
};

TEST_F(DetokenizerServerTest, AnswersEachRequestUnderItsGeneration) {
  scheduler_.Bind();
  Start();
  EXPECT_EQ(scheduler_.ReceiveHello(), 7u);
  scheduler_.Send({.generation = 3,
                   .events = {FakeScheduler::Open(1), FakeScheduler::Open(2),
                              FakeScheduler::Tokens(1, 0, {'h', 'i'}),
                              FakeScheduler::Tokens(2, 0, {0xe2, 0x82}, /*last=*/true)}});
  const DetokReply reply = scheduler_.Receive();
  EXPECT_EQ(reply.generation, 3u);
  ASSERT_EQ(reply.texts.size(), 2u);
  EXPECT_EQ(reply.texts[0].text, "hi");
  EXPECT_EQ(reply.texts[1].text, "\xef\xbf\xbd");
  EXPECT_TRUE(reply.texts[1].last);
  Stop();
  EXPECT_EQ(metrics_.tokens.Value(), 4);
  EXPECT_EQ(metrics_.streams.Value(), 1);
  EXPECT_EQ(metrics_.batch_seconds.Collect().histogram.sample_count, 1u);
  EXPECT_EQ(metrics_.hellos.Value(), 1);
}

TEST_F(DetokenizerServerTest, StartOrderDoesNotMatter) {
  Start();
  scheduler_.Bind();
  EXPECT_EQ(scheduler_.ReceiveHello(), 7u);
  EXPECT_EQ(Roundtrip(FakeScheduler::Open(1, {'a', 'b'})).text, "ab");
}

TEST_F(DetokenizerServerTest, MalformedFramesAreCountedAndNothingElseHappens) {
  scheduler_.Bind();
  Start();
  scheduler_.ReceiveHello();
  EXPECT_EQ(Roundtrip(FakeScheduler::Open(1, {'a'})).text, "a");
  std::string frame;
  BuildDetokRequest({.generation = 1, .events = {FakeScheduler::Tokens(1, 1, {'b'})}}, &frame);
  for (size_t cut = 0; cut < frame.size(); ++cut) scheduler_.SendRaw(frame.substr(0, cut));
  scheduler_.SendRaw(frame + "tail");
  scheduler_.SendRaw(std::string(1 << 20, '\xff'));
  EXPECT_EQ(Roundtrip(FakeScheduler::Tokens(1, 1, {'c'})).text, "c");
  EXPECT_EQ(metrics_.rejected_frames.Value(), static_cast<double>(frame.size() + 2));
}

TEST_F(DetokenizerServerTest, EventsThatBreakALimitAreCounted) {
  scheduler_.Bind();
  Start();
  scheduler_.ReceiveHello();
  DetokStreamEvent open = FakeScheduler::Open(2);
  open.emitted_tokens = 1;  // of no history
  scheduler_.Send({.generation = 1, .events = {std::move(open)}});
  EXPECT_EQ(Roundtrip(FakeScheduler::Open(1, {'a'})).text, "a");
  Stop();
  EXPECT_EQ(metrics_.rejected_events.Value(), 1);
}

TEST_F(DetokenizerServerTest, EachConnectionGetsAHello) {
  scheduler_.Bind();
  Start();
  EXPECT_EQ(scheduler_.ReceiveHello(), 7u);
  EXPECT_EQ(Roundtrip(FakeScheduler::Open(1, {'x', 'y'})).text, "xy");
  scheduler_.Unbind();
  scheduler_.Bind();
  EXPECT_EQ(scheduler_.ReceiveHello(), 7u);
  // Its generation may be the old one's; what was open is not open any more.
  EXPECT_EQ(Roundtrip(FakeScheduler::Open(2, {'x', 'y'}, 1)).text, "y");
  Stop();
  EXPECT_EQ(metrics_.streams.Value(), 1);
}

TEST_F(DetokenizerServerTest, MissingTokensAreAskedForWithAnotherHello) {
  scheduler_.Bind();
  Start();
  scheduler_.ReceiveHello();
  EXPECT_EQ(Roundtrip(FakeScheduler::Open(1, {'a'})).text, "a");
  scheduler_.Send({.generation = 1, .events = {FakeScheduler::Tokens(1, 5, {'f'})}});
  EXPECT_EQ(scheduler_.ReceiveHello(), 7u);
}

TEST_F(DetokenizerServerTest, ManyFramesAreAnsweredInOrder) {
  scheduler_.Bind();
  Start();
  scheduler_.ReceiveHello();
  constexpr int kFrames = 200;
  scheduler_.Send({.generation = 1, .events = {FakeScheduler::Open(1, {'0'})}});
  for (uint32_t i = 1; i < kFrames; ++i)
    scheduler_.Send({.generation = 1, .events = {FakeScheduler::Tokens(1, i, {'x'})}});
  for (uint32_t i = 1; i <= kFrames; ++i) ASSERT_EQ(scheduler_.ReceiveText().num_tokens, i);
  Stop();
}

TEST_F(DetokenizerServerTest, ASchedulerThatTakesNothingBlocksWithoutLossAndTheHeartGoesOn) {
  scheduler_.Bind();
  Start();
  scheduler_.ReceiveHello();
  // More than both queues and the socket hold: the detokenizer waits in the middle.
  const std::vector<TokenId> tokens(4000, 'x');
  constexpr uint32_t kFrames = 6000;
  std::thread sender([&] {
    scheduler_.Send({.generation = 1, .events = {FakeScheduler::Open(1)}});
    for (uint32_t i = 0; i < kFrames; ++i) {
      scheduler_.Send(
          {.generation = 1,
           .events = {FakeScheduler::Tokens(1, i * static_cast<uint32_t>(tokens.size()), tokens)}});
    }
  });
  // The count of tokens standing still over two heartbeats shows that it is blocked.
  double count = -1;
  while (metrics_.tokens.Value() != count || count <= 0) {
    count = metrics_.tokens.Value();
    for (int beats = 0; beats < 2; ++beats) {
      const int64_t beat = slot_.heartbeat_ns.load();
      while (slot_.heartbeat_ns.load() == beat) std::this_thread::yield();
    }
  }
  EXPECT_LT(count, static_cast<double>(kFrames) * static_cast<double>(tokens.size()));
  for (uint32_t i = 1; i <= kFrames; ++i)
    ASSERT_EQ(scheduler_.ReceiveText().num_tokens, i * tokens.size());
  sender.join();
}

TEST_F(DetokenizerServerTest, AWrongAddressIsRefused) {
  const DetokenizerOptions options{.request_socket = "nonsense", .reply_socket = "ipc:///x"};
  const auto server = DetokenizerServer::Create(options, &vocabulary_, &clock_, &slot_, &metrics_);
  ASSERT_FALSE(server.ok());
  EXPECT_NE(server.status().message().find("can't connect to nonsense"), std::string::npos);
}

}  // namespace
}  // namespace flotilla
