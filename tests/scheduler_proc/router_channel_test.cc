#include "scheduler_proc/front/router_channel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace flotilla {
namespace {

using Reattaches = google::protobuf::RepeatedPtrField<v1::Reattach>;

class FakeConnection final : public FrameConnection {
 public:
  void Write(v1::EngineFrame&& frame) override { frames.push_back(std::move(frame)); }
  void Close(const Status& status) override { closed = status; }
  std::vector<v1::EngineFrame> frames;
  Status closed;
};

v1::Delta Piece(int32_t token, bool last = false) {
  v1::Delta delta;
  delta.add_choices()->add_token_ids(token);
  delta.mutable_choices(0)->set_text("x");
  delta.set_last(last);
  return delta;
}

v1::Hello HelloOf(const std::string& router_id, const Reattaches& list = {}) {
  v1::Hello hello;
  hello.set_router_id(router_id);
  *hello.mutable_reattach() = list;
  return hello;
}

class RouterChannelTest : public testing::Test {
 protected:
  RouterChannelTest() {
    options_.max_unsent_bytes = 1000;
    hub_ = std::make_unique<RouterHub>(options_, Deps(), [this] { ++wakes_; });
  }
  RouterChannel::Deps Deps() {
    return {&clock_, [](v1::Load* load) { load->set_total_pages(9); },
            [this](ReqId id) { aborted_.push_back(id); }};
  }
  std::shared_ptr<RouterChannel> Attach(FakeConnection* connection, const Reattaches& list = {}) {
    std::shared_ptr<RouterChannel> channel;
    EXPECT_TRUE(hub_->Attach(connection, HelloOf("r", list), {}, &channel).ok());
    return channel;
  }

  FakeClock clock_{1000 * kNsPerSecond};
  RouterChannelOptions options_;
  std::vector<ReqId> aborted_;
  int wakes_ = 0;
  std::unique_ptr<RouterHub> hub_;
};

TEST_F(RouterChannelTest, OneFrameAtATimeAndTheRestMerges) {
  FakeConnection c;
  auto channel = Attach(&c);
  EXPECT_EQ(wakes_, 1);
  ASSERT_EQ(c.frames.size(), 1u);
  EXPECT_TRUE(c.frames[0].has_welcome());
  ASSERT_TRUE(channel->Open(&c, 1, 11, 0).ok());
  ASSERT_TRUE(channel->Open(&c, 2, 12, 0).ok());
  EXPECT_FALSE(channel->Open(&c, 2, 13, 0).ok());
  FakeConnection former;
  for (const FakeConnection* of : {&c, &former, &c}) channel->CountSubmit(of);
  for (int i = 0; i < 3; ++i) {
    channel->Append(1, Piece(i));
    channel->Append(2, Piece(i));
    channel->Flush();
  }
  EXPECT_EQ(c.frames.size(), 1u);  // the welcome is still being written
  channel->OnWritten(&c, true);
  ASSERT_EQ(c.frames.size(), 2u);
  const v1::Step& step = c.frames[1].step();
  ASSERT_EQ(step.deltas_size(), 2);
  EXPECT_EQ(step.deltas(0).choices(0).token_ids_size(), 3);
  EXPECT_EQ(step.load().total_pages(), 9u);
  EXPECT_EQ(step.submits(), 2u);
  channel->OnWritten(&c, true);
  EXPECT_EQ(c.frames.size(), 2u);
}

TEST_F(RouterChannelTest, HeartbeatOnlyWhenNothingElseWasSent) {
  FakeConnection c;
  auto channel = Attach(&c);
  channel->OnWritten(&c, true);
  const int64_t due = hub_->Tick(clock_.NowNs());
  EXPECT_EQ(due, clock_.NowNs() + kNsPerSecond);
  EXPECT_EQ(c.frames.size(), 1u);
  clock_.AdvanceNs(kNsPerSecond);
  hub_->Tick(clock_.NowNs());
  ASSERT_EQ(c.frames.size(), 2u);
  EXPECT_EQ(c.frames[1].step().deltas_size(), 0);
}

TEST_F(RouterChannelTest, ALoadThatHasChangedIsSentAtOnce) {
  FakeConnection c;
  auto channel = Attach(&c);
  channel->OnWritten(&c, true);
  hub_->TellLoad();
  ASSERT_EQ(c.frames.size(), 2u);
  EXPECT_TRUE(c.frames[1].step().has_load());
}

TEST_F(RouterChannelTest, ReplaysLeaveHalfOfTheRoom) {
  FakeConnection c;
  auto channel = Attach(&c);
  EXPECT_EQ(channel->ReplayRoom(), 500u);
  ASSERT_TRUE(channel->Open(&c, 1, 11, 0).ok());
  for (int i = 0; i < 20; ++i) channel->Append(1, Piece(i));
  EXPECT_EQ(channel->ReplayRoom(), 500 - channel->unsent_bytes());
  for (int i = 0; i < 50; ++i) channel->Append(1, Piece(i));
  EXPECT_EQ(channel->ReplayRoom(), 0u);
  EXPECT_TRUE(channel->connected());
}

TEST_F(RouterChannelTest, OverflowDropsTheConnectionThenTheRequests) {
  FakeConnection c;
  auto channel = Attach(&c);
  ASSERT_TRUE(channel->Open(&c, 1, 11, 0).ok());
  for (int i = 0; i < 200; ++i) channel->Append(1, Piece(i));
  EXPECT_EQ(c.closed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(channel->connected());
  EXPECT_TRUE(aborted_.empty());
  for (int i = 0; i < 600; ++i) channel->Append(1, Piece(i));
  EXPECT_EQ(aborted_, (std::vector<ReqId>{11}));
  EXPECT_EQ(channel->unsent_bytes(), 0u);
  channel->OnWritten(&c, true);  // late, of the dropped one: nothing happens
  EXPECT_EQ(c.frames.size(), 1u);
}

TEST_F(RouterChannelTest, ARouterThatComesBackForMuchIsGivenTheTimeForIt) {
  FakeConnection first, second;
  auto channel = Attach(&first);
  ASSERT_TRUE(channel->Open(&first, 1, 11, 0).ok());
  for (int i = 0; i < 200; ++i) channel->Append(1, Piece(i));
  ASSERT_FALSE(channel->connected());
  Reattaches list;
  list.Add()->set_stream_id(1);
  Attach(&second, list);
  for (int i = 0; i < 50; ++i) channel->Append(1, Piece(i));
  EXPECT_TRUE(channel->connected());
  channel->OnWritten(&second, true);
  channel->Flush();
  EXPECT_EQ(channel->unsent_bytes(), 0u);
  // What it had before is through: from now on its room is as large as anybody's.
  for (int i = 0; i < 200; ++i) channel->Append(1, Piece(i));
  EXPECT_FALSE(channel->connected());
  EXPECT_EQ(second.closed.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(RouterChannelTest, DetachedRequestsLiveForReattachMs) {
  FakeConnection c;
  auto channel = Attach(&c);
  ASSERT_TRUE(channel->Open(&c, 1, 11, 0).ok());
  channel->Detach(&c);
  EXPECT_EQ(hub_->Tick(clock_.NowNs()), clock_.NowNs() + 5 * kNsPerSecond);
  clock_.AdvanceNs(5 * kNsPerSecond - 1);
  hub_->Tick(clock_.NowNs());
  EXPECT_TRUE(aborted_.empty());
  clock_.AdvanceNs(1);
  EXPECT_EQ(hub_->Tick(clock_.NowNs()), INT64_MAX);
  EXPECT_EQ(aborted_, (std::vector<ReqId>{11}));
  EXPECT_EQ(hub_->size(), 0u);
}

TEST_F(RouterChannelTest, SharedRequestsAreNotAborted) {
  FakeConnection c;
  auto channel = Attach(&c);
  for (const uint64_t stream : {1, 2, 3})
    ASSERT_TRUE(channel->Open(&c, stream, 10 + stream, 0).ok());
  channel->Share(1, 50);
  channel->Share(2, 51);
  EXPECT_EQ(channel->Find(1), 50u);
  channel->Append(1, Piece(5));
  channel->Append(3, Piece(5));
  channel->Drop(1);
  EXPECT_EQ(channel->Find(1), 0u);
  EXPECT_EQ(channel->unsent_bytes(), 9u) << "those of stream 3: a token's 8 and its text";
  channel->Drop(3);
  EXPECT_EQ(aborted_, (std::vector<ReqId>{13}));
  channel->Append(1, Piece(6));  // late: nothing happens
  channel->Detach(&c);
  clock_.AdvanceNs(5 * kNsPerSecond);
  hub_->Tick(clock_.NowNs());
  EXPECT_EQ(hub_->size(), 0u);
  EXPECT_EQ(aborted_, (std::vector<ReqId>{13}));
}

TEST_F(RouterChannelTest, ANewConnectionTakesOver) {
  FakeConnection old, fresh;
  auto channel = Attach(&old);
  ASSERT_TRUE(channel->Open(&old, 1, 11, 0).ok());
  ASSERT_TRUE(channel->Open(&old, 2, 12, 0).ok());
  channel->Append(1, Piece(5));
  channel->Append(1, Piece(6));
  Reattaches list;
  list.Add()->set_stream_id(1);
  list[0].add_token_offset(1);
  list.Add()->set_stream_id(3);
  Attach(&fresh, list);
  EXPECT_EQ(old.closed.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(aborted_, (std::vector<ReqId>{12}));
  ASSERT_EQ(fresh.frames.size(), 1u);
  ASSERT_EQ(fresh.frames[0].welcome().lost_stream_ids_size(), 1);
  EXPECT_EQ(fresh.frames[0].welcome().lost_stream_ids(0), 3u);
  channel->OnWritten(&fresh, true);
  ASSERT_EQ(fresh.frames.size(), 2u);
  ASSERT_EQ(fresh.frames[1].step().deltas_size(), 1);
  EXPECT_EQ(fresh.frames[1].step().deltas(0).choices(0).token_ids(0), 6);
  channel->Detach(&old);  // late: the new one stays
  EXPECT_TRUE(channel->connected());
  // What it had sent and nobody had looked at: its router was told that it is lost.
  EXPECT_EQ(channel->Open(&old, 3, 13, 0).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(channel->Open(&fresh, 3, 14, 0).ok());
}

TEST_F(RouterChannelTest, FinishedStreamsAreForgottenAfterReattachMs) {
  FakeConnection c;
  auto channel = Attach(&c);
  channel->OnWritten(&c, true);
  ASSERT_TRUE(channel->Open(&c, 1, 11, 0).ok());
  EXPECT_EQ(channel->Find(1), 11u);
  channel->Append(1, Piece(1, true));
  EXPECT_EQ(channel->Find(1), 0u);
  channel->Flush();
  EXPECT_FALSE(channel->Open(&c, 1, 12, 0).ok());
  clock_.AdvanceNs(5 * kNsPerSecond);
  hub_->Tick(clock_.NowNs());
  EXPECT_TRUE(channel->Open(&c, 1, 12, 0).ok());
}

TEST_F(RouterChannelTest, RoutersAreBounded) {
  options_.max_routers = 1;
  RouterHub hub(options_, Deps(), [] {});
  FakeConnection a, b;
  std::shared_ptr<RouterChannel> channel;
  ASSERT_TRUE(hub.Attach(&a, HelloOf("a"), {}, &channel).ok());
  EXPECT_EQ(hub.Attach(&b, HelloOf("b"), {}, &channel).code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(channel->Open(&a, 1, 11, 0).ok());
  channel->Detach(&a);
  EXPECT_FALSE(hub.Attach(&b, HelloOf("b"), {}, &channel).ok())
      << "it may come back for its stream";
}

TEST_F(RouterChannelTest, ARouterThatLeftNothingBehindIsForgottenForANewOne) {
  options_.max_routers = 1;
  RouterHub hub(options_, Deps(), [] {});
  FakeConnection a, b;
  std::shared_ptr<RouterChannel> channel;
  ASSERT_TRUE(hub.Attach(&a, HelloOf("a"), {}, &channel).ok());
  channel->Detach(&a);
  EXPECT_TRUE(hub.Attach(&b, HelloOf("b"), {}, &channel).ok());
  EXPECT_EQ(hub.size(), 1u);
}

// Writes are acknowledged by another thread, as gRPC does.
class ThreadedConnection final : public FrameConnection {
 public:
  void Write(v1::EngineFrame&& frame) override {
    std::lock_guard lock(mutex);
    inflight = std::move(frame);
    has_frame = true;
  }
  void Close(const Status&) override {}
  bool Acknowledge(RouterChannel* channel) {
    {
      std::lock_guard lock(mutex);
      if (!has_frame) return false;
      has_frame = false;
      for (const v1::Delta& delta : inflight.step().deltas()) {
        tokens += static_cast<size_t>(delta.choices(0).token_ids_size());
        finished += delta.last();
      }
    }
    channel->OnWritten(this, true);
    return true;
  }
  std::mutex mutex;
  v1::EngineFrame inflight;
  bool has_frame = false;
  size_t tokens = 0, finished = 0;
};

TEST(RouterChannelThreads, AppendAckTickAndAttachRace) {
  RealClock clock;
  RouterChannelOptions options;
  options.heartbeat_ns = kNsPerMs;
  std::atomic<int> aborts{0};
  RouterHub hub(
      options, {&clock, [](v1::Load* load) { load->set_total_pages(1); }, [&](ReqId) { ++aborts; }},
      [] {});
  ThreadedConnection connection;
  std::shared_ptr<RouterChannel> channel;
  ASSERT_TRUE(hub.Attach(&connection, HelloOf("r"), {}, &channel).ok());
  constexpr uint64_t kStreams = 20;
  constexpr int kTokens = 200;
  for (uint64_t s = 1; s <= kStreams; ++s) ASSERT_TRUE(channel->Open(&connection, s, s, 0).ok());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int t = 0; t < kTokens; ++t) {
      for (uint64_t s = 1; s <= kStreams; ++s) channel->Append(s, Piece(t, t + 1 == kTokens));
      channel->Flush();
    }
  });
  std::thread ticker([&] {
    while (!stop.load()) hub.Tick(clock.NowNs());
  });
  std::thread grpc([&] {
    while (!stop.load()) {
      if (!connection.Acknowledge(channel.get())) std::this_thread::yield();
      std::lock_guard lock(connection.mutex);
      if (connection.finished == kStreams) stop.store(true);
    }
  });
  writer.join();
  grpc.join();
  ticker.join();
  EXPECT_EQ(connection.tokens, kStreams * kTokens);
  EXPECT_EQ(aborts.load(), 0);
}

TEST_F(RouterChannelTest, WhoAsksGetsWhatIsCachedAtOnceAndThenTheEventsWithItsSteps) {
  CacheBoard board(16);
  PageLog log = {{PageEvent::Kind::kStored, 5}};
  board.Publish(&log);
  RouterChannel::Deps deps = Deps();
  deps.cache = &board;
  RouterHub hub(options_, deps, [] {});
  FakeConnection asks, does_not;
  std::shared_ptr<RouterChannel> channel, other;
  v1::Hello hello = HelloOf("asks");
  hello.set_cache_events(true);
  ASSERT_TRUE(hub.Attach(&asks, hello, {}, &channel).ok());
  ASSERT_TRUE(hub.Attach(&does_not, HelloOf("does not"), {}, &other).ok());
  for (RouterChannel* each : {channel.get(), other.get()})
    each->OnWritten(each == channel.get() ? &asks : &does_not, true);
  EXPECT_EQ(does_not.frames.size(), 1u) << "the welcome";
  ASSERT_EQ(asks.frames.size(), 2u);
  ASSERT_EQ(asks.frames[1].step().cache_events_size(), 2);
  EXPECT_EQ(asks.frames[1].step().cache_events(0).kind(), v1::CacheEvent::CLEARED);
  EXPECT_EQ(asks.frames[1].step().cache_events(1).page_hashes(0), 5u);
  channel->OnWritten(&asks, true);
  EXPECT_EQ(asks.frames.size(), 2u) << "nothing more is due";

  log = {{PageEvent::Kind::kRemoved, 5}};
  board.Publish(&log);
  ASSERT_TRUE(channel->Open(&asks, 1, 11, 0).ok());
  channel->Append(1, Piece(1));
  channel->Flush();
  ASSERT_EQ(asks.frames.size(), 3u);
  ASSERT_EQ(asks.frames[2].step().cache_events_size(), 1);
  EXPECT_EQ(asks.frames[2].step().cache_events(0).kind(), v1::CacheEvent::REMOVED);
}

}  // namespace
}  // namespace flotilla
