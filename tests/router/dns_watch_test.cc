#include "router/discovery/dns_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>

#include "tests/support/patience.h"

namespace flotilla {
namespace {

TEST(DnsNameTest, IsANameAndAPort) {
  const StatusOr<DnsName> name = ParseDnsName("engine.flotilla.svc:50051");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->host, "engine.flotilla.svc");
  EXPECT_EQ(name->port, 50051);
  for (const char* wrong :
       {"engine", "engine:", ":1", "engine:0", "engine:65536", "engine:x", ""}) {
    const StatusOr<DnsName> parsed = ParseDnsName(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_NE(std::string(parsed.status().message()).find("NAME:PORT"), std::string::npos);
  }
}

TEST(DnsWatchTest, TheSystemKnowsThisHost) {
  const auto addresses = ResolveBySystem({"localhost", 50051});
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_TRUE(std::is_sorted(addresses->begin(), addresses->end()));
  EXPECT_EQ(std::count(addresses->begin(), addresses->end(), "127.0.0.1:50051"), 1);
  EXPECT_EQ(*ResolveBySystem({"::1", 7}), std::vector<std::string>({"[::1]:7"}));
}

TEST(DnsWatchTest, AnUnknownNameIsAnErrorThatNamesIt) {
  const auto addresses = ResolveBySystem({"no-such-host.invalid", 1});
  ASSERT_FALSE(addresses.ok());
  EXPECT_NE(std::string(addresses.status().message()).find("no-such-host.invalid"),
            std::string::npos);
}

TEST(DnsWatchTest, AsksAgainAndAgainAlsoAfterAnError) {
  std::atomic<int> asked{0};
  std::promise<std::vector<std::string>> third;
  int answers = 0;
  DnsWatch::Options options;
  options.name = {"engine", 1};
  options.interval_ms = 1;
  options.resolve = [&](const DnsName& name) -> StatusOr<std::vector<std::string>> {
    EXPECT_EQ(name.host, "engine");
    if (++asked == 2) return absl::UnavailableError("away");
    return std::vector<std::string>({"10.0.0.1:1"});
  };
  DnsWatch watch(options, [&](StatusOr<std::vector<std::string>> addresses) {
    ++answers;
    EXPECT_EQ(addresses.ok(), answers != 2);
    if (answers == 3) third.set_value(*addresses);
  });
  auto got = third.get_future();
  ASSERT_EQ(got.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(got.get(), std::vector<std::string>({"10.0.0.1:1"}));
}

TEST(DnsWatchTest, StopDoesNotWaitForAResolverThatHangs) {
  struct Shared {
    std::promise<void> asked, go_on, returned;
  };
  auto shared = std::make_shared<Shared>();
  DnsWatch::Options options;
  options.resolve = [shared](const DnsName&) -> StatusOr<std::vector<std::string>> {
    shared->asked.set_value();
    shared->go_on.get_future().wait();
    shared->returned.set_value();
    return std::vector<std::string>();
  };
  bool called = false;
  DnsWatch watch(options, [&called](const StatusOr<std::vector<std::string>>&) { called = true; });
  shared->asked.get_future().wait();
  watch.Stop();
  shared->go_on.set_value();
  shared->returned.get_future().wait();
  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace flotilla
