#include "common/base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <prometheus/summary.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>

#include "tests/support/read_all.h"

namespace flotilla {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(MetricsTest, AMetricIsMadeOnce) {
  prometheus::Registry registry;
  prometheus::Counter& first = AddCounter(&registry, {"a_total", "As.", {{"kind", "x"}}});
  first.Increment(2);
  EXPECT_EQ(&AddCounter(&registry, {"a_total", "As.", {{"kind", "x"}}}), &first);
  EXPECT_EQ(&AddCounters(&registry, "a_total", "As.").Add({{"kind", "x"}}), &first);
  EXPECT_NE(&AddCounter(&registry, {"a_total", "As.", {{"kind", "y"}}}), &first);
  const std::string page = RenderMetrics(registry);
  EXPECT_THAT(page, StartsWith("# HELP a_total As.\n# TYPE a_total counter\na_total"));
  EXPECT_THAT(page, HasSubstr("a_total{kind=\"x\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("a_total{kind=\"y\"} 0\n"));
}

TEST(MetricsTest, GaugesAndHistograms) {
  prometheus::Registry registry;
  AddGauge(&registry, {"b", "Bs."}).Set(7);
  AddGauges(&registry, "c", "Cs.").Add({{"kind", "x"}}).Set(8);
  AddHistogram(&registry, {"d_seconds", "Ds."}, {0.5, 1}).Observe(0.75);
  const std::string page = RenderMetrics(registry);
  EXPECT_THAT(page, HasSubstr("# HELP b Bs.\n# TYPE b gauge\nb 7\n"));
  EXPECT_THAT(page, HasSubstr("c{kind=\"x\"} 8\n"));
  EXPECT_THAT(page, HasSubstr("d_seconds_bucket{le=\"0.5\"} 0\nd_seconds_bucket{le=\"1\"} 1\n"));
}

// As prometheus-cpp's own serializer writes it, which is what scrapers have always read.
TEST(MetricsTest, TheTextIsTheLibrarys) {
  prometheus::Registry registry;
  auto& gauges = AddGauges(&registry, "values", "Values \\ of \"all\" kinds.");
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const double values[] = {0,
                           -0.0,
                           1,
                           -1,
                           0.1,
                           1.0 / 3,
                           1e-5,
                           -2.5,
                           1e15,
                           1e16,
                           1e22,
                           1e23,
                           1e300,
                           5e-324,
                           999999999999999,
                           1.2345678901234568e17,
                           kInfinite,
                           -kInfinite,
                           std::nan("")};
  for (size_t i = 0; i < std::size(values); ++i)
    gauges.Add({{"n", std::to_string(i)}}).Set(values[i]);
  gauges.Add({{"text", "a\\b\"c\nd"}, {"two", ""}}).Set(1);
  AddCounter(&registry, {"plain_total", ""}).Increment(0.5);
  AddHistogram(&registry, {"h_seconds", "Hs.", {{"kind", "x"}}}, {-1, 1e-3, 1.0 / 3, 1, 1e16})
      .Observe(0.75);
  AddHistogram(&registry, {"i_seconds", "Is."}, {1, kInfinite}).Observe(7.25);
  AddHistogram(&registry, {"none_seconds", "Nothing yet."}, {});
  prometheus::BuildSummary()
      .Name("s_seconds")
      .Help("Ss.")
      .Register(registry)
      .Add({}, prometheus::Summary::Quantiles{{0.5, 0.1}});
  std::ostringstream expected;
  prometheus::TextSerializer().Serialize(expected, registry.Collect());
  EXPECT_THAT(expected.str(), HasSubstr("h_seconds_bucket{kind=\"x\",le=\"0.001\"} 0\n"));
  EXPECT_EQ(RenderMetrics(registry), expected.str());
}

void Connect(int fd, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

TEST(MetricsTest, OpenDescriptorsAreCounted) {
  const auto open_fds = [] {
    constexpr std::string_view kName = "process_open_fds{process=\"tester\"} ";
    const std::string page = RenderProcessMetrics("tester");
    return std::stoi(page.substr(page.find(kName) + kName.size()));
  };
  const int before = open_fds();
  EXPECT_GE(before, 3);
  const UniqueFd more[] = {UniqueFd(dup(0)), UniqueFd(dup(0)), UniqueFd(dup(0))};
  ASSERT_TRUE(more[2].valid());
  EXPECT_EQ(open_fds(), before + 3);
}

TEST(MetricsTest, TheServerGivesTheRegistryAndTheProcess) {
  const std::string path = testing::TempDir() + StrCat("metrics_test-", getpid());
  auto registry = std::make_shared<prometheus::Registry>();
  AddGauge(registry.get(), {"b", "Bs."}).Set(7);
  auto server = MetricsServer::Start(path, "tester", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  for (int i = 0; i < 2; ++i) {
    const UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    Connect(client.get(), path);
    const std::string page = ReadAll(client.get());
    EXPECT_THAT(page, HasSubstr("b 7\n"));
    EXPECT_THAT(page, HasSubstr("process_open_fds{process=\"tester\"} "));
    EXPECT_THAT(page, HasSubstr("flotilla_log_lines_lost_total{process=\"tester\"} 0\n"));
    EXPECT_THAT(
        page, HasSubstr("flotilla_build_info{process=\"tester\",revision=\"unknown\",version=\""));
  }
  server->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(MetricsTest, TheServerOutlivesALackOfDescriptors) {
  const std::string path = testing::TempDir() + StrCat("metrics_test-", getpid());
  auto server = MetricsServer::Start(path, "tester", std::make_shared<prometheus::Registry>());
  ASSERT_TRUE(server.ok()) << server.status();
  // The kernel takes a descriptor before it waits for a connection, so one may still be served.
  const UniqueFd perhaps(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};  // those below are taken
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Connect(perhaps.get(), path);
  Connect(client.get(), path);
  pollfd entry{client.get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 20), 0) << "it was not refused a descriptor";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(ReadAll(perhaps.get()), HasSubstr("process_open_fds"));
  EXPECT_THAT(ReadAll(client.get()), HasSubstr("process_open_fds"));
}

TEST(MetricsTest, ASocketThatCannotBeBoundIsNamed) {
  const std::string path = testing::TempDir() + "no/such/folder/metrics";
  const auto server =
      MetricsServer::Start(path, "tester", std::make_shared<prometheus::Registry>());
  EXPECT_EQ(server.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(server.status().message(), HasSubstr(path));
}

}  // namespace
}  // namespace flotilla
