// A head and a rank of another host, in one process: two control blocks and two step rings that
// share nothing but the link.
#include "worker_proc/comm/plan_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "common/base/metrics.h"
#include "shm/step_plan.h"
#include "worker_proc/comm/rank_proxy.h"
#include "worker_proc/comm/remote_plans.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr char kSecret[] = "0123456789abcdef";
constexpr uint32_t kRank = 1;
constexpr uint32_t kRanks = 2;
constexpr size_t kRingBytes = 1 << 16;

// What the launcher makes on a host.
struct Host {
  Host()
      : control(*ReplicaControl::Create(kRanks)),
        ring(*Segment::Create("test-steps", RingSegmentBytes(kRingBytes))) {
    EXPECT_TRUE(InitRing(ring, kRanks).ok());
    slot().incarnation.store(1);
    ReplicaControl::SetState(&slot(), ProcessState::kStarting);
  }
  ProcessSlot& slot() { return control->workers[kRank]; }
  ProcessState state() { return ReplicaControl::State(slot()); }
  ReplicaControl control;
  Segment ring;
  std::atomic<bool> stop = false;
};

void WaitUntil(const std::function<bool()>& condition) {
  const int64_t end_ns = RealClock::Now() + 20 * kNsPerSecond;
  while (!condition() && RealClock::Now() < end_ns) std::this_thread::yield();
  EXPECT_TRUE(condition());
}

TcpAddress FreeAddress() {
  const auto listener = ListenOn({"127.0.0.1", 0});
  EXPECT_TRUE(listener.ok());
  return {"127.0.0.1", PortOfSocket(listener->get())};
}

class PlanLinkTest : public ::testing::Test {
 protected:
  ~PlanLinkTest() override {
    head.stop = true;
    rank.stop = true;
    remote.reset();
    if (proxy_thread.joinable()) proxy_thread.join();
  }
  void StartProxy() {
    proxy_thread = std::thread([this] {
      RankProxy proxy({&head.control, &head.ring, &registry, &head.stop},
                      {kRank, kRanks, address, kSecret, config});
      proxy_status = proxy.Run();
      proxy_ended = true;
    });
  }
  Status Connect(const RankConfig& own) {
    auto connected = RemotePlans::Connect(
        {&rank.control, &rank.ring, &rank.stop, [this](const Status&) { ++lost; }},
        {kRank, kRanks, address, kSecret, own});
    if (!connected.ok()) return connected.status();
    remote = *std::move(connected);
    return OkStatus();
  }
  // Of a rank that the proxy is not for, though its flags are the same.
  void ExpectRefusal(int fd, const LinkHello& hello) {
    const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
    PlanLink link(UniqueFd(dup(fd)), 1000);
    std::string body;
    BuildRankConfig(config, &body);
    ASSERT_TRUE(link.Send(PlanFrame::kConfig, body, wait).ok());
    const auto answer = link.Receive(wait);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->kind, PlanFrame::kRefused);
    EXPECT_THAT(std::string(answer->body),
                HasSubstr(StrCat("--rank is ", hello.rank, " of ", hello.ranks,
                                 " here, and this is "
                                 "the port of rank 1 of 2")));
  }
  RingWriter Writer() { return *RingWriter::Attach(&head.ring); }
  // As the scheduler admits a rank that is loaded.
  void Admit(RingWriter* writer) {
    writer->DeactivateReader(0);
    writer->ActivateReader(kRank);
    head.slot().admitted.store(head.slot().incarnation.load());
    ReplicaControl::Ring(&head.control->worker_bell);
  }

  Host head, rank;
  prometheus::Registry registry;
  const TcpAddress address = FreeAddress();
  const RankConfig config = {{"--page-size", "16"}, {"--dtype", "int8"}};
  Status proxy_status;
  std::atomic<bool> proxy_ended = false;
  std::atomic<int> lost = 0;
  std::thread proxy_thread;
  std::unique_ptr<RemotePlans> remote;
};

TEST_F(PlanLinkTest, StateGoesUpAndPlansComeDown) {
  head.control->epoch.store(3);
  StartProxy();
  WaitUntil([&] { return head.state() == ProcessState::kLoading; });
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoading);
  ASSERT_TRUE(Connect(config).ok());
  EXPECT_EQ(rank.control->epoch.load(), 3u);
  EXPECT_FALSE(remote->kv_pages_chosen());

  WorkerReport& report = rank.control->reports[kRank];
  report.max_kv_pages.store(77);
  report.page_bytes.store(4096);
  report.weight_bytes.store(123);
  ReplicaControl::SetBackend(&report, "cpu-int8");
  const uint32_t bell = head.control->doorbell.load();
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoaded);
  ReplicaControl::Ring(&rank.control->doorbell);
  WaitUntil([&] { return head.state() == ProcessState::kLoaded; });
  WaitUntil([&] { return head.control->doorbell.load() > bell; });
  EXPECT_EQ(head.control->reports[kRank].max_kv_pages.load(), 77u);
  EXPECT_EQ(head.control->reports[kRank].page_bytes.load(), 4096u);
  EXPECT_EQ(head.control->reports[kRank].weight_bytes.load(), 123u);
  EXPECT_EQ(ReplicaControl::BackendName(head.control->reports[kRank]), "cpu-int8");

  // Plans of before it was admitted are not for it.
  RingWriter writer = Writer();
  ASSERT_TRUE(writer.Write("old", RealClock::Now() + kNsPerSecond).ok());
  Admit(&writer);
  WaitUntil([&] { return rank.slot().admitted.load() == rank.slot().incarnation.load(); });
  RingReader reader = *RingReader::Attach(&rank.ring, kRank, WaitPolicy{});
  for (int i = 0; i < 500; ++i) {
    const std::string plan = StrCat("plan ", i, std::string(i * 7 % 4000, 'x'));
    ASSERT_TRUE(writer.Write(plan, RealClock::Now() + 10 * kNsPerSecond).ok());
    const auto got = reader.Read(RealClock::Now() + 20 * kNsPerSecond);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(*got, plan);
    reader.Release();
  }
  WaitUntil([&] {
    return RenderMetrics(registry).find("plan_link_plans_total{rank=\"1\"} 500") !=
           std::string::npos;
  });

  // An epoch that ends without a plan is known there soon.
  head.control->epoch.store(4);
  WaitUntil([&] { return rank.control->epoch.load() == 4; });
  rank.slot().ready_epoch.store(4);
  ReplicaControl::SetState(&rank.slot(), ProcessState::kReady);
  ReplicaControl::Ring(&rank.control->doorbell);
  WaitUntil([&] { return head.slot().ready_epoch.load() == 4; });
  EXPECT_EQ(lost, 0);
}

TEST_F(PlanLinkTest, ThePlanOfANewEpochComesAfterItsNumber) {
  StartProxy();
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoaded);
  ASSERT_TRUE(Connect(config).ok());
  RingWriter writer = Writer();
  Admit(&writer);
  WaitUntil([&] { return rank.slot().admitted.load() == rank.slot().incarnation.load(); });
  RingReader reader = *RingReader::Attach(&rank.ring, kRank, WaitPolicy{});
  for (uint32_t epoch = 1; epoch <= 200; ++epoch) {
    head.control->epoch.store(epoch);
    ASSERT_TRUE(writer.Write("reset", RealClock::Now() + 10 * kNsPerSecond).ok());
    ASSERT_TRUE(reader.Read(RealClock::Now() + 20 * kNsPerSecond).ok());
    EXPECT_EQ(rank.control->epoch.load(), epoch);
    reader.Release();
  }
}

TEST_F(PlanLinkTest, APlanComesWithoutItsMasks) {
  StartProxy();
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoaded);
  ASSERT_TRUE(Connect(config).ok());
  RingWriter writer = Writer();
  Admit(&writer);
  WaitUntil([&] { return rank.slot().admitted.load() == rank.slot().incarnation.load(); });
  StepPlan plan;
  plan.rows = {{0, 0, 1, 0, kRowSample | kRowMask, -1}};
  plan.input_ids = {5};
  plan.masks.assign(MaskWords(1000), 1);
  std::string frame;
  BuildStepPlan(plan, &frame);
  ASSERT_TRUE(writer.Write(frame, RealClock::Now() + 10 * kNsPerSecond).ok());
  plan.rows[0].flags = kRowSample;
  plan.masks.clear();
  BuildStepPlan(plan, &frame);
  RingReader reader = *RingReader::Attach(&rank.ring, kRank, WaitPolicy{});
  const auto got = reader.Read(RealClock::Now() + 20 * kNsPerSecond);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, frame);
}

TEST_F(PlanLinkTest, TheHeartbeatsAgeIsKept) {
  StartProxy();
  ReplicaControl::SetState(&rank.slot(), ProcessState::kReady);
  ASSERT_TRUE(Connect(config).ok());
  rank.slot().heartbeat_ns.store(RealClock::Now() - 30 * kNsPerSecond);  // it hangs
  WaitUntil([&] {
    const int64_t age_ns = RealClock::Now() - head.slot().heartbeat_ns.load();
    return age_ns >= 30 * kNsPerSecond;
  });
  rank.slot().heartbeat_ns.store(RealClock::Now());
  WaitUntil([&] { return RealClock::Now() - head.slot().heartbeat_ns.load() < 30 * kNsPerSecond; });
}

TEST_F(PlanLinkTest, TheEndOfTheRankEndsTheProxy) {
  StartProxy();
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoaded);
  ASSERT_TRUE(Connect(config).ok());
  remote.reset();
  WaitUntil([&] { return proxy_ended.load(); });
  EXPECT_TRUE(absl::IsAborted(proxy_status)) << proxy_status;
  EXPECT_EQ(lost, 0) << "it ended by itself";
}

TEST_F(PlanLinkTest, TheEndOfTheHeadIsTold) {
  head.control->workers[0].ready_epoch.store(2);
  StartProxy();
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoaded);
  ASSERT_TRUE(Connect(config).ok());
  EXPECT_TRUE(remote->kv_pages_chosen());
  head.stop = true;
  WaitUntil([&] { return proxy_ended.load(); });
  EXPECT_TRUE(proxy_status.ok()) << proxy_status;
  WaitUntil([&] { return lost == 1; });
}

TEST_F(PlanLinkTest, OtherFlagsAreRefusedByName) {
  StartProxy();
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoading);
  const Status status = Connect({{"--page-size", "32"}, {"--dtype", "int8"}});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--page-size is 16 on the head and 32 here"));
  // It was no rank of ours: ours may still come.
  EXPECT_TRUE(Connect(config).ok());
  EXPECT_FALSE(proxy_ended);
}

TEST_F(PlanLinkTest, WhoLeavesBeforeTheWelcomeEndsNothing) {
  StartProxy();
  const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
  for (const std::string& said : {std::string(), std::string("no frame of ours")}) {
    const auto link = ConnectLink(address, {LinkPurpose::kPlans, 1, 2, 0, 0}, kSecret, wait);
    ASSERT_TRUE(link.ok()) << link.status();
    EXPECT_TRUE(SendAll(link->get(), said, wait).ok());
  }
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoading);
  EXPECT_TRUE(Connect(config).ok());
  EXPECT_FALSE(proxy_ended);
}

TEST_F(PlanLinkTest, AnotherRankIsNotTaken) {
  StartProxy();
  const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
  // Rank 0, then a replica of three, then the collective's port mistaken.
  for (const LinkHello& hello :
       {LinkHello{LinkPurpose::kPlans, 0, 2, 0, 0}, LinkHello{LinkPurpose::kPlans, 1, 3, 0, 0},
        LinkHello{LinkPurpose::kCollective, 1, 2, 1, 1}}) {
    const auto link = ConnectLink(address, hello, kSecret, wait);
    ASSERT_TRUE(link.ok()) << link.status();
    if (hello.purpose == LinkPurpose::kPlans) ExpectRefusal(link->get(), hello);
    std::byte byte;
    EXPECT_TRUE(absl::IsAborted(ReceiveAll(link->get(), std::span(&byte, 1), wait)));
  }
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoading);
  EXPECT_TRUE(Connect(config).ok());
}

TEST_F(PlanLinkTest, ManySilentStrangersHoldNoRankUp) {
  StartProxy();
  const int64_t begin_ns = RealClock::Now();
  const SocketWait wait{begin_ns + 20 * kNsPerSecond, {}};
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 50; ++i) {
    auto stranger = ConnectTo(address, wait);
    ASSERT_TRUE(stranger.ok()) << stranger.status();
    strangers.push_back(*std::move(stranger));
  }
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoading);
  EXPECT_TRUE(Connect(config).ok());
  EXPECT_LT(RealClock::Now() - begin_ns, 20 * kNsPerSecond) << "a second for each of them";
}

TEST_F(PlanLinkTest, AHeadThatHangsUpIsLookedForAgain) {
  std::thread heads([&] {
    const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
    auto listener = ListenOn(address);
    ASSERT_TRUE(listener.ok());
    EXPECT_TRUE(AcceptFrom(listener->get(), wait).ok());  // ends before the handshake
    EXPECT_TRUE(LinkAcceptor(*std::move(listener), kSecret).Next(wait).ok());  // and the welcome
  });
  std::thread starts_later([&] {
    heads.join();
    StartProxy();
  });
  ReplicaControl::SetState(&rank.slot(), ProcessState::kLoading);
  const Status status = Connect(config);
  EXPECT_TRUE(status.ok()) << status;
  starts_later.join();
}

TEST_F(PlanLinkTest, AStopEndsTheSearchForTheHead) {
  rank.stop = true;
  EXPECT_TRUE(absl::IsCancelled(Connect(config)));
}

TEST(PlanFramesTest, RoundTripsAndCutOffBytes) {
  std::string body;
  BuildRankConfig({{"--a", "1"}, {"--b", ""}}, &body);
  EXPECT_EQ((*ParseRankConfig(body))[1].first, "--b");
  for (size_t n = 0; n < body.size(); ++n) EXPECT_FALSE(ParseRankConfig(body.substr(0, n)).ok());

  BuildHeadControl({7, true, false}, &body);
  EXPECT_EQ(*ParseHeadControl(body), (HeadControl{7, true, false}));
  for (size_t n = 0; n < body.size(); ++n) EXPECT_FALSE(ParseHeadControl(body.substr(0, n)).ok());
  body.back() = 2;
  EXPECT_FALSE(ParseHeadControl(body).ok());

  RankReport report;
  report.state = static_cast<uint32_t>(ProcessState::kReady);
  report.backend = "cpu";
  BuildRankReport(report, &body);
  EXPECT_EQ(ParseRankReport(body)->backend, "cpu");
  for (size_t n = 0; n < body.size(); ++n) EXPECT_FALSE(ParseRankReport(body.substr(0, n)).ok());
  for (const ProcessState state :
       {ProcessState::kAbsent, ProcessState::kStarting, ProcessState::kDead}) {
    report.state = static_cast<uint32_t>(state);
    BuildRankReport(report, &body);
    EXPECT_FALSE(ParseRankReport(body).ok()) << "a rank can't say that it is dead";
  }
}

TEST(PlanFramesTest, AFrameTooLongIsRefusedBeforeItIsRead) {
  const auto listener = ListenOn({"127.0.0.1", 0});
  const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
  auto from = ConnectTo({"127.0.0.1", PortOfSocket(listener->get())}, wait);
  auto to = AcceptFrom(listener->get(), wait);
  ASSERT_TRUE(from.ok() && to.ok());
  PlanLink sender(*std::move(from), 100), receiver(std::move(to->fd), 100);
  ASSERT_TRUE(sender.Send(PlanFrame::kPlan, std::string(100, 'p'), wait).ok());
  EXPECT_EQ(receiver.Receive(wait)->body.size(), 100u);
  ASSERT_TRUE(sender.Send(PlanFrame::kPlan, std::string(101, 'p'), wait).ok());
  EXPECT_THAT(std::string(receiver.Receive(wait).status().message()),
              HasSubstr("101 bytes, 100 may come"));
}

}  // namespace
}  // namespace flotilla
