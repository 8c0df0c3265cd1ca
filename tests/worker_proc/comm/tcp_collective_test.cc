#include "worker_proc/comm/tcp_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "common/base/clock.h"
#include "tests/support/collective_cases.h"
#include "worker_proc/comm/rank_link.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr char kSecret[] = "0123456789abcdef";

// A port that was free a moment ago.
TcpAddress FreeAddress(const char* host = "127.0.0.1") {
  const auto listener = ListenOn({host, 0});
  EXPECT_TRUE(listener.ok()) << listener.status();
  return {host, PortOfSocket(listener->get())};
}

TcpCollectiveOptions Options(uint32_t rank, uint32_t ranks, const TcpAddress& address) {
  TcpCollectiveOptions options;
  options.rank = rank;
  options.ranks = ranks;
  options.address = address;
  options.secret = kSecret;
  options.timeout_ns = 20 * kNsPerSecond;
  return options;
}

std::unique_ptr<Collective> Make(const TcpCollectiveOptions& options) {
  auto collective = MakeTcpCollective(options);
  EXPECT_TRUE(collective.ok()) << collective.status();
  return *std::move(collective);
}

testing::RunRanks Runner(int64_t spin_ns, const char* host = "127.0.0.1") {
  return [=](uint32_t ranks, const testing::RankBody& body) {
    const TcpAddress address = FreeAddress(host);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        TcpCollectiveOptions options = Options(rank, ranks, address);
        options.wait.spin_ns = spin_ns;
        const auto collective = Make(options);
        const Status joined = collective->Reset(1);
        ASSERT_TRUE(joined.ok()) << joined;
        body(rank, collective.get());
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
}

TEST(TcpCollectiveTest, AllReduceAddsInRankOrder) {
  const size_t sizes[] = {0, 1, 31, 64, 500, 4096, 4097, 5000, 70'001};
  testing::AllReduceAddsInRankOrder(Runner(0), sizes);
}

// Ranks 1 and 2 meet at the address that rank 0 has seen of rank 1.
TEST(TcpCollectiveTest, RanksMeetOverIpv6) {
  if (!ListenOn({"::1", 0}).ok()) GTEST_SKIP() << "this machine has no IPv6";
  const size_t sizes[] = {64};
  testing::AllReduceAddsInRankOrder(Runner(0, "::1"), sizes);
  testing::RandomOperations(Runner(0, "::1"), 3, 3, 20);
}

// Rank 0 takes both families, and its peers come by IPv4.
TEST(TcpCollectiveTest, RanksMeetAtAnAddressOfBothFamilies) {
  if (!ListenOn({"::1", 0}).ok()) GTEST_SKIP() << "this machine has no IPv6";
  const TcpAddress everywhere{"", FreeAddress("").port};
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const TcpAddress loopback{"127.0.0.1", everywhere.port};
      const auto collective = Make(Options(rank, 3, rank == 0 ? everywhere : loopback));
      const Status joined = collective->Reset(1);
      EXPECT_TRUE(joined.ok()) << joined;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Rank 1 shares rank 0's host and reaches it by loopback, rank 2 does not.
TEST(TcpCollectiveTest, ARankSeenOnLoopbackIsWhereRankZeroIs) {
  const TcpAddress address = FreeAddress();
  std::thread rank0([&] { (void)Make(Options(0, 3, address))->Reset(1); });
  const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
  const auto rank1 = ConnectLink(address, {LinkPurpose::kCollective, 1, 3, 1, 7}, kSecret, wait);
  const auto rank2 = ConnectLink(address, {LinkPurpose::kCollective, 2, 3, 1, 8}, kSecret, wait);
  ASSERT_TRUE(rank1.ok() && rank2.ok());
  std::string table(16, '\0');
  EXPECT_TRUE(ReceiveAll(rank2->get(), std::as_writable_bytes(std::span(table)), wait).ok());
  // u32 length, then of each rank u32 and bytes of its host, u16 port.
  EXPECT_EQ(table, std::string("\x0c\0\0\0"
                               "\0\0\0\0\x07\0"
                               "\0\0\0\0\x08\0",
                               16));
  shutdown(rank1->get(), SHUT_RDWR);
  rank0.join();
}

// No name: of loopback, which has an address of each family.
TEST(TcpSocketTest, EachAddressOfANameIsTried) {
  const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
  for (const char* host : {"127.0.0.1", "::1"}) {
    const auto listener = ListenOn({host, 0});
    if (!listener.ok()) continue;  // this machine has no IPv6
    const auto fd = ConnectTo({"", PortOfSocket(listener->get())}, wait);
    EXPECT_TRUE(fd.ok()) << host << " " << fd.status();
  }
}

TEST(TcpCollectiveTest, RandomOperationsAsleep) {
  for (uint32_t ranks : {1u, 2u, 3u, 4u}) testing::RandomOperations(Runner(0), ranks, ranks, 200);
}

TEST(TcpCollectiveTest, RandomOperationsSpinning) {
  testing::RandomOperations(Runner(50 * kNsPerUs), 2, 9, 500);
}

// More than the sockets hold, in both directions at once.
TEST(TcpCollectiveTest, LargeMessages) {
  constexpr size_t kBytes = 32 << 20;
  Runner(0)(2, [](uint32_t rank, Collective* collective) {
    std::vector<std::byte> in(kBytes, static_cast<std::byte>(rank + 1)), out(2 * kBytes);
    const size_t counts[] = {kBytes, kBytes};
    ASSERT_TRUE(collective->AllGather(in, counts, out).ok());
    EXPECT_EQ(out.front(), std::byte{1});
    EXPECT_EQ(out[kBytes - 1], std::byte{1});
    EXPECT_EQ(out[kBytes], std::byte{2});
    EXPECT_EQ(out.back(), std::byte{2});
  });
}

TEST(TcpCollectiveTest, NeedsAReset) {
  const auto collective = Make(Options(0, 1, FreeAddress()));
  EXPECT_EQ(collective->Barrier().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(collective->Reset(0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(collective->Reset(7).ok());
  EXPECT_TRUE(collective->Reset(7).ok()) << "nothing was asked of it in epoch 7";
  EXPECT_TRUE(collective->Barrier().ok());
  EXPECT_EQ(collective->Reset(6).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(collective->Reset(7).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(collective->Reset(8).ok());
}

TEST(TcpCollectiveTest, OtherOperationsAreNotMixedUp) {
  Runner(0)(2, [](uint32_t rank, Collective* collective) {
    std::vector<float> data(10 + rank);
    std::vector<std::byte> bytes(rank == 0 ? 40 : 44);
    const Status status =
        rank == 0 ? collective->AllReduceSum(data) : collective->Broadcast(bytes, 0);
    // Whoever notices first hangs up, which the other may see instead.
    EXPECT_TRUE(absl::IsFailedPrecondition(status) || absl::IsAborted(status)) << status;
    EXPECT_EQ(collective->Barrier().code(), absl::StatusCode::kFailedPrecondition);
  });
}

TEST(TcpCollectiveTest, ADeadRankAbortsTheOthersAtOnceAndItsSuccessorJoins) {
  const TcpAddress address = FreeAddress();
  std::vector<std::thread> threads;
  std::atomic<int> aborted = 0;
  const int64_t begin_ns = RealClock::Now();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto collective = Make(Options(rank, 3, address));
      ASSERT_TRUE(collective->Reset(1).ok());
      ASSERT_TRUE(collective->Barrier().ok());
      if (rank == 1) {
        collective.reset();  // as the end of its process
        while (aborted < 2) std::this_thread::yield();
        collective = Make(Options(rank, 3, address));
      } else {
        EXPECT_EQ(collective->Barrier().code(), absl::StatusCode::kAborted);
        ++aborted;
      }
      const Status joined = collective->Reset(2);
      ASSERT_TRUE(joined.ok()) << joined;
      EXPECT_TRUE(collective->Barrier().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(RealClock::Now() - begin_ns, 15 * kNsPerSecond) << "somebody waited for the deadline";
}

TEST(TcpCollectiveTest, TheEndOfTheEpochEndsAWait) {
  const TcpAddress address = FreeAddress();
  std::atomic<uint32_t> epoch = 1;
  std::atomic<int> joined = 0;
  std::atomic<bool> aborted = false;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      TcpCollectiveOptions options = Options(rank, 2, address);
      options.epoch = &epoch;
      const auto collective = Make(options);
      ASSERT_TRUE(collective->Reset(1).ok());
      ++joined;
      if (rank == 0) {
        EXPECT_EQ(collective->Barrier().code(), absl::StatusCode::kAborted);
        aborted = true;
      }
      // Rank 1 stays until then: only the new epoch can have ended the wait.
      while (!aborted) std::this_thread::yield();
      ASSERT_TRUE(collective->Reset(2).ok());
      EXPECT_TRUE(collective->Barrier().ok());
    });
  }
  while (joined < 2) std::this_thread::yield();
  epoch = 2;
  for (std::thread& thread : threads) thread.join();
}

// Nobody has died: who waits for the next epoch says so, or it never comes.
TEST(TcpCollectiveTest, ABrokenConnectionOfAnEpochThatGoesOnIsNotADeath) {
  const TcpAddress address = FreeAddress();
  std::atomic<uint32_t> epoch = 1;
  std::atomic<bool> noticed = false;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      TcpCollectiveOptions options = Options(rank, 2, address);
      options.epoch = &epoch;
      auto collective = Make(options);
      ASSERT_TRUE(collective->Reset(1).ok());
      if (rank == 1) {
        collective.reset();  // as a connection that breaks
        while (!noticed) std::this_thread::yield();
        collective = Make(options);
      } else {
        const Status status = collective->Barrier();
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 is gone"));
        epoch = 2;
        noticed = true;
      }
      ASSERT_TRUE(collective->Reset(2).ok());
      EXPECT_TRUE(collective->Barrier().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A port where somebody else listens, a load balancer without a backend: it is tried again, and
// said.
TEST(RankLinkTest, WhoAcceptsAndIsSilentIsNotWaitedForWithoutEnd) {
  const auto listener = ListenOn({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok()) << listener.status();
  const TcpAddress address{"127.0.0.1", PortOfSocket(listener->get())};
  const auto link = ConnectLink(address, {LinkPurpose::kPlans, 1, 2, 0, 0}, kSecret,
                                {INT64_MAX, [] { return OkStatus(); }}, 10 * kNsPerMs);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kDeadlineExceeded) << link.status();
}

TEST(TcpCollectiveTest, ADeathThatTheSchedulerSeesIsTheEndOfTheEpoch) {
  TcpCollectiveOptions options = Options(0, 2, FreeAddress());
  options.death_known_ns = 60 * kNsPerSecond;  // of whoever is slow to see it
  std::atomic<uint32_t> epoch = 1;
  std::atomic<bool> joined = false;
  options.epoch = &epoch;
  std::thread other([&] {
    auto collective = Make(Options(1, 2, options.address));
    EXPECT_TRUE(collective->Reset(1).ok());
    while (!joined) std::this_thread::yield();
    collective.reset();
    epoch = 2;
  });
  const auto collective = Make(options);
  EXPECT_TRUE(collective->Reset(1).ok());
  joined = true;
  EXPECT_EQ(collective->Barrier().code(), absl::StatusCode::kAborted);
  other.join();
}

TEST(TcpCollectiveTest, ARankThatHangsUpWhileTheyMeetIsMetAgain) {
  std::atomic<uint32_t> epoch = 1;
  TcpCollectiveOptions options = Options(0, 2, FreeAddress());
  options.epoch = &epoch;
  std::atomic<bool> failed = false;
  std::thread rank0([&] {
    const auto collective = Make(options);
    const Status status = collective->Reset(1);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    failed = true;
    EXPECT_TRUE(collective->Reset(1).ok());
  });
  const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
  EXPECT_TRUE(
      ConnectLink(options.address, {LinkPurpose::kCollective, 1, 2, 1, 1}, kSecret, wait).ok());
  while (!failed) std::this_thread::yield();
  EXPECT_TRUE(Make(Options(1, 2, options.address))->Reset(1).ok());
  rank0.join();
}

TEST(TcpCollectiveTest, TimesOutAndCallsBack) {
  std::atomic<int> beats = 0;
  TcpCollectiveOptions options = Options(0, 2, FreeAddress());
  options.timeout_ns = 1500 * kNsPerMs;
  options.on_wait = [](void* arg) { ++*static_cast<std::atomic<int>*>(arg); };
  options.on_wait_arg = &beats;
  const auto collective = Make(options);
  const Status status = collective->Reset(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 did not arrive"));
  EXPECT_GE(beats, 2);

  // Late is not too late: the other comes, and the reset is repeated.
  const auto join = [](Collective* one) {
    Status joined = one->Reset(1);
    while (absl::IsDeadlineExceeded(joined) || absl::IsAborted(joined)) joined = one->Reset(1);
    EXPECT_TRUE(joined.ok()) << joined;
  };
  const auto second = Make(Options(1, 2, options.address));
  std::thread other([&] { join(second.get()); });
  join(collective.get());
  other.join();
}

TEST(TcpCollectiveTest, StrangersAreKeptOut) {
  const TcpAddress address = FreeAddress();
  std::thread rank0([&] {
    const auto collective = Make(Options(0, 2, address));
    EXPECT_TRUE(collective->Reset(1).ok());
    EXPECT_TRUE(collective->Barrier().ok());
  });
  const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
  const LinkHello hello{LinkPurpose::kCollective, 1, 2, 1, 1};
  const auto link = ConnectLink(address, hello, "another secret, as long", wait);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kPermissionDenied) << link.status();
  const auto garbage = ConnectTo(address, wait);
  ASSERT_TRUE(garbage.ok());
  EXPECT_TRUE(SendAll(garbage->get(), std::string(100, 'x'), wait).ok());
  // Two ranks of a replica of three.
  EXPECT_TRUE(ConnectLink(address, {LinkPurpose::kCollective, 1, 3, 1, 1}, kSecret, wait).ok());
  const auto collective = Make(Options(1, 2, address));
  EXPECT_TRUE(collective->Reset(1).ok());
  EXPECT_TRUE(collective->Barrier().ok());
  rank0.join();
}

TEST(TcpCollectiveTest, ANameThatIsNotKnownMayCome) {
  const auto fd = ConnectTo({"no host", 1}, {RealClock::Now() + kNsPerSecond / 2, {}});
  EXPECT_EQ(fd.status().code(), absl::StatusCode::kDeadlineExceeded) << fd.status();
  EXPECT_EQ(ListenOn({"no host", 1}).status().code(), absl::StatusCode::kInvalidArgument)
      << "one's own does not";
}

// All of them fit the listener's backlog; a second for each would be more than the timeout.
TEST(TcpCollectiveTest, ManySilentStrangersHoldNobodyUp) {
  const TcpAddress address = FreeAddress();
  const auto rank0 = Make(Options(0, 2, address));
  const SocketWait wait{RealClock::Now() + 20 * kNsPerSecond, {}};
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 50; ++i) {
    auto stranger = ConnectTo(address, wait);
    ASSERT_TRUE(stranger.ok()) << stranger.status();
    if (i % 2 == 0) silent.push_back(*std::move(stranger));  // the others hang up
  }
  std::thread other([&] { EXPECT_TRUE(Make(Options(1, 2, address))->Reset(1).ok()); });
  const Status joined = rank0->Reset(1);
  EXPECT_TRUE(joined.ok()) << joined;
  other.join();
}

TEST(TcpCollectiveTest, AnAddressInUseIsSaid) {
  const TcpAddress address = FreeAddress();
  const auto first = Make(Options(0, 2, address));
  EXPECT_THAT(std::string(MakeTcpCollective(Options(0, 2, address)).status().message()),
              HasSubstr(StrCat("can't listen on 127.0.0.1:", address.port)));
}

}  // namespace
}  // namespace flotilla
